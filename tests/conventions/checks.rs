//! The checks.

use super::*;

pub(crate) fn import_arrows(source: &Source) -> Vec<String> {
    let Some(below) = source.path.strip_prefix("burn-dist/src/") else {
        return Vec::new();
    };
    // lib.rs re-exports everything, and `crate` in a binary is the binary.
    if below == "lib.rs" || below.starts_with("bin/") {
        return Vec::new();
    }
    let module = below.trim_end_matches(".rs").trim_end_matches("/mod");
    let own = module.split('/').next().unwrap_or(module);
    let Some((_, may)) = ARROWS.iter().find(|(folder, _)| *folder == own) else {
        return vec![source.finding(1, &format!("`{own}` has no arrows: add it to the table"))];
    };
    let mut named = paths_from(&source.tokens, "crate");
    named.extend(supers_to_root(&source.tokens, module.split('/').count()));
    named
        .into_iter()
        .filter(|(_, name)| *name != own && !may.contains(name))
        .map(|(line, name)| {
            let what = if ARROWS.iter().any(|(folder, _)| *folder == name) {
                format!("`{own}` must not import `{name}`, only {may:?}: move down what both need")
            } else {
                format!(
                    "`{name}` is not in the table: import from a folder, or add it to the table"
                )
            };
            source.finding(line, &what)
        })
        .collect()
}

pub(crate) fn sibling_crates(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    let package = source.path.split('/').next().unwrap_or_default();
    let row = STRANGERS.iter().find(|(name, _)| *name == package);
    for stranger in row.map_or(&[][..], |(_, strangers)| strangers) {
        let what = format!("`{package}` must not know `{stranger}`: compose them in examples");
        if source.path.ends_with("/Cargo.toml") {
            findings.extend(
                dependency_lines(&source.text, stranger)
                    .into_iter()
                    .map(|line| source.finding(line, &what)),
            );
        }
        let name = stranger.replace('-', "_");
        findings.extend(
            source
                .tokens
                .iter()
                .filter(|token| token.text == name)
                .map(|token| source.finding(token.line, &what)),
        );
    }
    findings
}

/// A line of a manifest; the values that are read here hold no `#`.
pub(crate) fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

pub(crate) fn dependency_lines(manifest: &str, name: &str) -> Vec<usize> {
    let (mut section, mut lines) = ("", Vec::new());
    for (line, text) in (1..).zip(manifest.lines().map(without_comment)) {
        if let Some(header) = text.strip_prefix('[') {
            section = header.trim_end_matches(']');
        }
        let key = text.split([' ', '=', '.']).next().unwrap_or_default();
        let headed = text.starts_with('[') && section.ends_with(&format!("dependencies.{name}"));
        if headed || (section.ends_with("dependencies") && key.trim_matches('"') == name) {
            lines.push(line);
        }
    }
    lines
}

pub(crate) fn burn_backend(source: &Source) -> Vec<String> {
    let in_dist = source.path.starts_with("burn-dist/src/");
    if !in_dist || source.path.starts_with("burn-dist/src/backend/") {
        return Vec::new();
    }
    paths_from(&source.tokens, "burn")
        .into_iter()
        .filter(|(_, name)| matches!(*name, "backend" | "*"))
        .map(|(line, name)| {
            let what = format!("`burn::{name}` outside backend/: only backend/ knows the backend");
            source.finding(line, &what)
        })
        .collect()
}

pub(crate) fn file_length(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines <= MAX_LINES {
        return Vec::new();
    }
    let what = format!("{lines} lines, at most {MAX_LINES}: split the file by subject");
    vec![source.finding(MAX_LINES + 1, &what)]
}

pub(crate) fn file_names(source: &Source) -> Vec<String> {
    source
        .path
        .split('/')
        .map(|part| part.strip_suffix(".rs").unwrap_or(part))
        .filter(|part| NAMES_OF_NOTHING.contains(part))
        .map(|part| source.finding(1, &format!("`{part}` names no subject: rename it")))
        .collect()
}

pub(crate) fn statics(source: &Source) -> Vec<String> {
    // MPI belongs to the process, and what ends it at exit is given no argument.
    let of_the_process = source.path == "burn-dist/src/communicator/mpi/mpi_runtime.rs";
    if source.in_library().is_none() || of_the_process {
        return Vec::new();
    }
    let tokens = &source.tokens;
    (0..tokens.len())
        .filter(|&at| match word(tokens, at, 0) {
            "static" => word(tokens, at, -1) != "'",
            "thread_local" | "lazy_static" => word(tokens, at, 1) == "!",
            _ => false,
        })
        .map(|at| {
            let what = format!("`{}`: pass it as an argument", word(tokens, at, 0));
            source.finding(tokens[at].line, &what)
        })
        .collect()
}

