//! The rules of the house, checked on the sources as text.
//!
//! A check takes text and returns findings, `path:line: what is wrong, what to do`. One test runs it on
//! the workspace, another on a made-up offender, so that no check passes because it sees nothing.
#![warn(missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Folder or file of `burn-dist/src`, and what it may name by `crate::`; a row only names rows above it.
const ARROWS: &[(&str, &[&str])] = &[
    ("deadline", &[]),
    ("error", &[]),
    ("mesh", &["error"]),
    ("flight", &["error"]),
    ("communicator", &["deadline", "error", "flight"]),
    ("group", &["error", "communicator"]),
    (
        "world",
        &[
            "deadline",
            "error",
            "mesh",
            "flight",
            "communicator",
            "group",
        ],
    ),
    (
        "fuzzing",
        &["error", "flight", "communicator", "group", "world"],
    ),
    ("data", &["error", "communicator", "group"]),
    ("backend", &["error", "communicator", "group"]),
    ("collectives", STRATEGY),
    ("data_parallel", STRATEGY),
];

/// What a strategy may name: no other strategy.
const STRATEGY: &[&str] = &["error", "communicator", "group", "backend"];

/// Sibling crates that a crate must not know.
const STRANGERS: &[(&str, &[&str])] = &[
    ("burn-dist", &["burn-zero", "burn-pipeline"]),
    ("burn-zero", &["burn-pipeline"]),
    ("burn-pipeline", &["burn-zero"]),
];

const MAX_LINES: usize = 400;

const NAMES_OF_NOTHING: &[&str] = &[
    "base", "util", "utils", "common", "helper", "helpers", "misc",
];

/// A text file; `path` is relative to the workspace, with `/`.
struct Source {
    path: String,
    text: String,
    tokens: Vec<Token>,
}

/// A word, a punctuation character, or a literal (a string keeps its opening quote and its text).
struct Token {
    line: usize,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let rust = path.ends_with(".rs");
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens: if rust { tokens(text) } else { Vec::new() },
        }
    }

    fn finding(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// The path below `src/`, for a file of one of our crates.
    fn in_library(&self) -> Option<&str> {
        let (package, rest) = self.path.split_once('/')?;
        package.starts_with("burn-").then_some(rest)?;
        rest.strip_prefix("src/")
    }

    fn in_literal(&self, line: usize) -> bool {
        let last = |token: &Token| token.line + token.text.matches('\n').count();
        let mut tokens = self.tokens.iter();
        tokens.any(|token| (token.line + 1..=last(token)).contains(&line))
    }

    fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split_once('.').map_or(name, |(stem, _)| stem)
    }
}

// ---- Rust as tokens

/// Comments are left out, so that prose and examples in documentation are not code.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let (end, keep) = token_end(&chars, at);
        let part = &chars[at..end];
        if keep {
            let text = part.iter().collect();
            found.push(Token { line, text });
        }
        line += part.iter().filter(|&&c| c == '\n').count();
        at = end;
    }
    found
}

