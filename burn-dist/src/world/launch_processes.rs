//! [`launch_processes`]: ranks as processes of this host.
#![allow(unsafe_code)]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::launch_signals::LaunchSignals;
use super::output::{LastLines, Stream};
use super::process_launch::random_secret;
use super::terminal_state::TerminalState;
use super::{ExitReport, ProcessLaunch, StoreServer, flight_signal};
use crate::error::{DistError, Result};

/// Time that ranks have to end by themselves after they were asked to.
const GRACE: Duration = Duration::from_secs(3);

/// Longest wait for output that is still on its way when all ranks have ended.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// After a first failure, ranks that fail within this time are looked at too: the one whose own
/// failure it was is named, rather than one that met it a moment earlier.
const TOGETHER: Duration = Duration::from_millis(300);

/// Time that ranks have to write their last calls before they are asked to end.
const RECORDING: Duration = Duration::from_millis(150);

/// How far the ranks' end has come.
#[derive(Debug, Clone, Copy)]
enum End {
    NotYet,
    TermAt(Instant),
    KillAt(Instant),
}

/// Starts the ranks of this host and waits for all of them.
///
/// Host 0's launcher serves the store: it outlives the ranks, so a free port has no race. When a rank
/// fails, the others are asked to end, and killed after three seconds; its last lines are printed
/// last. So are they all when this process gets SIGINT, SIGTERM or SIGHUP; and they are killed by the
/// system when this process is killed (what they started themselves may then stay). Call it from a
/// thread that lives as long as the ranks.
///
/// # Errors
/// [`DistError::Config`] for options that cannot work, [`DistError::AddressInUse`], and
/// [`DistError::File`] if the program cannot be started. A rank that fails is not an error here: see
/// [`ExitReport`].
pub fn launch_processes(launch: &ProcessLaunch) -> Result<ExitReport> {
    let own_secret = std::env::var("BURN_DIST_SECRET").ok();
    let own_secret = own_secret.filter(|secret| !secret.is_empty());
    launch.check(own_secret.is_some())?;
    let secret = match own_secret {
        Some(secret) => secret,
        None => random_secret()?,
    };
    let server = match launch.node_rank {
        0 => Some(StoreServer::bind(
            &launch.master_addr,
            launch.master_port,
            &secret,
        )?),
        _ => None,
    };
    let port = server
        .as_ref()
        .map_or(launch.master_port, |server| server.address().port());
    let signals = LaunchSignals::listen()?;
    let folder = launch.flight_folder.clone();
    let folder = folder.unwrap_or_else(|| flight_signal::folder(std::process::id()));
    let first_rank = launch.node_rank * launch.ranks;
    flight_signal::clear(&folder, first_rank..first_rank + launch.ranks);
    let mut ranks = Ranks::new(first_rank, folder);
    for local_rank in 0..launch.ranks {
        if signals.received().is_some() {
            break;
        }
        // On failure the ranks that did start end with `ranks`.
        ranks.start(launch, local_rank, port, &secret)?;
    }
    let terminal = TerminalState::of(launch.output);
    let report = ranks.wait(&signals, terminal.as_ref());
    drop(server);
    Ok(report)
}

/// The processes that were started and have not been waited for.
struct Ranks {
    /// With what they started, but for one that has the terminal.
    groups: Vec<Pid>,
    /// It must be of the group that the terminal listens to, which is the launcher's.
    has_terminal: Option<Pid>,
    owns_terminal: bool,
    last_lines: Vec<LastLines>,
    first_rank: usize,
    flight_folder: PathBuf,
    outputs: Vec<JoinHandle<()>>,
    running: usize,
    ended: Receiver<(usize, ExitStatus)>,
    report_end: Sender<(usize, ExitStatus)>,
}

impl Ranks {
    fn new(first_rank: usize, flight_folder: PathBuf) -> Self {
        let (report_end, ended) = channel();
        Self {
            groups: Vec::new(),
            has_terminal: None,
            owns_terminal: false,
            last_lines: Vec::new(),
            first_rank,
            flight_folder,
            outputs: Vec::new(),
            running: 0,
            ended,
            report_end,
        }
    }

