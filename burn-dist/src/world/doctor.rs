//! [`Doctor`]: what this host offers to a world, and what it lacks.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::Environment;

/// Variables that launchers set and [`Environment`] reads.
const LAUNCHERS: [&str; 17] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
];

/// A table of what ranks on this host can use. What is missing says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doctor {
    rows: Vec<(&'static str, String)>,
}

impl Doctor {
    /// Looks at this host and at these variables of the environment. Starts no rank, and changes nothing.
    pub fn examine(variables: &[(String, String)]) -> Self {
        let mut rows = vec![
            ("burn-dist", version()),
            ("processors", processors()),
            ("memory", memory()),
            ("loopback", loopback()),
            ("shared memory", shared_memory()),
        ];
        rows.extend(launcher(variables));
        rows.extend(gpu(variables));
        let nccl = variables
            .iter()
            .filter(|(name, _)| name.starts_with("NCCL_"));
        let nccl: Vec<String> = nccl
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        rows.push(("NCCL variables", none_or(nccl, "none")));
        rows.push(("MPI", mpi().into()));
        Self { rows }
    }

    /// Subjects and what was found, in order.
    pub fn rows(&self) -> &[(&'static str, String)] {
        &self.rows
    }
}

impl fmt::Display for Doctor {
    /// One line for each subject.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(subject, _)| subject.len()).max();
        let width = width.unwrap_or(0);
        for (subject, found) in &self.rows {
            writeln!(f, "{subject:width$}  {found}")?;
        }
        Ok(())
    }
}

fn none_or(found: Vec<String>, none: &str) -> String {
    match found.is_empty() {
        true => none.into(),
        false => found.join(", "),
    }
}

fn version() -> String {
    let features = [
        ("flex", cfg!(feature = "flex")),
        ("cpu", cfg!(feature = "cpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("fusion", cfg!(feature = "fusion")),
        ("mpi", cfg!(feature = "mpi")),
    ];
    let on = features.iter().filter(|(_, on)| *on);
    let on: Vec<String> = on.map(|(name, _)| (*name).into()).collect();
    let on = none_or(on, "none");
    format!("{}, features: {on}", env!("CARGO_PKG_VERSION"))
}

fn processors() -> String {
    match std::thread::available_parallelism() {
        Ok(count) => format!("{count} for this process"),
        Err(error) => format!("not known ({error})"),
    }
}

fn memory() -> String {
    let table = match std::fs::read_to_string("/proc/meminfo") {
        Ok(table) => table,
        Err(error) => return format!("not known ({error})"),
    };
    let gibibytes = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(format!("{:.1} GiB", kibibytes / (1 << 20) as f64))
    };
    match (gibibytes("MemTotal:"), gibibytes("MemAvailable:")) {
        (Some(total), Some(free)) => format!("{total}, {free} of it available"),
        _ => "not known (the system's table has no such line)".into(),
    }
}

/// Whether ranks of this host can meet.
fn loopback() -> String {
    let meet = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address: SocketAddr = listener.local_addr()?;
        TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        listener.accept().map(drop)
    };
    match meet() {
        Ok(()) => "ok".into(),
        Err(error) => {
            format!("MISSING: {error}; ranks of one host meet on 127.0.0.1: let it through")
        }
    }
}

/// Whether ranks of this host can share a segment.
fn shared_memory() -> String {
    let made = memfd_create("burn-dist-doctor", MemfdFlags::CLOEXEC);
    match made.and_then(|file| ftruncate(file, 1 << 20)) {
        Ok(()) => "ok".into(),
        Err(error) => format!("MISSING: {error}; set `shared_memory: false`, ranks then use TCP"),
    }
}

fn launcher(variables: &[(String, String)]) -> Vec<(&'static str, String)> {
    let lookup = |name: &str| {
        let mut variables = variables.iter();
        variables.find_map(|(known, value)| (known == name).then(|| value.clone()))
    };
    let set = LAUNCHERS
        .iter()
        .filter_map(|name| Some(format!("{name}={}", lookup(name)?)));
    // Their values may be secret.
    let own = variables
        .iter()
        .filter(|(name, _)| name.starts_with("BURN_DIST_"));
    let set = set.chain(own.map(|(name, _)| name.clone())).collect();
    let said = match Environment::read(&lookup) {
        Ok(found) => format!(
            "{:?}: rank {} of {}, {} of {} on this host",
            found.launcher, found.rank, found.world_size, found.local_rank, found.local_size
        ),
        Err(error) => error.to_string(),
    };
    vec![("launcher", said), ("variables", none_or(set, "none"))]
}