pub(crate) fn environment_reads(source: &Source) -> Vec<String> {
    let reader = |below: &str| {
        below.starts_with("bin/")
            || below.starts_with("world/") && source.path.starts_with("burn-dist/")
    };
    if source.in_library().is_none_or(reader) {
        return Vec::new();
    }
    paths_from(&source.tokens, "std")
        .into_iter()
        .filter(|(_, name)| *name == "env")
        .map(|(line, _)| {
            let what =
                "`std::env` is for burn-dist/src/world/ and bin/: take the value as an argument";
            source.finding(line, what)
        })
        .collect()
}

pub(crate) fn unsafe_code(source: &Source) -> Vec<String> {
    let launch = source.path.starts_with("burn-dist/src/world/launch");
    let transport = [
        "transport/",
        "mpi/",
        "nccl/",
        "device_communicator.rs",
        "recording.rs",
    ]
    .iter()
    .any(|folder| {
        let folder = format!("burn-dist/src/communicator/{folder}");
        source.path.starts_with(&folder)
    });
    // Addresses of device memory go from the one to the other.
    let device = ["cube_collective", "memory_device"].contains(&source.stem());
    let kernel = source.in_library().is_some()
        && (source.path.contains("/kernels/")
            || source.stem() == "kernel"
            || source.stem().ends_with("_kernel"));
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let (mut findings, mut explained) = (Vec::new(), 0);
    for (at, token) in source.tokens.iter().enumerate() {
        if token.text != "unsafe" {
            continue;
        }
        if !(launch || transport || device || kernel) {
            let what = "`unsafe` outside communicator/{transport,mpi,nccl}/ and what hands it device memory, \
                        world/launch* and kernels";
            findings.push(source.finding(token.line, what));
        }
        // A declaration states its contract under `# Safety`, which Clippy asks for.
        let declares = matches!(word(&source.tokens, at, 1), "fn" | "trait" | "extern");
        // From the last `unsafe` on: one explanation serves one block.
        let above = explained.max(token.line.saturating_sub(6))..token.line - 1;
        if !declares && !lines[above].iter().any(|l| l.starts_with("// SAFETY:")) {
            let what = "no `// SAFETY:` of its own in the five lines above: say why it is sound";
            findings.push(source.finding(token.line, what));
        }
        explained = token.line - 1;
    }
    findings
}

pub(crate) fn panics(source: &Source) -> Vec<String> {
    if source.in_library().is_none() {
        return Vec::new();
    }
    let kept = shipped(&source.tokens);
    let text = |at: usize| kept.get(at).map_or("", |token| token.text.as_str());
    let mut findings = Vec::new();
    for (at, token) in kept.iter().enumerate() {
        let next = (text(at + 1), text(at + 2));
        let what = match (token.text.as_str(), next.0) {
            (macro_name @ ("todo" | "unimplemented" | "dbg"), "!") => {
                format!("`{macro_name}!` in shipped code")
            }
            (".", "unwrap") if (text(at + 2), text(at + 3)) == ("(", ")") => {
                "`.unwrap()` in shipped code: return a DistError, or expect(\"invariant: ...\")"
                    .into()
            }
            ("expect", "(") if next.1.starts_with('"') && !next.1.starts_with("\"invariant: ") => {
                "`expect` is for our own bugs: its text starts with `invariant: `".into()
            }
            _ => continue,
        };
        findings.push(source.finding(token.line, &what));
    }
    findings
}

/// A file that its parent declares as `#[cfg(test)] mod tests;`.
pub(crate) fn is_test_module(source: &Source, all: &[Source]) -> bool {
    let folder = source.folder();
    let declared_in = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
    source.stem() == "tests"
        && all.iter().any(|parent| {
            declared_in.contains(&parent.path)
                && (0..parent.tokens.len()).any(|at| {
                    let declaration = ["#", "[", "cfg", "(", "test", ")", "]", "mod", "tests", ";"];
                    follows(&parent.tokens, at, &declaration)
                })
        })
}

