//! [`LaunchSignals`]: what a launcher is told by signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::{DistError, Result};

/// The signals that end a launch.
pub(super) struct LaunchSignals {
    last: Arc<AtomicUsize>,
    /// Somebody wants the ranks' last calls.
    pub(super) asked: Arc<AtomicBool>,
    registered: Vec<signal_hook::SigId>,
}

impl LaunchSignals {
    pub(super) fn listen() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        let mut this = Self {
            last: Arc::new(AtomicUsize::new(0)),
            asked: Arc::new(AtomicBool::new(false)),
            registered: Vec::new(),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let id = signal_hook::flag::register_usize(signal, this.last.clone(), signal as usize);
            this.registered.push(id.map_err(|e| unwatched(signal, &e))?);
        }
        let id = signal_hook::flag::register(SIGUSR1, this.asked.clone());
        this.registered
            .push(id.map_err(|e| unwatched(SIGUSR1, &e))?);
        Ok(this)
    }

    pub(super) fn received(&self) -> Option<usize> {
        Some(self.last.load(Ordering::Acquire)).filter(|&signal| signal != 0)
    }
}

fn unwatched(signal: i32, error: &std::io::Error) -> DistError {
    DistError::config(
        format!("signal {signal} cannot be watched: {error}"),
        "start the ranks from another program",
    )
}

impl Drop for LaunchSignals {
    fn drop(&mut self) {
        for &id in &self.registered {
            signal_hook::low_level::unregister(id);
        }
    }
}