    fn start(
        &mut self,
        launch: &ProcessLaunch,
        local_rank: usize,
        port: u16,
        secret: &str,
    ) -> Result<()> {
        let rank = self.first_rank + local_rank;
        let failure = |error: std::io::Error| DistError::File {
            path: launch.program.display().to_string(),
            problem: format!("rank {rank} cannot be started: {error}"),
        };
        let mut child = command(launch, rank, local_rank, port, secret)
            .env("BURN_DIST_FLIGHT_DIR", &self.flight_folder)
            .spawn()
            .map_err(failure)?;
        let process =
            Pid::from_raw(child.id() as i32).expect("invariant: a process has a positive number");
        match launch.output.owns_terminal(rank) {
            true => (self.has_terminal, self.owns_terminal) = (Some(process), true),
            false => self.groups.push(process),
        }
        self.running += 1;
        let last = LastLines::default();
        self.last_lines.push(last.clone());
        let style = launch.output;
        if let Some(out) = child.stdout.take() {
            self.outputs.push(
                style
                    .forward(rank, Stream::Out, out, last.clone())
                    .map_err(failure)?,
            );
        }
        if let Some(error) = child.stderr.take() {
            self.outputs.push(
                style
                    .forward(rank, Stream::Error, error, last)
                    .map_err(failure)?,
            );
        }
        let report_end = self.report_end.clone();
        std::thread::Builder::new()
            .name(format!("wait {rank}"))
            .spawn(move || wait_for(child, local_rank, &report_end))
            .map_err(failure)?;
        Ok(())
    }

