//! [`Machine`]: what is here, and what is missing.

use crate::program::Programs;

/// What `burnrun doctor` says of this machine.
pub(crate) struct Machine {
    /// Subjects and what was found.
    pub(crate) found: Vec<(String, String)>,
    /// Without which nothing runs on a GPU.
    pub(crate) missing: Vec<String>,
    /// Why there is no NCCL.
    pub(crate) without_nccl: Option<String>,
}

impl Machine {
    pub(crate) fn examine(programs: &Programs) -> Self {
        let ran = programs.run("doctor", "burnrun", &["doctor"]);
        let rows = ran
            .output
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(subject, found)| (subject.trim().to_string(), found.trim().to_string()));
        let mut found: Vec<(String, String)> = rows.collect();
        let of = |subject: &str| -> Option<String> {
            let row = found.iter().find(|(known, _)| known == subject);
            row.map(|(_, found)| found.clone())
        };
        let mut missing = Vec::new();
        match (ran.failure, of("CUDA driver")) {
            (Some(failure), _) => missing.push(format!("burnrun doctor: {failure}")),
            (None, None) => missing.push("burnrun doctor does not speak of a CUDA driver".into()),
            (None, Some(driver)) => missing.extend(lack("CUDA driver", &driver)),
        }
        let nccl = of("NCCL").unwrap_or_default();
        let without_nccl = lack("NCCL", &nccl);
        let cuda = programs.cuda();
        found.push((
            "CUDA headers".into(),
            match &cuda {
                Some(folder) => folder.join("include").display().to_string(),
                None => "MISSING".into(),
            },
        ));
        if cuda.is_none() {
            missing.push(
                "CUDA headers: no CUDA_PATH, and no folder of them with these checks; build the folder without \
                 --without-libraries, or install CUDA"
                    .into(),
            );
        }
        Self {
            found,
            missing,
            without_nccl,
        }
    }
}

/// What a row says is missing.
fn lack(subject: &str, found: &str) -> Option<String> {
    let (bad, what) = match found.strip_prefix("MISSING") {
        Some(what) => (true, what.trim_start_matches([':', ' '])),
        None => (found.starts_with("not looked for"), found),
    };
    bad.then(|| format!("{subject}: {what}"))
}
