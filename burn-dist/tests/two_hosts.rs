//! Two hosts: the bits of one, an error when the link between them is cut, and who listens where.
//!
//! The hosts are network namespaces: `two_hosts/namespaces.rs` says what that needs. The program that
//! the launchers start is this test binary again: `rank_program` below.

mod launched;
#[path = "two_hosts/launcher.rs"]
mod launcher;
#[path = "two_hosts/namespaces.rs"]
mod namespaces;
#[path = "two_hosts/sockets.rs"]
mod sockets;
#[path = "two_hosts/steps.rs"]
mod steps;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use burn_dist::communicator::ReduceOp;
use burn_dist::{DistError, World};
use launched::{DEADLINE, assert_nothing_left, be_a_rank, burnrun, mark, run};
use launcher::Launcher;
use namespaces::{ADDRESSES, Hosts, assert_removed, skip};

/// Ranks on each host.
const PER_HOST: usize = 2;
const RANKS: usize = 2 * PER_HOST;

/// Free on hosts on which nothing else runs.
const PORT: &str = "29500";

/// `--step-timeout` of the ranks whose link is cut, in seconds.
const STEP_TIMEOUT: &str = "3";

/// Longest time from the cut to the launchers' end: the timeout, and what a launcher gives ranks to end.
const LONGEST_END: Duration = Duration::from_secs(3 + 6);

#[test]
fn rank_program() {
    be_a_rank(|behaviour| behave(behaviour).map(|()| 0));
}

/// Says so when it is dropped.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        println!("guard dropped");
    }
}

