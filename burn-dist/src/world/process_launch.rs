//! [`ProcessLaunch`]: what to start, and how.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::OutputStyle;
use super::environment::is_loopback;
use crate::error::{DistError, Result};

/// Most ranks of a world.
const MAX_RANKS: usize = 1 << 16;

/// A program to be started as ranks of this host.
#[derive(Debug, Clone)]
pub struct ProcessLaunch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(OsString, OsString)>,
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    pub(super) node_rank: usize,
    pub(super) master_addr: String,
    pub(super) master_port: u16,
    pub(super) startup_timeout: Option<Duration>,
    pub(super) step_timeout: Option<Duration>,
    pub(super) output: OutputStyle,
    pub(super) flight_folder: Option<PathBuf>,
}

impl ProcessLaunch {
    /// One rank of `program` on one host.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            ranks: 1,
            nodes: 1,
            node_rank: 0,
            master_addr: "127.0.0.1".into(),
            master_port: 0,
            startup_timeout: None,
            step_timeout: None,
            output: OutputStyle::default(),
            flight_folder: None,
        }
    }

    /// Adds an argument of the program.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().into());
        self
    }

    /// Adds arguments of the program.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let arguments = arguments.into_iter().map(|a| a.as_ref().to_os_string());
        self.arguments.extend(arguments);
        self
    }

    /// Sets a variable in the program's environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables
            .push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Number of ranks on this host.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// Number of hosts and this host's number; every host starts as many ranks.
    pub fn nodes(mut self, nodes: usize, node_rank: usize) -> Self {
        self.nodes = nodes;
        self.node_rank = node_rank;
        self
    }

    /// Where the world meets: an address of host 0 and a port, 0 for a free one on a single host.
    pub fn master(mut self, address: impl Into<String>, port: u16) -> Self {
        self.master_addr = address.into();
        self.master_port = port;
        self
    }

    /// Longest wait for other ranks to arrive; the program's own by default.
    pub fn startup_timeout(mut self, timeout: Duration) -> Self {
        self.startup_timeout = Some(timeout);
        self
    }

    /// Longest wait for other ranks within a call; the program's own by default.
    pub fn step_timeout(mut self, timeout: Duration) -> Self {
        self.step_timeout = Some(timeout);
        self
    }

    /// What becomes of the ranks' output.
    pub fn output(mut self, output: OutputStyle) -> Self {
        self.output = output;
        self
    }

    /// Where ranks write their last calls when one fails or on SIGUSR1; recordings of these ranks that
    /// are there from before are removed. By default a new folder among the temporary files.
    pub fn flight_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.flight_folder = Some(folder.into());
        self
    }

    /// `has_secret`: whether BURN_DIST_SECRET is set.
    pub(super) fn check(&self, has_secret: bool) -> Result<()> {
        let refuse = |problem: String, hint: &str| Err(DistError::config(problem, hint));
        if self.ranks == 0 || self.nodes == 0 {
            return refuse(
                format!("{} ranks on each of {} nodes", self.ranks, self.nodes),
                "start at least one on one",
            );
        }
        let world = self.ranks.checked_mul(self.nodes);
        if world.is_none_or(|world| world > MAX_RANKS) {
            return refuse(
                format!("{} ranks on each of {} nodes", self.ranks, self.nodes),
                "start at most 65536 in all",
            );
        }
        if self.node_rank >= self.nodes {
            return refuse(
                format!("node rank {} of {} nodes", self.node_rank, self.nodes),
                "node ranks count from 0",
            );
        }
        if self.nodes > 1 && self.master_port == 0 {
            return refuse(
                format!("{} nodes and no --master-port", self.nodes),
                "give the same port on every node",
            );
        }
        let open = self.nodes > 1 || !is_loopback(&self.master_addr);
        if open && !has_secret {
            return refuse(
                format!(
                    "the world meets at {} with {} nodes, and BURN_DIST_SECRET is not set",
                    self.master_addr, self.nodes
                ),
                "set it to the same words on every node",
            );
        }
        Ok(())
    }
}

/// For ranks that were given none.
pub(super) fn random_secret() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        DistError::config(
            format!("the system has no random bytes for a secret: {error}"),
            "set BURN_DIST_SECRET yourself",
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
