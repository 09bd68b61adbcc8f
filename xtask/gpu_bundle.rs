//! Builds what is checked on a GPU, and lays it out in a folder.
//!
//! | in the folder | what |
//! |---|---|
//! | `run` | the program that runs the others and writes the report |
//! | `bin` | tests, the bench, `train_gpt`, `burnrun` |
//! | `text.txt` | what `train_gpt` learns |
//! | `python` | NVRTC, CUDA's headers and NCCL, as PyPI packages them |

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

/// Kind and name of a target, and what its program is called in the folder.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("lib", "burn_dist", "bin/burn_dist_tests"),
    ("test", "cubecl", "bin/cubecl_tests"),
    ("test", "nccl", "bin/nccl_tests"),
    ("test", "nccl_world", "bin/nccl_world_tests"),
    ("bench", "kernels", "bin/kernels_bench"),
    ("bin", "train_gpt", "bin/train_gpt"),
    ("bin", "burnrun", "bin/burnrun"),
    ("bin", "gpu_check", "run"),
];

/// Of one CUDA, the oldest that Burn's runtime loads: newer ones make code that older drivers refuse.
const LIBRARIES: [&str; 5] = [
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-nccl-cu13==2.32.3",
];

/// Written first, so that only folders of this task are emptied.
const MARK: &str = "made-by-xtask-gpu";

pub(crate) fn bundle(
    out: &Path,
    debug: bool,
    features: &str,
    with_libraries: bool,
) -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("the workspace is gone")?;
    prepare(out)?;
    let programs = build(root, debug, features)?;
    for (kind, name, place) in PROGRAMS {
        let built = programs.get(&(kind.to_string(), name.to_string()));
        let built = built.ok_or_else(|| format!("cargo built no {kind} {name}"))?;
        let place = out.join(place);
        fs::copy(built, &place)?;
        // Only makes it smaller; without the tool it stays as it is.
        let _ = Command::new("strip")
            .arg(&place)
            .stderr(Stdio::null())
            .status();
    }
    fs::write(out.join("text.txt"), text(&root.join("burn-dist/src"))?)?;
    if with_libraries {
        libraries(&out.join("python"))?;
    }
    println!(
        "{} is ready: copy it to the machine with the GPU, then start `run` in it",
        out.display()
    );
    Ok(())
}

/// An empty folder with a mark in it.
fn prepare(out: &Path) -> Result<(), Failure> {
    let mark = out.join(MARK);
    if out.exists() && !mark.exists() && fs::read_dir(out)?.next().is_some() {
        return Err(format!("{} holds other things: name a new folder", out.display()).into());
    }
    if mark.exists() {
        for part in ["bin", "python", "report"] {
            let part = out.join(part);
            if part.exists() {
                fs::remove_dir_all(part)?;
            }
        }
    }
    fs::create_dir_all(out.join("bin"))?;
    fs::write(mark, "")?;
    Ok(())
}

/// Executables by kind and name of their targets.
fn build(
    root: &Path,
    debug: bool,
    features: &str,
) -> Result<BTreeMap<(String, String), PathBuf>, Failure> {
    let mut wanted: Vec<String> = Vec::new();
    let names = features
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    for name in names.chain(["cuda"]) {
        for package in ["burn-dist", "examples"] {
            let feature = format!("{package}/{name}");
            if !wanted.contains(&feature) {
                wanted.push(feature);
            }
        }
    }
    let features = wanted.join(",");
    let mut programs = BTreeMap::new();
    for line in [
        &["build", "-p", "xtask", "--bin", "gpu_check"][..],
        // A package's programs are built for its tests. Burn is compiled once: `cargo build` would resolve other
        // features of its dependencies than `cargo test`.
        &[
            "test",
            "--no-run",
            "-p",
            "burn-dist",
            "-p",
            "examples",
            "--features",
            &features,
            "--lib",
            "--test",
            "cubecl",
            "--test",
            "nccl",
            "--test",
            "nccl_world",
            "--test",
            "train_gpt_tests",
            "--bench",
            "kernels",
        ],
    ] {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root).args(line).args([
            "--locked",
            "--message-format",
            "json-render-diagnostics",
        ]);
        // What Cargo tells this program of itself: build scripts watch some of it (ring's), and all that stands on
        // them would be built again.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        if !debug {
            command.arg("--release");
        }
        let mut cargo = command.stdout(Stdio::piped()).spawn()?;
        let output = cargo.stdout.take().ok_or("cargo has no output")?;
        for message in BufReader::new(output).lines() {
            let message: Value = serde_json::from_str(&message?)?;
            if let Some(executable) = message["executable"].as_str() {
                let target = &message["target"];
                let (kind, name) = (target["kind"][0].as_str(), target["name"].as_str());
                let is_test = message["profile"]["test"] == true;
                let (kind, name) = (kind.unwrap_or_default(), name.unwrap_or_default());
                // A program's own tests have its name, too.
                if kind != "bin" || !is_test {
                    programs.insert((kind.to_string(), name.to_string()), executable.into());
                }
            }
        }
        if !cargo.wait()?.success() {
            return Err("cargo failed; see above".into());
        }
    }
    Ok(programs)
}

/// All Rust files below a folder, in order of their paths.
fn text(folder: &Path) -> Result<String, Failure> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    let mut text = String::new();
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            text += &self::text(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(path)?;
        }
    }
    Ok(text)
}

fn libraries(folder: &Path) -> Result<(), Failure> {
    let status = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
        ])
        .args(["--root-user-action", "ignore", "--target"])
        .arg(folder)
        .args(LIBRARIES)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(
            "pip failed; see above, or leave the libraries to the machine with --without-libraries"
                .into(),
        ),
    }
}
