//! [`Environment`]: what the launcher's variables say. Pure: the look-up is an argument.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::host_list::first_host;
use crate::error::{DistError, Result};

/// Who started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Nobody: one rank.
    Plain,
    /// `burnrun`, torchrun, or the same variables by hand.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    OpenMpi,
}

/// A rank's place in the world, and where the world meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Whose variables were found.
    pub launcher: Launcher,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// This rank's position on its host.
    pub local_rank: usize,
    /// Number of ranks on its host.
    pub local_size: usize,
    /// Host of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// Shared secret of the handshake; empty if none is set.
    pub secret: String,
    /// The launcher serves the store, so that rank 0 does not.
    pub store_is_external: bool,
    /// `BURN_DIST_STARTUP_TIMEOUT`.
    pub startup_timeout: Option<Duration>,
    /// `BURN_DIST_STEP_TIMEOUT`.
    pub step_timeout: Option<Duration>,
    /// `BURN_DIST_FLIGHT_DIR`: where flight recordings are written.
    pub flight_folder: Option<PathBuf>,
    /// `BURN_DIST_NCCL_LIBRARY`: where NCCL is, if not where the system looks.
    pub nccl_library: Option<PathBuf>,
}

/// Ports that are derived from a job's number: below the ephemeral range of most systems.
const DERIVED_PORTS: std::ops::Range<u64> = 20_000..32_000;

/// Reads variables and notes everything that is wrong with them.
struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn number(&mut self, name: &str) -> Option<usize> {
        let text = self.text(name)?;
        let number = text.trim().parse().ok();
        if number.is_none() {
            self.problems
                .push(format!("{name} is {text:?}, not a number"));
        }
        number
    }

    fn required(&mut self, name: &str) -> usize {
        if self.text(name).is_none() {
            self.problems.push(format!("{name} is missing"));
        }
        self.number(name).unwrap_or(0)
    }

    fn seconds(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?;
        let seconds = text.trim().parse::<f64>().ok();
        match seconds.map(Duration::try_from_secs_f64) {
            Some(Ok(duration)) if !duration.is_zero() => Some(duration),
            _ => {
                self.problems.push(format!(
                    "{name} is {text:?}, not a positive number of seconds"
                ));
                None
            }
        }
    }

    fn external_store(&mut self) -> bool {
        match self.text("BURN_DIST_STORE").as_deref() {
            None => false,
            Some("external") => true,
            Some(other) => {
                self.problems.push(format!(
                    "BURN_DIST_STORE is {other:?}, but only \"external\" is known"
                ));
                false
            }
        }
    }

    fn port(&mut self) -> Option<u16> {
        let number = self.number("MASTER_PORT")?;
        match u16::try_from(number) {
            Ok(port) if port > 0 => Some(port),
            _ => {
                self.problems.push(format!(
                    "MASTER_PORT is {number}, not a port from 1 to 65535 (only burnrun can choose a free one)"
                ));
                None
            }
        }
    }
}

