//! Snippets of files at hand, by files apart into those to train on and those to validate with.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};

use super::{Language, Snippet};
use crate::text::sources::{collect, packages, registry};

/// Packages whose files are taken: dependencies of this workspace.
const PACKAGES: [&str; 5] = ["burn", "clap", "cubecl", "serde", "tracing"];

/// Of a language, at most; three languages fill batches of 32, also when four of them make a step.
const TRAINING_SNIPPETS: usize = 896;
const VALIDATION_SNIPPETS: usize = 192;

/// Of a file, at most: one long changelog must not be all of Markdown.
const SNIPPETS_OF_A_FILE: usize = 16;

/// One file in five validates.
const VALIDATION_PERIOD: usize = 5;

/// The snippets for training and those for validation, from files under `folder` or from packages in
/// Cargo's registry folder, as `seed` deals the files.
///
/// # Errors
/// If a folder or file cannot be read, or there are no snippets of a language.
pub fn split(
    folder: Option<&Path>,
    seed: u64,
) -> io::Result<(InMemDataset<Snippet>, InMemDataset<Snippet>)> {
    let (root, folders) = match folder {
        Some(folder) => (folder.to_path_buf(), vec![folder.to_path_buf()]),
        None => {
            let registry = registry();
            let folders = packages(&registry, &PACKAGES).map_err(|error| at(&registry, &error))?;
            (registry, folders)
        }
    };
    let (mut train, mut valid) = (Vec::new(), Vec::new());
    for language in Language::ALL {
        let mut files = Vec::new();
        for folder in &folders {
            collect(folder, &|file| language.has(file), &mut files)
                .map_err(|error| at(folder, &error))?;
        }
        let (training, validation) = snippets(language, files, seed)?;
        if training.is_empty() || validation.is_empty() {
            let problem = format!(
                "too few files of {language:?}, give a folder with {VALIDATION_PERIOD} or more by --data DIR"
            );
            return Err(at(
                &root,
                &io::Error::new(io::ErrorKind::InvalidData, problem),
            ));
        }
        train.extend(training);
        valid.extend(validation);
    }
    Ok((InMemDataset::new(train), InMemDataset::new(valid)))
}

/// Snippets to train on and to validate with.
fn snippets(
    language: Language,
    files: Vec<PathBuf>,
    seed: u64,
) -> io::Result<(Vec<Snippet>, Vec<Snippet>)> {
    let (mut train, mut valid) = (Vec::new(), Vec::new());
    // Packages of one project have the same readme.
    let mut seen = HashSet::new();
    let files = ShuffledDataset::new(InMemDataset::new(files), seed);
    for (place, file) in files.iter().enumerate() {
        if train.len() >= TRAINING_SNIPPETS && valid.len() >= VALIDATION_SNIPPETS {
            break;
        }
        let file = file.map_err(io::Error::other)?;
        let text = fs::read(&file).map_err(|error| at(&file, &error))?;
        if !seen.insert(text.clone()) {
            continue;
        }
        let pieces = text.as_chunks().0;
        let step = pieces.len().div_ceil(SNIPPETS_OF_A_FILE).max(1);
        let part = match place % VALIDATION_PERIOD {
            0 => &mut valid,
            _ => &mut train,
        };
        let some = pieces.iter().step_by(step);
        part.extend(some.map(|&bytes| Snippet { bytes, language }));
    }
    train.truncate(TRAINING_SNIPPETS);
    valid.truncate(VALIDATION_SNIPPETS);
    Ok((train, valid))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
