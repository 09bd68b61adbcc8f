//! Worlds whose rank 0 serves the store, as under torchrun, srun and mpirun: threads here, each with
//! its own environment.

use std::time::{Duration, Instant};

use burn_dist::communicator::ReduceOp;
use burn_dist::world::{Environment, Launcher};
use burn_dist::{Result, World, WorldOptions};

fn environment(rank: usize, world_size: usize, port: u16) -> Environment {
    Environment {
        launcher: Launcher::Torchrun,
        rank,
        world_size,
        local_rank: rank,
        local_size: world_size,
        master_addr: "127.0.0.1".into(),
        master_port: port,
        secret: "words".into(),
        store_is_external: false,
        startup_timeout: Some(Duration::from_secs(10)),
        flight_folder: None,
        nccl_library: None,
        step_timeout: Some(Duration::from_secs(10)),
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Runs `f` on a thread for each environment; results in their order.
fn run<T: Send>(
    environments: Vec<Environment>,
    f: impl Fn(World) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = environments
            .into_iter()
            .map(|environment| {
                let f = &f;
                scope.spawn(move || {
                    f(World::from_environment(
                        &environment,
                        WorldOptions::default(),
                    )?)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn the_store_may_go_once_all_have_met() {
    let port = free_port();
    let worlds = (0..4).map(|rank| environment(rank, 4, port)).collect();
    let sums = run(worlds, |world| {
        let rank = world.rank() as u32;
        if rank == 0 {
            return Ok(0);
        }
        // Rank 0, which served the store, is likely gone by now.
        std::thread::sleep(Duration::from_millis(300));
        let group = world.group("others", &[3, 1, 2])?;
        assert_eq!(group.index(), [0, 1, 2, 0][rank as usize]);
        let again = world.group("others", &[3, 1, 2])?;
        again.barrier()?;
        Ok(group.all_reduce_values(vec![rank], ReduceOp::Sum)?[0])
    });
    let sums: Vec<u32> = sums.into_iter().map(|sum| sum.expect("no fault")).collect();
    assert_eq!(sums, [0, 6, 6, 6]);
}

#[test]
fn ranks_that_do_not_come_are_named_in_time() {
    let port = free_port();
    let mut worlds: Vec<_> = [0, 2].iter().map(|&r| environment(r, 4, port)).collect();
    for world in &mut worlds {
        world.startup_timeout = Some(Duration::from_secs(1));
    }
    let start = Instant::now();
    for result in run(worlds, |_| Ok(())) {
        let error = result.expect_err("two are missing").to_string();
        assert!(error.contains("rank(s) [1, 3] did not come"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(8));
}

#[test]
fn a_taken_port_and_a_doubled_rank_are_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let error = World::from_environment(&environment(0, 2, port), WorldOptions::default());
    let error = error.map(drop).expect_err("taken").to_string();
    assert!(
        error.contains(&format!("127.0.0.1:{port}")) && error.contains("taken"),
        "{error}"
    );
    let port = free_port();
    let mut worlds: Vec<_> = [0, 1, 1].iter().map(|&r| environment(r, 3, port)).collect();
    for world in &mut worlds {
        world.startup_timeout = Some(Duration::from_secs(2));
    }
    let results = run(worlds, |_| Ok(()));
    let errors: Vec<String> = results
        .into_iter()
        .map(|result| result.expect_err("rank 2 is missing").to_string())
        .collect();
    let doubled = errors
        .iter()
        .filter(|e| e.contains("rank 1 is there already"));
    assert_eq!(doubled.count(), 1, "{errors:?}");
}

#[test]
fn groups_of_others_are_refused() {
    let world = World::solo();
    for (ranks, word) in [
        (&[0, 1][..], "names rank 1"),
        (&[0, 0], "names a rank twice"),
        (&[], "empty"),
    ] {
        let error = world.group("g", ranks).map(drop).expect_err("bad ranks");
        assert!(error.to_string().contains(word), "{error}");
    }
}