impl Environment {
    /// Reads variables through `lookup`.
    ///
    /// torchrun's win over the others', as torchrun itself runs under Slurm; where its agent listens on
    /// `MASTER_PORT` itself, the world meets on the port after it. Slurm without
    /// `MASTER_ADDR` meets on the first host of its list (the loopback address if the job has one
    /// node), at a port that follows from the job's number; so does Open MPI on one host.
    ///
    /// # Errors
    /// [`DistError::Environment`] with everything that is missing or contradicts itself.
    pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let mut reader = Reader {
            lookup,
            problems: Vec::new(),
        };
        let launcher = launcher(&reader);
        let mut this = Self {
            launcher,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_size: 1,
            master_addr: "127.0.0.1".into(),
            master_port: 0,
            secret: reader.text("BURN_DIST_SECRET").unwrap_or_default(),
            store_is_external: reader.external_store(),
            startup_timeout: reader.seconds("BURN_DIST_STARTUP_TIMEOUT"),
            step_timeout: reader.seconds("BURN_DIST_STEP_TIMEOUT"),
            flight_folder: reader.text("BURN_DIST_FLIGHT_DIR").map(PathBuf::from),
            nccl_library: reader.text("BURN_DIST_NCCL_LIBRARY").map(PathBuf::from),
        };
        match launcher {
            Launcher::Plain => {}
            Launcher::Torchrun => this.read_torchrun(&mut reader),
            Launcher::Slurm => this.read_slurm(&mut reader),
            Launcher::OpenMpi => this.read_open_mpi(&mut reader),
        }
        this.check(&mut reader);
        match reader.problems.is_empty() {
            true => Ok(this),
            false => Err(DistError::Environment {
                problems: reader.problems,
            }),
        }
    }

    fn read_torchrun(&mut self, reader: &mut Reader<'_>) {
        self.rank = reader.required("RANK");
        self.world_size = reader.required("WORLD_SIZE");
        if self.world_size == 1 {
            return;
        }
        self.local_rank = reader.required("LOCAL_RANK");
        self.local_size = reader
            .number("LOCAL_WORLD_SIZE")
            .unwrap_or(self.local_rank + 1);
        for name in ["MASTER_ADDR", "MASTER_PORT"] {
            if reader.text(name).is_none() {
                reader.problems.push(format!("{name} is missing"));
            }
        }
        self.master_addr = reader.text("MASTER_ADDR").unwrap_or_default();
        self.master_port = reader.port().unwrap_or(0);
        // torchrun's own store already listens on the port that it hands out.
        if reader.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") {
            self.master_port = match self.master_port {
                u16::MAX => u16::MAX - 1,
                port => port + 1,
            };
        }
    }

    fn read_slurm(&mut self, reader: &mut Reader<'_>) {
        self.rank = reader.required("SLURM_PROCID");
        self.world_size = reader
            .number("SLURM_STEP_NUM_TASKS")
            .unwrap_or_else(|| reader.required("SLURM_NTASKS"));
        self.local_rank = reader.required("SLURM_LOCALID");
        let per_node = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
            .iter()
            .find_map(|name| reader.text(name));
        // As in `4(x2),3`: this rank's node is not told, the first count is the usual one.
        let first = per_node.and_then(|list| {
            let digits: String = list.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        self.local_size = first.unwrap_or(1).max(self.local_rank + 1);
        let nodes = reader.number("SLURM_STEP_NUM_NODES");
        let one_node = nodes.or_else(|| reader.number("SLURM_NNODES")) == Some(1);
        let hosts = reader
            .text("SLURM_STEP_NODELIST")
            .or_else(|| reader.text("SLURM_JOB_NODELIST"));
        self.meet(
            reader,
            one_node,
            hosts.as_deref().and_then(first_host),
            "SLURM_JOB_ID",
        );
    }

    fn read_open_mpi(&mut self, reader: &mut Reader<'_>) {
        self.rank = reader.required("OMPI_COMM_WORLD_RANK");
        self.world_size = reader.required("OMPI_COMM_WORLD_SIZE");
        self.local_rank = reader.required("OMPI_COMM_WORLD_LOCAL_RANK");
        self.local_size = reader.required("OMPI_COMM_WORLD_LOCAL_SIZE");
        let one_node = self.local_size == self.world_size;
        let job = match reader.text("PMIX_NAMESPACE").is_some() {
            true => "PMIX_NAMESPACE",
            false => "OMPI_MCA_ess_base_jobid",
        };
        self.meet(reader, one_node, None, job);
    }

    /// Where a world meets whose launcher does not say it.
    fn meet(
        &mut self,
        reader: &mut Reader<'_>,
        one_node: bool,
        first_host: Option<String>,
        job: &str,
    ) {
        if self.world_size <= 1 {
            return;
        }
        let given = reader.text("MASTER_ADDR");
        let default = if one_node {
            Some(self.master_addr.clone())
        } else {
            first_host
        };
        match given.or(default) {
            Some(address) => self.master_addr = address,
            None => reader.problems.push(
                "MASTER_ADDR is missing: the job has several hosts and the launcher does not name the first".into(),
            ),
        }
        self.master_port = reader.port().unwrap_or_else(|| {
            let hash = reader
                .text(job)
                .unwrap_or_default()
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            (DERIVED_PORTS.start + hash % (DERIVED_PORTS.end - DERIVED_PORTS.start)) as u16
        });
    }

    fn check(&self, reader: &mut Reader<'_>) {
        let mut contradiction = |found: bool, text: String| {
            if found {
                reader.problems.push(text);
            }
        };
        contradiction(self.world_size == 0, "the world size is 0".into());
        contradiction(
            self.world_size > 0 && self.rank >= self.world_size,
            format!(
                "the rank is {}, but the world has {} ranks",
                self.rank, self.world_size
            ),
        );
        contradiction(
            self.local_rank >= self.local_size,
            format!(
                "the local rank is {}, but the host has {} ranks",
                self.local_rank, self.local_size
            ),
        );
        contradiction(
            self.world_size > 0 && self.local_size > self.world_size,
            format!(
                "the host has {} ranks, but the world only {}",
                self.local_size, self.world_size
            ),
        );
        let open = self.world_size > 1 && !self.master_addr.is_empty();
        contradiction(
            open && !is_loopback(&self.master_addr) && self.secret.is_empty(),
            format!(
                "MASTER_ADDR is {}, which other hosts can reach, and BURN_DIST_SECRET is not set: set it to the same words on every host",
                self.master_addr
            ),
        );
    }
}

fn launcher(reader: &Reader<'_>) -> Launcher {
    let any = |names: &[&str]| names.iter().any(|name| reader.text(name).is_some());
    if any(&["RANK", "WORLD_SIZE"]) {
        Launcher::Torchrun
    } else if any(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]) {
        Launcher::OpenMpi
    } else if any(&["SLURM_PROCID"]) && any(&["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"]) {
        Launcher::Slurm
    } else {
        Launcher::Plain
    }
}

/// Whether a host name or address stays on this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// This rank, as the launcher's variables say; `None` without any.
///
/// # Errors
/// [`DistError::Environment`] with everything that is missing or contradicts itself.
#[cfg(feature = "train")]
pub(crate) fn launched_rank() -> Result<Option<usize>> {
    let environment = Environment::read(&|name| std::env::var(name).ok())?;
    Ok((environment.launcher != Launcher::Plain).then_some(environment.rank))
}

#[cfg(test)]
mod tests;
