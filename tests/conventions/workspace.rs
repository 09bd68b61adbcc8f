//! The files that are checked, and the checks on them.

use super::*;

pub(crate) struct Workspace {
    pub(crate) sources: Vec<Source>,
    pub(crate) files: BTreeSet<String>,
    pub(crate) members: Vec<String>,
}

impl Workspace {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the package lies in the workspace");
        let mut files = BTreeSet::new();
        walk(root, "", &mut files);
        let sources: Vec<Source> = files
            .iter()
            .filter_map(|path| {
                // What is not UTF-8 is not text, and an editor's file may be gone by now.
                let text = std::fs::read_to_string(root.join(path)).ok()?;
                Some(Source::new(path, &text))
            })
            .collect();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
        let (_, list) = manifest.split_once("members").expect("members");
        let (list, _) = list.split_once(']').expect("a list");
        let members: Vec<String> = list.split('"').skip(1).step_by(2).map(Into::into).collect();
        for member in &members {
            let folder = format!("{member}/");
            let seen = |s: &&Source| s.path.starts_with(&folder) && s.path.ends_with(".rs");
            assert!(sources.iter().any(|s| seen(&s)), "no source under {folder}");
        }
        Self {
            sources,
            files,
            members,
        }
    }

    /// Rust files of the members.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.path.ends_with(".rs") && self.is_ours(source))
    }

    pub(crate) fn is_ours(&self, source: &Source) -> bool {
        let top = source.path.split('/').next().unwrap_or_default();
        self.members.iter().any(|member| member == top)
    }

    pub(crate) fn manifests(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.path.ends_with("/Cargo.toml") && self.is_ours(source))
    }

    /// Markdown files of the members and of the root.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| {
            source.path.ends_with(".md") && (self.is_ours(source) || !source.path.contains('/'))
        })
    }

    /// The files of the repository; all of them where git cannot tell.
    pub(crate) fn tracked(&self) -> Vec<&Source> {
        let listing = Command::new("git")
            .args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/..")])
            .args(["ls-files", "-z"])
            .output();
        let listing = listing.map_or_else(|_| Vec::new(), |output| output.stdout);
        let listing = String::from_utf8_lossy(&listing);
        let names: BTreeSet<&str> = listing.split('\0').collect();
        let known = names.contains("Cargo.toml");
        self.sources
            .iter()
            .filter(|source| !known || names.contains(source.path.as_str()))
            .collect()
    }
}

/// Collects files below `root/folder`, without git's own, Cargo's output and links.
pub(crate) fn walk(root: &Path, folder: &str, files: &mut BTreeSet<String>) {
    let here = root.join(folder);
    if here.join("CACHEDIR.TAG").exists() {
        return;
    }
    for entry in std::fs::read_dir(&here).expect("a readable folder") {
        let entry = entry.expect("a readable folder");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        let kind = entry.file_type().expect("a readable folder");
        if kind.is_dir() && name != ".git" {
            walk(root, &path, files);
        } else if kind.is_file() {
            files.insert(path);
        }
    }
}

pub(crate) fn report(findings: impl IntoIterator<Item = String>) {
    let findings: Vec<String> = findings.into_iter().collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn imports_follow_the_arrows() {
    report(Workspace::read().rust().flat_map(import_arrows));
}

#[test]
fn crates_do_not_know_their_siblings() {
    let workspace = Workspace::read();
    let both = workspace.rust().chain(workspace.manifests());
    report(both.flat_map(sibling_crates));
}

#[test]
fn only_backend_knows_burns_backend() {
    report(Workspace::read().rust().flat_map(burn_backend));
}

#[test]
fn files_are_short() {
    report(Workspace::read().rust().flat_map(file_length));
}

#[test]
fn files_are_named_after_a_subject() {
    report(Workspace::read().rust().flat_map(file_names));
}

#[test]
fn there_are_no_statics() {
    report(Workspace::read().rust().flat_map(statics));
}

#[test]
fn only_world_reads_the_environment() {
    report(Workspace::read().rust().flat_map(environment_reads));
}

#[test]
fn unsafe_code_is_confined_and_explained() {
    report(Workspace::read().rust().flat_map(unsafe_code));
}

#[test]
fn shipped_code_does_not_give_up() {
    let workspace = Workspace::read();
    let shipped = workspace
        .rust()
        .filter(|source| !is_test_module(source, &workspace.sources));
    report(shipped.flat_map(panics));
}

#[test]
fn manifests_name_real_files() {
    let workspace = Workspace::read();
    let check = |manifest| manifest_targets(manifest, &workspace.files);
    report(workspace.manifests().flat_map(check));
}

#[test]
fn tables_of_modules_name_real_files() {
    let workspace = Workspace::read();
    let check = |source| module_tables(source, &workspace.files);
    report(workspace.rust().flat_map(check));
}

#[test]
fn documents_name_real_files() {
    let workspace = Workspace::read();
    let check = |source| markdown_paths(source, &workspace.files);
    report(workspace.documents().flat_map(check));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    report(
        Workspace::read()
            .tracked()
            .into_iter()
            .flat_map(absolute_paths),
    );
}
