//! Text files of a machine, in an order that does not change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Cargo's folder of unpacked packages; every machine that built this program has one, unless its
/// dependencies are vendored.
pub(crate) fn registry() -> PathBuf {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    cargo_home
        .or_else(|| home.map(|home| home.join(".cargo")))
        .unwrap_or_default()
        .join("registry/src")
}

/// The packages of `registry` whose names start with one of `prefixes`.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn packages(registry: &Path, prefixes: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for index in sorted(registry)? {
        found.extend(sorted(&index)?.into_iter().filter(|package| {
            let name = package.file_name().unwrap_or_default().to_string_lossy();
            prefixes.iter().any(|prefix| name.starts_with(prefix))
        }));
    }
    Ok(found)
}

/// Adds the files under `folder` that are `wanted`, in the order of their paths.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn collect(
    folder: &Path,
    wanted: &dyn Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for entry in sorted(folder)? {
        // Links are not followed: a loop of them would never end.
        let kind = fs::symlink_metadata(&entry)?.file_type();
        if kind.is_dir() {
            collect(&entry, wanted, files)?;
        } else if kind.is_file() && wanted(&entry) {
            files.push(entry);
        }
    }
    Ok(())
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}