/// Where the token, comment or gap that starts at `at` ends, and whether it is a token.
fn token_end(chars: &[char], at: usize) -> (usize, bool) {
    let rest = &chars[at..];
    let until = |from: usize, stop: &dyn Fn(&[char]) -> bool| {
        (at + from..chars.len())
            .find(|&i| stop(&chars[i..]))
            .unwrap_or(chars.len())
    };
    let closed = |i: usize| (i + 1).min(chars.len());
    match rest {
        ['/', '/', ..] => (until(2, &|c| c[0] == '\n'), false),
        ['/', '*', ..] => (block_comment_end(chars, at), false),
        ['\'', '\\', ..] => (closed(until(3, &|c| c[0] == '\'')), true),
        ['\'', _, '\'', ..] => (at + 3, true),
        ['"', ..] => (string_end(chars, at), true),
        [c, ..] if c.is_alphanumeric() || *c == '_' => {
            let end = until(1, &|c| !(c[0].is_alphanumeric() || c[0] == '_'));
            let hashes = chars[end..].iter().take_while(|&&c| c == '#').count();
            let raw = matches!(chars[at..end], ['r'] | ['b' | 'c', 'r']);
            if raw && chars.get(end + hashes) == Some(&'"') {
                let mut close = vec!['"'];
                close.extend(std::iter::repeat_n('#', hashes));
                let body = end + hashes + 1 - at;
                let close_at = until(body, &|c| c.starts_with(&close));
                return ((close_at + close.len()).min(chars.len()), true);
            }
            (end, true)
        }
        [c, ..] => (at + 1, !c.is_whitespace()),
        [] => (at, false),
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The text of token `at + offset`, empty outside.
fn word(tokens: &[Token], at: usize, offset: isize) -> &str {
    at.checked_add_signed(offset)
        .and_then(|i| tokens.get(i))
        .map_or("", |token| token.text.as_str())
}

fn follows(tokens: &[Token], at: usize, texts: &[&str]) -> bool {
    (0..)
        .zip(texts)
        .all(|(i, text)| word(tokens, at, i) == *text)
}

/// The index after the bracket that closes the one at `at`.
fn closing(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The first names after `root::`, where `at` is behind it: one, or each of a braced list.
fn heads(tokens: &[Token], at: usize) -> Vec<(usize, &str)> {
    if word(tokens, at, 0) != "{" {
        return tokens[at..]
            .first()
            .map(|t| (t.line, t.text.as_str()))
            .into_iter()
            .collect();
    }
    let end = closing(tokens, at) - 1;
    let (mut found, mut i) = (Vec::new(), at + 1);
    while i < end {
        found.push((tokens[i].line, tokens[i].text.as_str()));
        while i < end && tokens[i].text != "," {
            i = if tokens[i].text == "{" {
                closing(tokens, i)
            } else {
                i + 1
            };
        }
        i += 1;
    }
    found
}

/// Every `root::NAME`, with its line.
fn paths_from<'a>(tokens: &'a [Token], root: &str) -> Vec<(usize, &'a str)> {
    (0..tokens.len())
        .filter(|&at| follows(tokens, at, &[root, ":", ":"]))
        .flat_map(|at| heads(tokens, at + 3))
        .collect()
}

/// Every `super::...::NAME` that reaches the root of the crate from a module `depth` below it.
fn supers_to_root(tokens: &[Token], depth: usize) -> Vec<(usize, &str)> {
    let (mut found, mut inline, mut open, mut at) = (Vec::new(), Vec::new(), 0_usize, 0);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" => {
                if word(tokens, at, -2) == "mod" {
                    inline.push(open);
                }
                open += 1;
            }
            "}" => {
                open = open.saturating_sub(1);
                if inline.last() == Some(&open) {
                    inline.pop();
                }
            }
            "super" => {
                let mut ups = 0;
                while follows(tokens, at, &["super", ":", ":"]) {
                    (ups, at) = (ups + 1, at + 3);
                }
                if ups == 0 {
                    at += 1;
                } else if ups >= depth + inline.len() {
                    found.extend(heads(tokens, at));
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The tokens without the items that only tests compile.
fn shipped(tokens: &[Token]) -> Vec<&Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if follows(tokens, at, &["#", "[", "cfg"]) {
            let end = closing(tokens, at + 1);
            let says = |text| tokens[at..end].iter().any(|t| t.text == text);
            if says("test") && !says("not") {
                at = item_end(tokens, end);
                continue;
            }
        }
        kept.push(&tokens[at]);
        at += 1;
    }
    kept
}

fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}

// ---- the checks

fn import_arrows(source: &Source) -> Vec<String> {
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

fn sibling_crates(source: &Source) -> Vec<String> {
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
fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

fn dependency_lines(manifest: &str, name: &str) -> Vec<usize> {
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

fn burn_backend(source: &Source) -> Vec<String> {
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

fn file_length(source: &Source) -> Vec<String> {
    let example = source.path.starts_with("examples/") || source.path.contains("/examples/");
    let lines = source.text.lines().count();
    if lines <= MAX_LINES || !(source.in_library().is_some() || example) {
        return Vec::new();
    }
    let what = format!("{lines} lines, at most {MAX_LINES}: split the file by subject");
    vec![source.finding(MAX_LINES + 1, &what)]
}

fn file_names(source: &Source) -> Vec<String> {
    source
        .path
        .split('/')
        .map(|part| part.strip_suffix(".rs").unwrap_or(part))
        .filter(|part| NAMES_OF_NOTHING.contains(part))
        .map(|part| source.finding(1, &format!("`{part}` names no subject: rename it")))
        .collect()
}

fn statics(source: &Source) -> Vec<String> {
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

fn environment_reads(source: &Source) -> Vec<String> {
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

fn unsafe_code(source: &Source) -> Vec<String> {
    let launch = source.path.starts_with("burn-dist/src/world/launch");
    let transport = ["transport/", "mpi/"].iter().any(|folder| {
        let folder = format!("burn-dist/src/communicator/{folder}");
        source.path.starts_with(&folder)
    });
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
        if !(launch || transport || kernel) {
            let what = "`unsafe` outside communicator/{transport,mpi}/, world/launch* and kernels";
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

fn panics(source: &Source) -> Vec<String> {
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
fn is_test_module(source: &Source, all: &[Source]) -> bool {
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
fn manifest_targets(manifest: &Source, files: &BTreeSet<String>) -> Vec<String> {
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
fn targets(manifest: &str) -> Vec<(usize, String, String, Option<String>)> {
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

fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn exists(files: &BTreeSet<String>, path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    files.contains(path) || files.iter().any(|file| file.starts_with(&folder))
}

/// `//! | file |` and `//! | module |` tables name files beside or below the module.
fn module_tables(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
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
fn markdown_paths(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
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

fn absolute_paths(source: &Source) -> Vec<String> {
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

// ---- the workspace

struct Workspace {
    sources: Vec<Source>,
    files: BTreeSet<String>,
    members: Vec<String>,
}

impl Workspace {
    fn read() -> Self {
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
    fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.path.ends_with(".rs") && self.is_ours(source))
    }

    fn is_ours(&self, source: &Source) -> bool {
        let top = source.path.split('/').next().unwrap_or_default();
        self.members.iter().any(|member| member == top)
    }

    fn manifests(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.path.ends_with("/Cargo.toml") && self.is_ours(source))
    }

    /// Markdown files of the members and of the root.
    fn documents(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| {
            source.path.ends_with(".md") && (self.is_ours(source) || !source.path.contains('/'))
        })
    }

    /// The files of the repository; all of them where git cannot tell.
    fn tracked(&self) -> Vec<&Source> {
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
fn walk(root: &Path, folder: &str, files: &mut BTreeSet<String>) {
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

fn report(findings: impl IntoIterator<Item = String>) {
    let findings: Vec<String> = findings.into_iter().collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

mod on_the_workspace {
    use super::*;

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
}

mod on_offenders {
    use super::*;

    /// Runs a check on made-up text; exactly the lines with `~~` are to be found.
    fn expect(path: &str, text: &str, check: impl Fn(&Source) -> Vec<String>) {
        let marked = (1..).zip(text.lines()).filter(|(_, l)| l.contains("~~"));
        let marked: BTreeSet<usize> = marked.map(|(line, _)| line).collect();
        let findings = check(&Source::new(path, text));
        let line_of = |finding: &String| {
            let rest = finding.strip_prefix(path)?.strip_prefix(':')?;
            rest.split_once(": ")?.0.parse::<usize>().ok()
        };
        let found: Option<BTreeSet<usize>> = findings.iter().map(line_of).collect();
        assert_eq!(found, Some(marked), "{path}: {findings:#?}\n{text}");
    }

    fn files(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn arrows_point_down() {
        for (row, (folder, may)) in ARROWS.iter().enumerate() {
            let above: Vec<&str> = ARROWS[..row].iter().map(|(name, _)| *name).collect();
            assert!(!above.contains(folder), "`{folder}` has two rows");
            for name in *may {
                assert!(above.contains(name), "`{folder}` -> `{name}` points up");
            }
        }
    }

    #[test]
    fn imports() {
        let text = r#"
use crate::world::World; // ~~
use crate::{
    error::{A, B},
    group::C, // ~~
};
use super::MeshAxis;
use super::super::group::G; // ~~
use crate::ProcessGroup; // ~~ a re-export has no folder
// use crate::world::World;
const TEXT: &str = "crate::world";
fn f() -> crate::group::G {} // ~~
pub(in crate::mesh) fn g() {}
mod inline {
    use super::super::group::G;
    use super::super::super::group::G; // ~~
}
fn h(_: super::super::group::G) {} // ~~
"#;
        expect("burn-dist/src/mesh/axis.rs", text, import_arrows);
        let text = "use super::world::World; // ~~\nuse super::communicator::Work;";
        expect("burn-dist/src/group.rs", text, import_arrows);
        let text = "use super::world::World; // ~~\nuse super::error::Result;";
        expect("burn-dist/src/mesh/mod.rs", text, import_arrows);
        let text = "use crate::collectives::x; // ~~\nuse crate::backend::Step;";
        expect("burn-dist/src/data_parallel/x.rs", text, import_arrows);
        expect("burn-dist/src/brand_new/mod.rs", "// ~~", |source| {
            let findings = import_arrows(source);
            assert!(findings[0].contains("add it to the table"), "{findings:?}");
            findings
        });
    }

    #[test]
    fn siblings() {
        let text = "//! burn_pipeline\nuse burn_pipeline::X; // ~~\nuse burn_dist::X;";
        expect("burn-zero/src/lib.rs", text, sibling_crates);
        let text = "use {burn_zero as z}; // ~~\nfn f(_: burn_pipeline::X) {} // ~~";
        expect("burn-dist/benches/a.rs", text, sibling_crates);
        let text = "use burn_zero::X;\nuse burn_pipeline::Y;";
        expect("examples/a.rs", text, sibling_crates);
        let text = r#"
[package]
name = "burn-zero"
[dependencies]
burn-dist = { workspace = true }
[dev-dependencies]
burn-pipeline.workspace = true # ~~
[dependencies.burn-pipeline] # ~~
path = "../burn-pipeline"
"#;
        expect("burn-zero/Cargo.toml", text, sibling_crates);
    }

    #[test]
    fn backends() {
        let text = r#"
use burn::backend::Flex; // ~~
use burn::{
    backend::{Cube, Flex}, // ~~
    tensor::Tensor,
};
use burn::*; // ~~
use crate::backend::Step;
use ::burn::backend::Flex; // ~~
fn f() -> ::burn::backend::Flex {} // ~~
"#;
        expect("burn-dist/src/collectives/x.rs", text, burn_backend);
        let text = "use burn::backend::Flex;";
        expect("burn-dist/src/backend/x.rs", text, burn_backend);
    }

    #[test]
    fn lengths_and_names() {
        let allowed = "\n".repeat(MAX_LINES);
        let long = format!("{allowed}// ~~");
        for path in ["burn-zero/src/a.rs", "examples/a/b.rs"] {
            expect(path, &allowed, file_length);
            expect(path, &long, file_length);
        }
        assert_eq!(file_length(&Source::new("tests/a.rs", &long)).len(), 0);
        for path in ["burn-dist/src/utils.rs", "examples/common/mod.rs"] {
            expect(path, "// ~~", file_names);
        }
        expect("burn-dist/src/database.rs", "", file_names);
    }

    #[test]
    fn globals() {
        let text = r#"
static A: u8 = 0; // ~~
pub(crate) static mut B: u8 = 0; // ~~
thread_local! { } // ~~
fn f() { static C: OnceLock<u8> = OnceLock::new(); } // ~~
fn g<T: 'static>(_: &'static str) -> char { 's' } // static A
"#;
        expect("burn-zero/src/a.rs", text, statics);
        assert_eq!(statics(&Source::new("tests/a.rs", text)).len(), 0);
    }

    #[test]
    fn environment() {
        let text = r#"
use std::{fs, env}; // ~~
use std::{fs::{env}, io};
fn f() { std::env::var("RANK") } // ~~ std::env
"#;
        expect("burn-dist/src/group.rs", text, environment_reads);
        expect("burn-zero/src/world/a.rs", text, environment_reads);
        let readers = ["burn-dist/src/world/a.rs", "burn-dist/src/bin/a.rs"];
        for path in readers {
            assert_eq!(environment_reads(&Source::new(path, text)).len(), 0);
        }
    }

    #[test]
    fn unsafety() {
        let text = r#"
unsafe impl Send for X {} // ~~
// SAFETY: five lines above.




unsafe { x() }
// SAFETY: six lines above.





unsafe { x() } // ~~
// SAFETY: one explanation for two.
unsafe impl Send for Y {}
unsafe impl Sync for Y {} // ~~
#![allow(unsafe_code)]
fn f(_: &str) { f("unsafe") } // unsafe
"#;
        expect(
            "burn-dist/src/communicator/transport/a.rs",
            text,
            unsafe_code,
        );
        let text = "// SAFETY: it is.\nunsafe { x() }";
        for path in [
            "burn-zero/src/adam_kernel.rs",
            "burn-dist/src/world/launch.rs",
        ] {
            expect(path, text, unsafe_code);
        }
        for path in ["burn-dist/src/group.rs", "tests/a.rs"] {
            expect(path, &format!("{text} // ~~"), unsafe_code);
        }
    }

    #[test]
    fn giving_up() {
        let text = r#"
/// x.unwrap()
fn f() {
    todo!(); // ~~
    unimplemented!("x"); // ~~
    dbg!(1); // ~~
    x
        .unwrap(); // ~~
    x.expect("works"); // ~~
    x.expect("invariant: set").unwrap_or(0);
}
#[cfg(test)]
use x::y;
#[cfg(test)]
fn g() -> [u8; 2] { x.unwrap() }
#[cfg(test)]
mod tests { fn h() { x.unwrap(); } }
#[cfg(not(test))]
fn i() { x.unwrap(); } // ~~
"#;
        expect("burn-dist/src/a.rs", text, panics);
        let tests = Source::new("burn-dist/src/a/tests.rs", "");
        let parent = |text| [Source::new("burn-dist/src/a.rs", text)];
        assert!(is_test_module(&tests, &parent("#[cfg(test)]\nmod tests;")));
        assert!(!is_test_module(&tests, &parent("mod tests;")));
    }

    #[test]
    fn manifests() {
        let text = r#"
[lib]
path = "harness/mod.rs"
[[test]]
name = "a"
path = "a.rs"
[[test]] # ~~
name = "gone"
path = "gone.rs"
[[bench]]
name = "b"
[[bench]] # ~~
name = "lost"
[dependencies]
x = { path = "../x" }
"#;
        let real = ["tests/harness/mod.rs", "tests/a.rs", "tests/benches/b.rs"];
        let check = |source: &Source| manifest_targets(source, &files(&real));
        expect("tests/Cargo.toml", text, check);
        let unregistered = files(&[real[0], "tests/forgotten.rs"]);
        let check = |source: &Source| manifest_targets(source, &unregistered);
        expect(
            "tests/Cargo.toml",
            "# ~~\n[lib]\npath = \"harness/mod.rs\"",
            check,
        );
    }

    #[test]
    fn tables() {
        let text = r#"
//! | file | what |
//! |---|---|
//! | `axis.rs`, `deep/` | real |
//! | `axis.rs`, `gone.rs` | ~~ |
//! | `lost/` | ~~ |
//! | axis | ~~ |
//!
//! | module | what |
//! |---|---|
//! | `axis` | a file |
//! | `deep` | a folder |
//! | `gone` | ~~ |
//!
//! | function | what |
//! |---|---|
//! | `sum` | no file |
const TEXT: &str = "
//! | file | what |
//! | `gone.rs` | not documentation |";
"#;
        let real = [
            "burn-dist/src/mesh/axis.rs",
            "burn-dist/src/mesh/deep/mod.rs",
        ];
        let check = |source: &Source| module_tables(source, &files(&real));
        expect("burn-dist/src/mesh/mod.rs", text, check);
    }

    #[test]
    fn documents() {
        let text = r#"
`backend/` `ladder.rs` `burn-dist/src/backend/ladder.rs` `.ci/run` `a/b` `f(x)`
see `gone.rs` ~~
see `adder.rs` ~~
| `end/` | ~~ |
run `.ci/walk` ~~
```sh
`gone.rs`
```
see `gone.rs` ~~
"#;
        let real = files(&["README.md", "burn-dist/src/backend/ladder.rs", ".ci/run"]);
        let check = |source: &Source| markdown_paths(source, &real);
        expect("README.md", text, check);
    }

    #[test]
    fn machines() {
        for root in ["work", "root", "home", "Users"] {
            let text = "cd /ROOT/me ~~\nfile:///ROOT/me ~~\n`/ROOT/` ~~\n\
                        https://a.b/ROOT/c\n$dir/ROOT/me\n../ROOT/x\n/ROOTS/";
            expect("README.md", &text.replace("ROOT", root), absolute_paths);
        }
    }

    #[test]
    fn the_lexer_tells_literals_from_code() {
        let text = r###"a('\'', '"', 'b', b'\\') /* c /* d */
 e */ "f \" g" r#"h " i"# &'j k"###;
        let found: Vec<Token> = tokens(text);
        let words = |line| -> Vec<&str> {
            let on_line = found.iter().filter(|token| token.line == line);
            on_line.map(|token| token.text.as_str()).collect()
        };
        assert_eq!(words(1).join(" "), r#"a ( '\'' , '"' , 'b' , b '\\' )"#);
        assert_eq!(words(2).join(" "), r###""f \" g" r#"h " i"# & ' j k"###);
        let unfinished =
            "\"a|r#\"a|/* a|'\\|//|\"a\\|mod a {|use crate::|use crate::{|#[cfg(test)]";
        for text in unfinished.split('|') {
            let source = Source::new("burn-dist/src/mesh/a.rs", text);
            assert_eq!(
                import_arrows(&source).len() + panics(&source).len(),
                0,
                "{text}"
            );
        }
    }
}
