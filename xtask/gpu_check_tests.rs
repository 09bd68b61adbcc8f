//! The GPU check over programs that only pretend, as it would run on machines that this one is not.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

const DRIVER: &str = "CUDA driver    serves CUDA 13.0\n";
const NCCL: &str = "NCCL           2.32.3, libnccl.so.2\n";

/// A folder as the task lays it out, of shell scripts.
struct Folder(tempfile::TempDir);

impl Folder {
    /// `doctor` is what `burnrun doctor` says. Everything else is right.
    fn new(doctor: &str) -> Self {
        let folder = Self(tempfile::tempdir().expect("a temporary folder"));
        let root = folder.0.path();
        for part in ["bin", "python/nvidia/cu13/include"] {
            std::fs::create_dir_all(root.join(part)).expect("made");
        }
        std::fs::copy(env!("CARGO_BIN_EXE_gpu_check"), root.join("run")).expect("copied");
        folder.program("burnrun", &format!("cat <<'END'\n{doctor}END"));
        for (name, tests) in [
            ("burn_dist_tests", 12),
            ("nccl_tests", 2),
            ("nccl_world_tests", 2),
            ("cubecl_tests", 2),
        ] {
            folder.program(name, &result_of(tests));
        }
        let rows = r#"[{"kernel": "adamw", "backend": "cuda", "elements": 8, "us": 2.0, "copy_share": 0.9},
            {"kernel": "norm", "backend": "cuda", "elements": 8, "us": 2.0, "copy_share": 0.5}]"#;
        folder.program("kernels_bench", &to_json(rows));
        folder.program("train_gpt", &to_json(&run_of("40a00000", 5.0)));
        folder
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.0.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, executable).expect("executable");
    }

    /// Code, what it printed, and the report in both forms.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, Value, String) {
        let root = self.0.path();
        let run = Command::new(root.join("run")).args(arguments).output();
        let run = run.expect("it starts");
        let read = |name: &str| -> String {
            let path = root.join("report").join(name);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let json = serde_json::from_str(&read("report.json")).expect("JSON");
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        (run.status.code(), said, json, read("report.md"))
    }
}

/// What a test program prints in which all of so many tests pass.
fn result_of(tests: usize) -> String {
    format!("echo 'test a ... ok'\necho 'test result: ok. {tests} passed; 0 failed; 0 ignored'")
}

/// A program that writes this where `--json` says.
fn to_json(text: &str) -> String {
    let find = "while [ \"$1\" != --json ]; do shift; done";
    format!("{find}\ncat > \"$2\" <<'END'\n{text}\nEND")
}

/// A report of `train_gpt`.
fn run_of(bits: &str, loss: f64) -> String {
    // As the report writes it: JSON has no NaN.
    let loss = Value::from(loss);
    format!(
        r#"{{"losses": [{loss}], "loss_bits": ["{bits}"], "parameter_hash": "0123456789abcdef01", "tokens_per_second": 1e5}}"#
    )
}

/// A `train_gpt` whose bits and loss are others where its arguments hold these words.
fn differing(words: &str, special: (&str, f64), usual: (&str, f64)) -> String {
    let [special, usual] = [special, usual].map(|(bits, loss)| to_json(&run_of(bits, loss)));
    format!("case \"$*\" in\n*'{words}'*)\n{special}\n;;\n*)\n{usual}\n;;\nesac")
}

fn outcomes(report: &Value) -> Vec<&str> {
    let steps = report["steps"].as_array().expect("a list").iter();
    steps
        .map(|step| step["outcome"].as_str().expect("a word"))
        .collect()
}

fn doctor_of(driver: &str, nccl: &str) -> String {
    format!("burn-dist      0.1.0, features: cuda\n{driver}{nccl}NCCL variables none\n")
}