fn behave(behaviour: &str) -> burn_dist::Result<()> {
    let _guard = Guard;
    let world = World::from_env()?;
    let group = world.whole()?;
    match behaviour {
        "bits" => println!("hash {}", steps::hash(&group)?),
        "listeners" => {
            // Between the two all ranks are there.
            group.barrier()?;
            if world.rank() == 0 {
                for address in sockets::listening() {
                    println!("listens {address}");
                }
            }
            group.barrier()?;
        }
        "rounds" => {
            for round in 0.. {
                // The cut comes between calls or in the middle of one.
                let elements = [10, 100_000][round % 2];
                let sum = group.all_reduce_values(vec![1.0f32; elements], ReduceOp::Sum);
                if let Err(error) = sum {
                    let again = group.barrier().expect_err("the group has failed");
                    println!("again: {again}");
                    assert!(matches!(again, DistError::Poisoned { .. }), "{again}");
                    return Err(error);
                }
                println!("round {round}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        other => panic!("no behaviour {other:?}"),
    }
    Ok(())
}

/// A launcher of two, on its host; recordings are left in the folder.
fn node(hosts: &Hosts, host: usize, flags: &[&str], behaviour: &str, mark: &str) -> Command {
    let (rank, per_host) = (host.to_string(), PER_HOST.to_string());
    let mut all = vec!["--nnodes", "2", "--node-rank", &rank];
    all.extend(["--nproc-per-node", &per_host]);
    all.extend(["--master-addr", ADDRESSES[0], "--master-port", PORT]);
    all.extend(flags);
    let mut command = burnrun(&all, behaviour, mark);
    command.env("BURN_DIST_SECRET", "words");
    hosts.on(host, &command)
}

/// The hash that each rank printed, by rank.
fn hashes(out: &str, ranks: impl Iterator<Item = usize>) -> Vec<String> {
    let of_rank = |rank: usize| {
        let prefix = format!("[{rank}] ");
        let own = out.lines().filter(|line| line.starts_with(&prefix));
        let hash = own.filter_map(|line| line.split_once("hash ")).next();
        let hash = hash.unwrap_or_else(|| panic!("no hash of rank {rank}: {out}"));
        hash.1.to_string()
    };
    ranks.map(of_rank).collect()
}

#[test]
fn two_hosts_give_the_bits_of_one() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let mark = mark("bits");
    let before = [0, 1].map(|host| hosts.bytes_sent(host));
    let launchers = [0, 1].map(|host| Launcher::start(node(&hosts, host, &[], "bits", &mark)));
    let deadline = Instant::now() + DEADLINE;
    let mut apart = Vec::new();
    for (host, launcher) in launchers.into_iter().enumerate() {
        let (code, out, error) = launcher.finish(deadline);
        assert_eq!(code, Some(0), "host {host}: {error}");
        apart.extend(hashes(&out, host * PER_HOST..(host + 1) * PER_HOST));
    }
    for (host, before) in before.into_iter().enumerate() {
        let (sent, least) = (hosts.bytes_sent(host) - before, steps::least_sent(host));
        println!("host {host} sent {sent} bytes, at least {least} are needed");
        assert!(sent >= least, "host {host}: {sent} < {least}");
    }
    let flags = ["--nproc-per-node", &RANKS.to_string()];
    let (code, out, error) = run(&mut burnrun(&flags, "bits", &mark));
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(apart, hashes(&out, 0..RANKS));
    // Ranks get different parts and rows, so equal hashes would mean that nothing is hashed.
    assert_ne!(apart[0], apart[1]);
    assert_nothing_left(&mark);
    hosts.remove();
}

/// Ranks that a line names as lost or silent.
fn blamed(line: &str) -> Vec<usize> {
    let lists = ["no answer from rank(s) [", "lost rank(s) ["];
    let lists = lists.iter().filter_map(|words| line.split_once(words));
    let inside = lists.filter_map(|(_, list)| list.split_once(']'));
    let numbers = inside.flat_map(|(list, _)| list.split(", "));
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Whether a rank's line blames the other host: in its own words, or in those of a neighbour that met
/// it first.
fn blames_the_other_host(line: &str, rank: usize) -> bool {
    let host = rank / PER_HOST;
    blamed(line).iter().any(|other| other / PER_HOST != host)
}

/// Checks what the ranks of a host, whose link was cut, and their launcher have said.
fn check_end(host: usize, out: &str, error: &str) {
    for rank in host * PER_HOST..(host + 1) * PER_HOST {
        let own = format!("[{rank}] error: rank {rank}, group world, call ");
        let line = error.lines().find(|line| line.starts_with(&own));
        let line = line.unwrap_or_else(|| panic!("no error of rank {rank}: {error}"));
        assert!(blames_the_other_host(line, rank), "{line}");
        let again = format!("[{rank}] again: rank {rank}, group world: refused barrier");
        for words in [&again, &format!("[{rank}] guard dropped")] {
            let said = out.lines().any(|line| line.starts_with(words));
            assert!(said, "{words} is not in {out}");
        }
    }
    // The launcher's last words: who failed first, and below it that rank's own.
    let lines: Vec<&str> = error.lines().collect();
    let head = lines.iter().rposition(|line| !line.starts_with("  "));
    let (head, own) = lines.split_at(head.expect("a line") + 1);
    let head = head.last().expect("a line");
    let first = head.split_once(" failed first, with exit code 1");
    let first = first.and_then(|(who, _)| who.strip_prefix("rank ")?.parse().ok());
    let first: usize = first.unwrap_or_else(|| panic!("nobody is named last: {error}"));
    assert_eq!(first / PER_HOST, host, "{error}");
    let cause = |line: &&str| line.contains("error: ") && blames_the_other_host(line, first);
    assert!(own.iter().any(cause), "{error}");
}

#[test]
fn a_link_that_is_cut_is_an_error_that_names_the_ranks_behind_it() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let mark = mark("cut");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let flags = ["--step-timeout", STEP_TIMEOUT, "--flight-dir", path];
    let launchers = [0, 1].map(|host| Launcher::start(node(&hosts, host, &flags, "rounds", &mark)));
    let deadline = Instant::now() + DEADLINE;
    for rank in 0..RANKS {
        let launcher = &launchers[rank / PER_HOST];
        launcher.wait_for(&format!("[{rank}] round 5"), deadline);
    }
    let cut_at = Instant::now();
    if let Err(why) = hosts.cut() {
        return skip(&why);
    }
    for (host, launcher) in launchers.into_iter().enumerate() {
        let (code, out, error) = launcher.finish(cut_at + LONGEST_END);
        assert_eq!(code, Some(1), "host {host}: {error}");
        check_end(host, &out, &error);
        assert_eq!(hosts.processes(host), [0; 0], "left on host {host}");
    }
    assert_nothing_left(&mark);
    hosts.remove();
}

/// Where the launcher and two ranks on host 0 listen; it must be alone there.
fn listeners(hosts: &Hosts, flags: &[&str]) -> Vec<IpAddr> {
    let mark = mark("listeners");
    let flags = [&["--nproc-per-node", "2"], flags].concat();
    let mut command = burnrun(&flags, "listeners", &mark);
    command.env("BURN_DIST_SECRET", "words");
    let (code, out, error) = run(&mut hosts.on(0, &command));
    assert_eq!(code, Some(0), "{error}");
    let said = out.lines().filter_map(|line| line.split_once("listens "));
    let addresses: Vec<IpAddr> = said
        .map(|(_, address)| address.parse::<SocketAddr>().expect("an address").ip())
        .collect();
    // The launcher's store and both ranks: else the list has a gap, and its check sees nothing.
    assert!(addresses.len() >= 3, "{out}");
    assert_nothing_left(&mark);
    addresses
}

#[test]
fn nothing_listens_outside_loopback_unless_asked() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let addresses = listeners(&hosts, &[]);
    assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
    // Asked to meet at an address, they listen there and nowhere else.
    let addresses = listeners(&hosts, &["--master-addr", ADDRESSES[0]]);
    let asked: IpAddr = ADDRESSES[0].parse().expect("an address");
    assert!(addresses.iter().all(|a| *a == asked), "{addresses:?}");
    hosts.remove();
}

#[test]
fn hosts_go_after_a_panic_with_what_runs_on_them() {
    let Some(hosts) = Hosts::new() else {
        return;
    };
    let names = hosts.names();
    let mut command = Command::new("sh");
    command.args(["-c", "echo asleep; sleep 600"]);
    let sleep = Launcher::start(hosts.on(0, &command));
    let deadline = Instant::now() + DEADLINE;
    sleep.wait_for("asleep", deadline);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _hosts = hosts;
        // As a panic does, but without a word.
        std::panic::resume_unwind(Box::new("a failed test"));
    }));
    assert!(panic.is_err());
    assert_removed(&names);
    let (code, _, _) = sleep.finish(deadline);
    assert_eq!(code, None, "it ends by a signal");
}
