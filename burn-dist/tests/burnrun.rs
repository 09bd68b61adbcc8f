//! `burnrun` with real processes: output, first failure, signals, nothing left behind.
//!
//! The program that it starts is this test binary again: `rank_program` below, which does nothing
//! unless `TEST_BEHAVIOUR` tells it what to do.

mod launched;
#[path = "../../examples/test_programs/terminal.rs"]
mod terminal;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use burn_dist::World;
use burn_dist::communicator::ReduceOp;
use launched::{assert_nothing_left, be_a_rank, burnrun, end_of, finish, mark, run};
use terminal::Terminal;

#[test]
fn a_dashboard_has_the_terminal_to_itself() {
    let mark = mark("dashboard");
    let flags = ["--nproc-per-node", "3", "--dashboard"];
    let mut terminal = Terminal::start(&burnrun(&flags, "rank 0 asks", &mark));
    terminal.wait_until("question", |terminal| {
        terminal.text().contains("your name?")
    });
    terminal.press("Burn\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("hello Burn"), "{text}");
    assert!(!text.contains("noise"), "{text}");
    // Others are heard when they fail, and rank 0, which waits, ends with them.
    let terminal = Terminal::start(&burnrun(&flags, "rank 1 fails", &mark));
    let (code, text) = terminal.end();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("something is wrong here"), "{text}");
    // It is heard at once.
    let terminal = Terminal::start(&burnrun(&flags, "rank 0 fails", &mark));
    let (code, text) = terminal.end();
    assert_eq!(code, Some(4), "{text}");
    let (said, report) = text.split_once("out of luck").expect("rank 0's words");
    assert!(!said.contains("failed first"), "{text}");
    assert!(
        report.contains("rank 0 failed first, with exit code 4; see above"),
        "{text}"
    );
    assert_nothing_left(&mark);
    // Where there is no terminal, all are heard.
    let (code, out, _) = run(&mut burnrun(&flags, "rank 0 asks", &mark));
    assert_eq!(code, Some(0));
    assert!(
        out.contains("hello") && out.contains("[1] noise of rank 1"),
        "{out}"
    );
}

#[test]
fn rank_program() {
    be_a_rank(behave);
}

fn behave(behaviour: &str) -> burn_dist::Result<i32> {
    let rank: usize = std::env::var("RANK")
        .ok()
        .and_then(|rank| rank.parse().ok())
        .expect("burnrun sets RANK");
    let long = Duration::from_secs(600);
    match behaviour {
        "sum" => {
            let world = World::from_env()?;
            let group = world.whole()?;
            let sum = group.all_reduce_values(vec![rank as u32], ReduceOp::Sum)?[0];
            let threads = std::env::var("RAYON_NUM_THREADS").unwrap_or_default();
            println!("sum {sum} of {} with {threads} threads", group.size());
        }
        "rank 0 asks" if rank == 0 => {
            println!("your name?");
            let mut name = String::new();
            std::io::stdin().read_line(&mut name).expect("an answer");
            println!("hello {}", name.trim());
        }
        "rank 0 asks" => println!("noise of rank 1"),
        "rank 0 fails" if rank == 0 => {
            eprintln!("out of luck");
            return Ok(4);
        }
        "rank 0 fails" => std::thread::sleep(long),
        "rank 1 fails" if rank == 1 => {
            eprintln!("something is wrong here");
            return Ok(3);
        }
        "rank 1 fails" => std::thread::sleep(long),
        "rank 1 is killed" if rank == 1 => {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
        "rank 1 is killed" => std::thread::sleep(long),
        "sleep" => {
            println!("asleep");
            std::thread::sleep(long);
        }
        "rank 1 stays away" if rank == 1 => std::thread::sleep(long),
        "rank 1 has another secret" if rank == 1 => {
            let status = Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "rank_program", "--nocapture"])
                .env("BURN_DIST_SECRET", "another")
                .env("TEST_BEHAVIOUR", "sum")
                .status()
                .expect("started");
            return Ok(status.code().unwrap_or(1));
        }
        "rank 1 stays away" | "rank 1 has another secret" => {
            World::from_env()?.whole()?;
        }
        "rank 1 panics" => {
            let group = World::from_env()?.whole()?;
            group.barrier()?;
            assert!(rank != 1, "out of luck");
            group.barrier()?;
        }
        "rank 1 leaves before the third all-reduce" => {
            let group = World::from_env()?.whole()?;
            for call in 0..3 {
                if rank == 1 && call == 2 {
                    std::process::exit(0);
                }
                let result = group.all_reduce_values(vec![1u32], ReduceOp::Sum);
                if let Err(error) = result {
                    let again = group.barrier();
                    println!("call {call}: {error}");
                    println!("again: {}", again.expect_err("the group has failed"));
                    // A neighbour may pass the news on before this rank's own connection ends.
                    let names_it = error.to_string().contains("lost rank(s) [1]");
                    assert!(names_it && error.comes_from_a_peer(), "{error}");
                }
            }
        }
        other => panic!("no behaviour {other:?}"),
    }
    Ok(0)
}

