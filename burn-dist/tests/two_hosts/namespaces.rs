//! [`Hosts`]: two network namespaces as two hosts, joined by a slow link that can be cut.
//!
//! Needs root, `ip` and `tc` of iproute2, and for the cut `iptables` or `nft`. Where something is
//! missing a test is skipped; where `CI` is `true` and the user is root it fails instead, as nobody
//! would see there that it was skipped.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Addresses of the two hosts on their link. Only the namespaces see them.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// The link's end on each host.
const DEVICE: &str = "veth0";

const DELAY_AND_RATE: [&str; 5] = ["netem", "delay", "2ms", "rate", "400mbit"];

/// For kernels without netem.
const RATE: [&str; 7] = [
    "tbf", "rate", "400mbit", "burst", "256kb", "latency", "50ms",
];

const PACKET_FILTERS: [&str; 2] = ["iptables", "nft"];

/// Hosts measure time, and a launch needs all cores: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Fixtures of this process so far.
static FIXTURES: AtomicUsize = AtomicUsize::new(0);

/// Two hosts with a link between them. Dropped, also by a panic, they are gone with all their
/// processes.
pub(crate) struct Hosts {
    names: [String; 2],
    _turn: MutexGuard<'static, ()>,
}

impl Hosts {
    /// `None` where they cannot be made, after saying why.
    pub(crate) fn new() -> Option<Self> {
        match missing().map_or_else(Self::build, Err) {
            Ok(hosts) => Some(hosts),
            Err(why) => {
                skip(&why);
                None
            }
        }
    }

    fn build() -> Result<Self, String> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = FIXTURES.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // From here on a failure removes what there is so far.
        let hosts = Self {
            names: [0, 1].map(|host| format!("burn-dist-{process}-{number}-host{host}")),
            _turn: turn,
        };
        let [first, second] = &hosts.names;
        for name in &hosts.names {
            call("ip", &["netns", "add", name])?;
        }
        call(
            "ip",
            &[
                "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE,
                "netns", second,
            ],
        )?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            call("ip", &["-n", name, "addr", "add", &address, "dev", DEVICE])?;
            call("ip", &["-n", name, "link", "set", DEVICE, "up"])?;
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        hosts.slow_down()?;
        Ok(hosts)
    }

    /// Gives the link a delay and a rate, or what the kernel has of it.
    fn slow_down(&self) -> Result<(), String> {
        let shape = |how: &[&str]| {
            let of_one = |host: usize| {
                let words = ["tc", "qdisc", "replace", "dev", DEVICE, "root"];
                self.call_on(host, &[&words[..], how].concat())
            };
            of_one(0).and_then(|_| of_one(1))
        };
        let Err(no_netem) = shape(&DELAY_AND_RATE) else {
            return Ok(());
        };
        let Err(no_tbf) = shape(&RATE) else {
            say(&format!(
                "note: the link has a rate, but no delay: {no_netem}"
            ));
            return Ok(());
        };
        let why = format!("the link has neither delay nor rate: {no_netem}; {no_tbf}");
        match must_run() {
            true => Err(why),
            false => {
                say(&format!("note: {why}"));
                Ok(())
            }
        }
    }

    /// The same command on a host, its input closed and its output piped.
    pub(crate) fn on(&self, host: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", &self.names[host]])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    fn call_on(&self, host: usize, words: &[&str]) -> Result<String, String> {
        let exec = ["netns", "exec", &self.names[host]];
        call("ip", &[&exec[..], words].concat())
    }

    /// Bytes that a host has sent over the link.
    pub(crate) fn bytes_sent(&self, host: usize) -> u64 {
        let file = format!("/sys/class/net/{DEVICE}/statistics/tx_bytes");
        let text = self.call_on(host, &["cat", &file]).expect("a counter");
        text.trim().parse().expect("a number")
    }

    /// Drops every packet of the link from now on, in both directions and without a word to either
    /// side.
    pub(crate) fn cut(&self) -> Result<(), String> {
        let iptables = [
            format!("iptables -A INPUT -i {DEVICE} -j DROP"),
            format!("iptables -A OUTPUT -o {DEVICE} -j DROP"),
        ];
        let nft = [
            "nft add table inet cut".to_string(),
            "nft add chain inet cut from { type filter hook input priority 0 ; }".to_string(),
            "nft add chain inet cut to { type filter hook output priority 0 ; }".to_string(),
            format!("nft add rule inet cut from iifname {DEVICE} drop"),
            format!("nft add rule inet cut to oifname {DEVICE} drop"),
        ];
        let all = |lines: &[String]| -> Result<(), String> {
            for line in lines {
                let words: Vec<&str> = line.split(' ').collect();
                self.call_on(1, &words)?;
            }
            Ok(())
        };
        all(&iptables).or_else(|no_iptables| {
            all(&nft).map_err(|no_nft| format!("no packet filter: {no_iptables}; {no_nft}"))
        })
    }

    /// Processes that run on a host.
    pub(crate) fn processes(&self, host: usize) -> Vec<i32> {
        processes(&self.names[host])
    }

    /// Removes the hosts, and fails if something of them stays.
    pub(crate) fn remove(self) {
        let names = self.names.clone();
        drop(self);
        assert_removed(&names);
    }

    /// To look for them when they should be gone.
    pub(crate) fn names(&self) -> [String; 2] {
        self.names.clone()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            for process in processes(name) {
                // One that has just ended is what we want.
                if let Some(process) = Pid::from_raw(process) {
                    let _ = kill_process(process, Signal::KILL);
                }
            }
            // The link goes with either end. Hosts that were not made yet cannot be removed.
            let _ = call("ip", &["netns", "del", name]);
        }
    }
}

fn processes(name: &str) -> Vec<i32> {
    let list = call("ip", &["netns", "pids", name]).unwrap_or_default();
    list.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// Fails if one of these namespaces is there.
pub(crate) fn assert_removed(names: &[String; 2]) {
    let list = call("ip", &["netns", "list"]).expect("a list");
    let left = |line: &&str| {
        let name = line.split(' ').next();
        names.iter().any(|removed| name == Some(removed))
    };
    let left: Vec<&str> = list.lines().filter(left).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// What stands in the way of two hosts.
fn missing() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !geteuid().is_root() {
        return Some("only root can make network namespaces".into());
    }
    let absent: Vec<&str> = ["ip", "tc"].into_iter().filter(|p| !found(p)).collect();
    if !absent.is_empty() {
        let programs = absent.join(" and ");
        return Some(format!("there is no {programs}: install iproute2"));
    }
    let filter = PACKET_FILTERS.iter().any(found);
    (!filter).then(|| format!("there is none of {PACKET_FILTERS:?}: install one"))
}

fn must_run() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true") && geteuid().is_root()
}

/// Says that a test cannot run here.
///
/// # Panics
/// Where tests must run.
pub(crate) fn skip(why: &str) {
    assert!(!must_run(), "CI is true, and a test cannot run: {why}");
    say(&format!("skipped: {why}"));
}

/// Writes a line that is seen of tests that pass, too: `println` is not.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Output of a command that ends by itself, or what it says about its failure.
fn call(program: &str, arguments: &[&str]) -> Result<String, String> {
    let line = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", line()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let error = String::from_utf8_lossy(&output.stderr);
            let error: Vec<&str> = error.lines().map(str::trim).collect();
            Err(format!("{}: {}", line(), error.join(" ")))
        }
    }
}