    /// Waits for all ranks; ends them when one fails or a signal comes.
    fn wait(&mut self, signals: &LaunchSignals, terminal: Option<&TerminalState>) -> ExitReport {
        let mut failed: Vec<(usize, ExitStatus)> = Vec::new();
        let mut look_until: Option<Instant> = None;
        let mut signal = None;
        let mut end = End::NotYet;
        while self.running > 0 {
            match self.ended.recv_timeout(Duration::from_millis(20)) {
                Ok((local_rank, status)) => {
                    self.running -= 1;
                    // Its number may be somebody else's from now on.
                    self.has_terminal = self.has_terminal.filter(|_| local_rank > 0);
                    let now = Instant::now();
                    if !status.success() && signal.is_none() {
                        let until = *look_until.get_or_insert(now + TOGETHER);
                        // Later ones end because they were asked to.
                        if now <= until {
                            failed.push((local_rank, status));
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            signal = signal.or_else(|| signals.received());
            let now = Instant::now();
            if signals.asked.swap(false, Ordering::AcqRel) {
                self.ask_for_recordings();
            }
            end = match end {
                End::NotYet if look_until.is_some_and(|t| now > t) || signal.is_some() => {
                    // Those that run still know what the others were waiting for.
                    self.ask_for_recordings();
                    End::TermAt(now + RECORDING)
                }
                End::TermAt(at) if now >= at => {
                    self.signal_all(Signal::TERM);
                    End::KillAt(now + GRACE)
                }
                End::KillAt(at) if now >= at => {
                    self.signal_all(Signal::KILL);
                    End::KillAt(now + GRACE)
                }
                end => end,
            };
        }
        self.end();
        if let Some(terminal) = terminal {
            terminal.restore();
        }
        // A rank that a signal ended may be reported after those that met its end.
        let by_signal = failed.iter().find(|(_, status)| status.signal().is_some());
        let own = failed
            .iter()
            .find(|(rank, _)| !self.met_a_peers_failure(*rank));
        let own = by_signal.or(own);
        let first = own.or(failed.first()).copied();
        self.say(first, signal)
    }

    /// Of one that wrote to the terminal nobody knows; others are looked at first.
    fn met_a_peers_failure(&self, local_rank: usize) -> bool {
        if self.owns_terminal && local_rank == 0 {
            return true;
        }
        let last = self.last_lines[local_rank].lock();
        let last = last.expect("invariant: no panic under this lock");
        last.iter()
            .any(|line| DistError::line_comes_from_a_peer(line))
    }

    fn ask_for_recordings(&self) {
        for &process in self.groups.iter().chain(&self.has_terminal) {
            flight_signal::ask(process);
        }
    }

    fn recordings(&self) -> String {
        let folder = &self.flight_folder;
        let is_recording = |file: std::io::Result<std::fs::DirEntry>| {
            file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("rank-"))
        };
        let any = std::fs::read_dir(folder).is_ok_and(|mut files| files.any(is_recording));
        match any {
            true => format!(
                "the ranks' last calls are in {folder}; to see who was behind: burnrun diagnose {folder}\n",
                folder = folder.display()
            ),
            false => String::new(),
        }
    }

    fn signal_all(&self, signal: Signal) {
        for &group in &self.groups {
            // A group that has ended is what we want.
            let _ = kill_process_group(group, signal);
        }
        if let Some(process) = self.has_terminal {
            let _ = kill_process(process, signal);
        }
    }

    /// Kills what the ranks left behind, and lets their last lines through.
    fn end(&mut self) {
        self.signal_all(Signal::KILL);
        let deadline = Instant::now() + LAST_OUTPUT;
        for output in self.outputs.drain(..) {
            while !output.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn say(&self, first: Option<(usize, ExitStatus)>, signal: Option<usize>) -> ExitReport {
        if let Some((local_rank, status)) = first {
            let rank = self.first_rank + local_rank;
            let (how, code) = match (status.code(), status.signal()) {
                (Some(code), _) => (format!("exit code {code}"), code as u8),
                (None, Some(signal)) => (format!("signal {signal}"), 128 + signal as u8),
                (None, None) => ("an unknown status".into(), 1),
            };
            let last = self.last_lines[local_rank].lock();
            let last = last.expect("invariant: no panic under this lock");
            let mut text = self.recordings();
            let words = match last.is_empty() {
                // It wrote there itself.
                true if local_rank == 0 && self.owns_terminal => "; see above",
                true => "; it said nothing more",
                false => "; its last words:",
            };
            text += &format!("rank {rank} failed first, with {how}{words}\n");
            for line in last.iter() {
                text += &format!("  {line}\n");
            }
            Stream::Error.write(text.as_bytes());
            return ExitReport {
                code,
                failed_rank: Some(rank),
            };
        }
        if let Some(signal) = signal {
            let text = self.recordings() + &format!("ended all ranks on signal {signal}\n");
            Stream::Error.write(text.as_bytes());
        }
        ExitReport {
            code: signal.map_or(0, |signal| 128 + signal as u8),
            failed_rank: None,
        }
    }
}

impl Drop for Ranks {
    /// Leaves no process behind, whatever way the launch ends.
    fn drop(&mut self) {
        if self.running > 0 {
            self.signal_all(Signal::KILL);
        }
    }
}

fn wait_for(mut child: Child, local_rank: usize, report_end: &Sender<(usize, ExitStatus)>) {
    let status = child
        .wait()
        .unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
    // The launcher may have given up waiting.
    let _ = report_end.send((local_rank, status));
}

fn command(
    launch: &ProcessLaunch,
    rank: usize,
    local_rank: usize,
    port: u16,
    secret: &str,
) -> Command {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", (launch.nodes * launch.ranks).to_string())
        .env("LOCAL_RANK", local_rank.to_string())
        .env("LOCAL_WORLD_SIZE", launch.ranks.to_string())
        .env("MASTER_ADDR", &launch.master_addr)
        .env("MASTER_PORT", port.to_string())
        .env("BURN_DIST_SECRET", secret)
        .env("BURN_DIST_STORE", "external")
        .stdout(launch.output.stdio(rank, Stream::Out))
        .stderr(launch.output.stdio(rank, Stream::Error));
    if !launch.output.owns_terminal(rank) {
        // A group of its own, so that what a rank starts ends with it.
        command.stdin(Stdio::null()).process_group(0);
    }
    let timeouts = [
        ("BURN_DIST_STARTUP_TIMEOUT", launch.startup_timeout),
        ("BURN_DIST_STEP_TIMEOUT", launch.step_timeout),
    ];
    for (name, timeout) in timeouts {
        if let Some(timeout) = timeout {
            command.env(name, timeout.as_secs_f64().to_string());
        }
    }
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / launch.ranks).max(1);
        command.env("RAYON_NUM_THREADS", threads.to_string());
    }
    for (name, value) in &launch.variables {
        command.env(name, value);
    }
    let launcher = rustix::process::getpid();
    // SAFETY: the closure runs in the child between fork and exec and only makes two system calls,
    // prctl and getppid; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The launcher may have died before the line above.
            match rustix::process::getppid() == Some(launcher) {
                true => Ok(()),
                false => Err(std::io::Error::from_raw_os_error(
                    rustix::io::Errno::CHILD.raw_os_error(),
                )),
            }
        });
    }
    command
}
