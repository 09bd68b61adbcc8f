//! [`Programs`]: those of the folder, run with a deadline.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The folder's programs, and what they need.
pub(crate) struct Programs {
    root: PathBuf,
    out: PathBuf,
    deadline: Duration,
}

/// What a program did.
pub(crate) struct Ran {
    /// As a user would type it, in the folder.
    pub(crate) command: String,
    pub(crate) seconds: f64,
    /// Both streams.
    pub(crate) output: String,
    /// Why it did not succeed.
    pub(crate) failure: Option<String>,
}

impl Programs {
    pub(crate) fn new(root: PathBuf, out: PathBuf, deadline: Duration) -> Self {
        Self {
            root,
            out,
            deadline,
        }
    }

    /// Where NVRTC and CUDA's headers are: in the folder, or where the machine says.
    pub(crate) fn cuda(&self) -> Option<PathBuf> {
        let own = self.root.join("python/nvidia/cu13");
        let named = std::env::var_os("CUDA_PATH").map(PathBuf::from);
        let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
        let mut places = [own].into_iter().chain(named).chain(usual);
        places.find(|place| place.join("include").is_dir())
    }

    /// The folder's NCCL.
    fn nccl(&self) -> Option<PathBuf> {
        let library = self.root.join("python/nvidia/nccl/lib/libnccl.so.2");
        library.exists().then_some(library)
    }

    pub(crate) fn has_own_nccl(&self) -> bool {
        self.nccl().is_some()
    }

    /// A path in the folder of the report.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Runs a program of `bin/`; its output also goes to a file `NAME.log` of the report.
    pub(crate) fn run(&self, name: &str, program: &str, arguments: &[&str]) -> Ran {
        let start = Instant::now();
        let command = [&[program][..], arguments].concat().join(" ");
        let log = self.out(&format!("{name}.log"));
        let failure = self.wait(&log, program, arguments).err();
        let output = std::fs::read(&log).unwrap_or_default();
        Ran {
            command: format!("bin/{command}"),
            seconds: start.elapsed().as_secs_f64(),
            output: String::from_utf8_lossy(&output).into_owned(),
            failure,
        }
    }

    fn wait(&self, log: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        // A file rather than a pipe: what a program leaves behind must not keep this one waiting.
        let output = File::create(log).map_err(text)?;
        let mut command = Command::new(self.root.join("bin").join(program));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(text)?)
            .stderr(output);
        if let Some(cuda) = self.cuda() {
            let mut libraries = cuda.join("lib").into_os_string();
            libraries.push(":");
            libraries.push(cuda.join("lib64"));
            if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                libraries.push(":");
                libraries.push(others);
            }
            command
                .env("CUDA_PATH", &cuda)
                .env("LD_LIBRARY_PATH", libraries);
        }
        if let Some(nccl) = self.nccl() {
            command.env("BURN_DIST_NCCL_LIBRARY", nccl);
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("bin/{program} does not start: {error}"))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(text)? {
                return match status.success() {
                    true => Ok(()),
                    false => Err(format!("bin/{program} ended with {status}")),
                };
            }
            if start.elapsed() > self.deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "bin/{program} did not end within {:?}",
                    self.deadline
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