/// Targets without a file, and files of a flat package (its library is not under `src/`) that are no target.
pub(crate) fn manifest_targets(manifest: &Source, files: &BTreeSet<String>) -> Vec<String> {
    let (mut findings, mut known, mut flat) = (Vec::new(), BTreeSet::new(), false);
    let package = manifest.folder();
    for (line, kind, name, path) in targets(&manifest.text) {
        let default = match kind.as_str() {
            "lib" => "src/lib.rs".to_owned(),
            "bin" => format!("src/bin/{name}.rs"),
            "bench" => format!("benches/{name}.rs"),
            kind => format!("{kind}s/{name}.rs"),
        };
        let path = path.unwrap_or(default);
        flat |= kind == "lib" && !path.starts_with("src/");
        let file = format!("{package}/{path}");
        if !files.contains(&file) {
            let what = format!("[{kind}] {name}: there is no {file}");
            findings.push(manifest.finding(line, &what));
        }
        known.insert(file);
    }
    for file in files.iter().filter(|file| flat && file.ends_with(".rs")) {
        let own = file.rsplit_once('/').map(|(folder, _)| folder) == Some(package);
        if own && !known.contains(file) {
            let what = format!("{file} is no target and would never be built: register it");
            findings.push(manifest.finding(1, &what));
        }
    }
    findings
}

/// Line, kind, name and path of each target.
pub(crate) fn targets(manifest: &str) -> Vec<(usize, String, String, Option<String>)> {
    let mut found: Vec<(usize, String, String, Option<String>)> = Vec::new();
    let mut inside = false;
    for (line, text) in (1..).zip(manifest.lines().map(without_comment)) {
        if text.starts_with('[') {
            let kind = text.trim_matches(['[', ']']).to_owned();
            inside = matches!(kind.as_str(), "lib" | "bin" | "bench" | "test" | "example");
            if inside {
                found.push((line, kind, String::new(), None));
            }
        }
        if let (true, Some(target), Some((key, value))) =
            (inside, found.last_mut(), text.split_once('='))
        {
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim() {
                "name" => target.2 = value,
                "path" => target.3 = Some(value),
                _ => {}
            }
        }
    }
    found
}

pub(crate) fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

pub(crate) fn exists(files: &BTreeSet<String>, path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    files.contains(path) || files.iter().any(|file| file.starts_with(&folder))
}

/// `//! | file |` and `//! | module |` tables name files beside or below the module.
pub(crate) fn module_tables(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut header: Option<&str> = None;
    let bases = [
        source.folder().to_owned(),
        format!("{}/{}", source.folder(), source.stem()),
    ];
    for (line, text) in (1..).zip(source.text.lines()) {
        let row = text.trim().strip_prefix("//! |");
        let Some(row) = row.filter(|_| !source.in_literal(line)) else {
            header = None;
            continue;
        };
        let cell = row.split('|').next().unwrap_or_default().trim();
        let Some(header) = header else {
            header = Some(cell);
            continue;
        };
        if cell.starts_with("---") {
            continue;
        }
        let listed = matches!(header, "file" | "module");
        if listed && backticked(cell).next().is_none() {
            findings.push(source.finding(line, "no `name` in the first cell of a table of files"));
        }
        for name in backticked(cell) {
            let path_like = name.ends_with(".rs") || name.ends_with('/');
            let file = match header {
                "module" if !path_like => format!("{name}.rs"),
                _ => name.to_owned(),
            };
            let real = bases.iter().any(|base| {
                exists(files, &format!("{base}/{file}"))
                    || header == "module" && exists(files, &format!("{base}/{name}/mod.rs"))
            });
            if (listed || path_like) && !real {
                findings.push(source.finding(line, &format!("the table names no file: `{name}`")));
            }
        }
    }
    findings
}

/// Paths between backticks of a Markdown file, whole or by their last components.
pub(crate) fn markdown_paths(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
    let (mut findings, mut fenced) = (Vec::new(), false);
    for (line, text) in (1..).zip(source.text.lines()) {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for name in backticked(text) {
            let plain = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
            let kind = [".rs", ".md", ".toml", "/"];
            let path_like = kind.iter().any(|end| name.ends_with(end))
                || name.starts_with('.') && name.contains('/');
            let real = || {
                files.iter().any(|file| {
                    let file = format!("/{file}");
                    let tail = format!("/{name}");
                    file.ends_with(&tail) || name.ends_with('/') && file.contains(&tail)
                })
            };
            if plain && path_like && !real() {
                findings.push(source.finding(line, &format!("there is no file `{name}`")));
            }
        }
    }
    findings
}

pub(crate) fn absolute_paths(source: &Source) -> Vec<String> {
    // Put together here, or this file would be its own finding.
    let roots = ["work", "root", "home", "Users"].map(|name| format!("/{name}/"));
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(source.text.lines()) {
        for root in &roots {
            let absolute = text.match_indices(root).any(|(at, _)| {
                // After a name, a variable or a dot it is the middle of another path.
                !text[..at].ends_with(|c: char| c.is_alphanumeric() || "_.}~*)".contains(c))
            });
            if absolute {
                let what = format!("a path of one machine, `{root}`: make it relative");
                findings.push(source.finding(line, &what));
            }
        }
    }
    findings
}