#[test]
fn the_doctor_finds_what_is_here_and_does_not_fail_without_a_gpu() {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    let output = doctor.arg("doctor").output().expect("burnrun runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let subjects: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split("  ").next())
        .collect();
    for subject in [
        "burn-dist",
        "memory",
        "launcher",
        "CUDA driver",
        "NCCL",
        "MPI",
    ] {
        assert!(subjects.contains(&subject), "{text}");
    }
    doctor.arg("now");
    assert_eq!(
        doctor.output().expect("burnrun runs").status.code(),
        Some(2)
    );
}

#[test]
fn ranks_meet_and_their_lines_carry_their_number() {
    let mark = mark("sum");
    let (code, out, error) = run(&mut burnrun(&["--nproc-per-node", "3"], "sum", &mark));
    assert_eq!(code, Some(0), "{error}");
    for rank in 0..3 {
        assert!(
            out.contains(&format!("[{rank}] sum 3 of 3 with 1 threads")),
            "{out}"
        );
    }
    assert!(out.lines().all(|line| line.starts_with('[')), "{out}");
    assert_nothing_left(&mark);
}

#[test]
fn the_first_failing_rank_ends_all_and_is_printed_last() {
    let mark = mark("fails");
    let flags = ["--nproc_per_node", "3"];
    let (code, _, error) = run(&mut burnrun(&flags, "rank 1 fails", &mark));
    assert_eq!(code, Some(3));
    let last: Vec<&str> = error.lines().rev().take(2).collect();
    assert!(
        last[1].contains("rank 1 failed first, with exit code 3"),
        "{error}"
    );
    assert!(last[0].contains("something is wrong here"), "{error}");
    assert_nothing_left(&mark);
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let mark = mark("killed");
    let flags = ["--nproc-per-node", "2"];
    let (code, _, error) = run(&mut burnrun(&flags, "rank 1 is killed", &mark));
    assert_eq!(code, Some(128 + 9));
    assert!(
        error.contains("rank 1 failed first, with signal 9"),
        "{error}"
    );
    assert_nothing_left(&mark);
}

#[test]
fn a_panic_is_named_rather_than_those_who_met_it() {
    for attempt in 0..3 {
        let mark = mark(&format!("panics-{attempt}"));
        let flags = ["--nproc-per-node", "3"];
        let (code, _, error) = run(&mut burnrun(&flags, "rank 1 panics", &mark));
        assert_eq!(code, Some(101), "{error}");
        let (_, last) = error
            .split_once("failed first")
            .unwrap_or_else(|| panic!("nobody is named: {error}"));
        assert!(last.contains("out of luck"), "{error}");
        assert_nothing_left(&mark);
    }
}

fn end_by(signal: rustix::process::Signal, name: &str) -> Option<i32> {
    use std::io::{BufRead, BufReader, Read};
    let mark = mark(name);
    let mut child = burnrun(&["--nproc-per-node", "2"], "sleep", &mark)
        .spawn()
        .expect("burnrun starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut asleep = 0;
    while asleep < 2 {
        let mut line = String::new();
        assert!(out.read_line(&mut line).expect("text") > 0, "ended early");
        asleep += usize::from(line.contains("asleep"));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("ours");
    let status = end_of(&mut child);
    assert_nothing_left(&mark);
    // Ends when the last process that could write to it has ended.
    let _ = out.read_to_string(&mut String::new());
    status.code()
}

#[test]
fn signals_to_the_launcher_leave_no_process() {
    use rustix::process::Signal;
    assert_eq!(end_by(Signal::TERM, "term"), Some(128 + 15));
    assert_eq!(end_by(Signal::INT, "int"), Some(128 + 2));
    assert_eq!(end_by(Signal::KILL, "kill"), None);
}

#[test]
fn what_a_rank_started_ends_with_it() {
    let mark = mark("grandchildren");
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    let (code, _, _) = run(command
        .args(["--nproc-per-node", "2", "--", "sh", "-c"])
        .arg("sleep 600 & test $RANK = 0 || exit 5; sleep 600")
        .env("TEST_MARK", &mark)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped()));
    assert_eq!(code, Some(5));
    assert_nothing_left(&mark);
}

#[test]
fn a_rank_that_stays_away_is_named_within_the_timeout() {
    let mark = mark("absent");
    let flags = ["--nproc-per-node", "3", "--startup-timeout", "2"];
    let start = Instant::now();
    let (code, _, error) = run(&mut burnrun(&flags, "rank 1 stays away", &mark));
    assert_eq!(code, Some(1));
    assert!(
        error.contains("rank(s) [1] did not come to the world"),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_nothing_left(&mark);
}

#[test]
fn another_secret_is_refused() {
    let mark = mark("secret");
    let flags = ["--nproc-per-node", "2", "--startup-timeout", "5"];
    let (code, _, error) = run(&mut burnrun(&flags, "rank 1 has another secret", &mark));
    assert_eq!(code, Some(1));
    assert!(
        error.contains("the two sides have different secrets"),
        "{error}"
    );
    assert_nothing_left(&mark);
}

#[test]
fn a_rank_that_ends_early_is_named_and_the_group_refuses_later_calls() {
    let mark = mark("early");
    let flags = ["--nproc-per-node", "3", "--step-timeout", "10"];
    let behaviour = "rank 1 leaves before the third all-reduce";
    let (code, out, error) = run(&mut burnrun(&flags, behaviour, &mark));
    assert_eq!(code, Some(0), "{error}{out}");
    for rank in [0, 2] {
        let call = format!("[{rank}] call 2: rank {rank}, group world, call 2");
        assert!(
            out.contains(&call) && out.contains("lost rank(s) [1]"),
            "{out}"
        );
        assert!(out.contains(&format!("[{rank}] again: ")), "{out}");
        assert!(
            out.contains("refused barrier, the group failed earlier"),
            "{out}"
        );
    }
    assert_nothing_left(&mark);
}

#[test]
fn bad_flags_and_a_taken_port_are_one_line_and_code_2() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let cases: [(&[&str], &str); 7] = [
        (
            &["--nproc-per-node", "18446744073709551615"],
            "at most 65536",
        ),
        (&["--nproc-per-node", "0"], "0 ranks"),
        (
            &["--nproc-per-node", "2", "--node-rank", "1"],
            "node rank 1 of 1",
        ),
        (&["--nnodes", "2"], "no --master-port"),
        (
            &["--nnodes", "2", "--master-port", "29555"],
            "BURN_DIST_SECRET",
        ),
        (&["--nproc-per-node", "2", "--master-port", &port], &port),
        (&["--bogus"], "--bogus"),
    ];
    for (flags, word) in cases {
        let mark = mark("bad");
        let (code, _, error) = run(&mut burnrun(flags, "sum", &mark));
        assert_eq!(code, Some(2), "{flags:?}: {error}");
        assert!(error.contains(word), "{flags:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{flags:?}: {error}");
    }
    let mut missing = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    missing.args(["--", "/no/such/program"]);
    missing.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, _, error) = run(&mut missing);
    assert_eq!(code, Some(2));
    assert!(error.contains("/no/such/program"), "{error}");
}

#[test]
fn two_launchers_make_one_world() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("bound").port().to_string();
    drop(free);
    let mark = mark("nodes");
    let node = |rank: &str| {
        let flags = [
            "--nnodes",
            "2",
            "--node-rank",
            rank,
            "--nproc-per-node",
            "2",
            "--master-port",
            &port,
        ];
        let mut command = burnrun(&flags, "sum", &mark);
        command.env("BURN_DIST_SECRET", "words");
        command.spawn().expect("burnrun starts")
    };
    let (second, first) = (node("1"), node("0"));
    let outputs = [finish(first), finish(second)];
    for (node, output) in outputs.iter().enumerate() {
        let out = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        for rank in [2 * node, 2 * node + 1] {
            assert!(out.contains(&format!("[{rank}] sum 6 of 4")), "{out}");
        }
    }
    assert_nothing_left(&mark);
}
