//! The checks on made-up offenders: none passes because it sees nothing.

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
    for path in [
        "burn-zero/src/a.rs",
        "examples/a/b.rs",
        "tests/a.rs",
        "burn-dist/benches/a.rs",
    ] {
        expect(path, &allowed, file_length);
        expect(path, &long, file_length);
    }
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
        "burn-dist/src/communicator/nccl/a.rs",
        "burn-dist/src/communicator/device_communicator.rs",
        "burn-dist/src/backend/cube_collective.rs",
    ] {
        expect(path, text, unsafe_code);
    }
    for path in [
        "burn-dist/src/group.rs",
        "burn-dist/src/backend/staged.rs",
        "tests/a.rs",
    ] {
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
    let unfinished = "\"a|r#\"a|/* a|'\\|//|\"a\\|mod a {|use crate::|use crate::{|#[cfg(test)]";
    for text in unfinished.split('|') {
        let source = Source::new("burn-dist/src/mesh/a.rs", text);
        assert_eq!(
            import_arrows(&source).len() + panics(&source).len(),
            0,
            "{text}"
        );
    }
}