#[test]
fn a_machine_with_everything_is_code_0_and_a_report_of_figures() {
    let folder = Folder::new(&doctor_of(DRIVER, NCCL));
    let (code, said, report, text) = folder.run(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(outcomes(&report), ["right"; 6]);
    assert_eq!(report["machine"]["CUDA driver"], "serves CUDA 13.0");
    let rows = &report["steps"][1]["figures"];
    assert_eq!(rows[0]["reaches its target"], true);
    assert_eq!(rows[1]["reaches its target"], false);
    assert!(
        text.contains("| adamw |") && text.contains("| 0.500 |"),
        "{text}"
    );
    assert!(text.contains("--zero 3 --device cuda:0"), "{text}");
}

#[test]
fn a_machine_without_a_driver_is_code_2_and_a_report_of_what_is_missing() {
    let driver =
        "CUDA driver    MISSING: there is no NVIDIA driver: libcuda.so.1 could not be loaded\n";
    let folder = Folder::new(&doctor_of(driver, NCCL));
    // Nothing else may start.
    folder.program("train_gpt", "echo started > \"$0.started\"");
    let (code, said, report, text) = folder.run(&[]);
    assert_eq!(code, Some(2), "{said}");
    let missing = "CUDA driver: there is no NVIDIA driver";
    assert!(said.contains(missing) && text.contains(missing), "{said}");
    assert!(
        report["missing"][0]
            .as_str()
            .is_some_and(|text| text.starts_with(missing))
    );
    assert_eq!(outcomes(&report), ["not_run"; 6]);
    assert!(!folder.0.path().join("bin/train_gpt.started").exists());
}

#[test]
fn a_folder_without_a_doctor_is_code_2() {
    let folder = Folder::new("");
    folder.program("burnrun", "exit 3");
    let (code, _, report, _) = folder.run(&[]);
    assert_eq!(code, Some(2));
    let missing = report["missing"][0].as_str().expect("a word");
    assert!(
        missing.contains("burnrun ended with exit status: 3"),
        "{missing}"
    );
}

#[test]
fn without_nccl_the_rest_is_run_and_the_code_is_1() {
    let nccl = "NCCL           MISSING: NCCL could not be loaded\n";
    let folder = Folder::new(&doctor_of(DRIVER, nccl));
    let (code, said, report, _) = folder.run(&[]);
    assert_eq!(code, Some(1), "{said}");
    let expected = ["right", "right", "not_run", "not_run", "right", "right"];
    assert_eq!(outcomes(&report), expected);
    assert!(said.contains("NCCL: NCCL could not be loaded"), "{said}");
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        (
            "burn_dist_tests",
            "echo 'test x ... FAILED'; exit 101".to_string(),
            "exit status: 101",
        ),
        (
            "cubecl_tests",
            result_of(1),
            "1 tests of cubecl_tests ran, at least 2 should have",
        ),
        (
            "cubecl_tests",
            "true".into(),
            "none tests of cubecl_tests ran",
        ),
        ("kernels_bench", to_json("[]"), "kernels.json has no rows"),
        ("kernels_bench", "true".into(), "kernels.json: No such file"),
        ("nccl_world_tests", "sleep 60".into(), "did not end within"),
        (
            "train_gpt",
            differing("--ranks 2", ("b", 5.0), ("a", 5.0)),
            "--zero 3 have not the bits of one rank",
        ),
        (
            "train_gpt",
            differing("--device flex", ("a", 6.0), ("a", 5.0)),
            "away from Flex's",
        ),
        (
            "train_gpt",
            differing("--device flex", ("a", f64::NAN), ("a", 5.0)),
            "losses are not numbers",
        ),
    ];
    for (program, text, words) in cases {
        let folder = Folder::new(&doctor_of(DRIVER, NCCL));
        folder.program(program, &text);
        let (code, _, report, markdown) = folder.run(&["--deadline", "2"]);
        assert_eq!(code, Some(1), "{program}: {markdown}");
        let wrong = outcomes(&report).iter().filter(|o| **o == "wrong").count();
        assert_eq!(wrong, 1, "{program}: {markdown}");
        assert!(markdown.contains(words), "{program}, {words}: {markdown}");
    }
}