#[cfg(feature = "cuda")]
fn gpu(variables: &[(String, String)]) -> Vec<(&'static str, String)> {
    use crate::communicator::{CudaDriver, NcclLibrary};
    let mut rows = Vec::new();
    match CudaDriver::load() {
        Ok(driver) => {
            let (major, minor) = driver.version();
            rows.push(("CUDA driver", format!("serves CUDA {major}.{minor}")));
            let devices = (0..driver.device_count())
                .map(|index| format!("{index}: {}", driver.device_name(index)))
                .collect();
            rows.push(("CUDA devices", none_or(devices, "none")));
        }
        Err(error) => {
            rows.push(("CUDA driver", format!("MISSING: {error}")));
            rows.push(("CUDA devices", "not known without a driver".into()));
        }
    }
    let path = variables
        .iter()
        .find(|(name, path)| name == "BURN_DIST_NCCL_LIBRARY" && !path.is_empty());
    let path = path.map(|(_, path)| std::path::Path::new(path));
    rows.push((
        "NCCL",
        match NcclLibrary::load(path) {
            Ok(library) => {
                let (major, minor, patch) = library.version();
                format!("{major}.{minor}.{patch}, {}", library.path())
            }
            Err(error) => format!("MISSING: {error}"),
        },
    ));
    rows
}

#[cfg(not(feature = "cuda"))]
fn gpu(_variables: &[(String, String)]) -> Vec<(&'static str, String)> {
    let off = "not looked for: this burn-dist is built without its feature `cuda`";
    ["CUDA driver", "CUDA devices", "NCCL"]
        .map(|subject| (subject, off.into()))
        .into()
}

fn mpi() -> &'static str {
    match cfg!(feature = "mpi") {
        true => "built in, for ranks that mpirun starts",
        false => "not looked for: this burn-dist is built without its feature `mpi`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], subject: &str) -> String {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        let doctor = Doctor::examine(&variables.collect::<Vec<_>>());
        let row = doctor.rows().iter().find(|(known, _)| *known == subject);
        row.expect("a row").1.clone()
    }

    #[test]
    fn a_host_of_tests_has_what_ranks_need() {
        assert!(found(&[], "burn-dist").starts_with(env!("CARGO_PKG_VERSION")));
        assert_eq!(found(&[], "loopback"), "ok");
        assert_eq!(found(&[], "shared memory"), "ok");
        assert!(
            found(&[], "memory").contains(" GiB, "),
            "{}",
            found(&[], "memory")
        );
        assert!(found(&[], "processors").ends_with(" for this process"));
        assert_eq!(found(&[], "NCCL variables"), "none");
    }

    #[test]
    fn variables_are_shown_but_no_secrets() {
        let variables = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "2950"),
            ("BURN_DIST_SECRET", "open sesame"),
            ("NCCL_DEBUG", "INFO"),
            ("HOME", "elsewhere"),
        ];
        assert_eq!(
            found(&variables, "launcher"),
            "Torchrun: rank 1 of 2, 1 of 2 on this host"
        );
        let set = found(&variables, "variables");
        assert!(
            set.starts_with("RANK=1, WORLD_SIZE=2") && set.ends_with("BURN_DIST_SECRET"),
            "{set}"
        );
        assert_eq!(found(&variables, "NCCL variables"), "NCCL_DEBUG=INFO");
        assert!(found(&[("RANK", "1")], "launcher").contains("WORLD_SIZE is missing"));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_library_that_is_not_there_is_missing() {
        let nccl = found(&[("BURN_DIST_NCCL_LIBRARY", "no/such.so")], "NCCL");
        assert!(
            nccl.starts_with("MISSING: NCCL could not be loaded from no/such.so"),
            "{nccl}"
        );
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_feature_that_is_off_is_said_to_be() {
        for subject in ["CUDA driver", "NCCL"] {
            assert!(found(&[], subject).contains("without its feature `cuda`"));
        }
    }
}
