//! One contract, run against every communicator.
//!
//! | module | what it holds |
//! |---|---|
//! | `value` | element types and fixed inputs |
//! | `operations` | every operation, element type and size |
//! | `order` | asynchronous calls, their order, recording |
//! | `rounding` | order of additions, agreement of the algorithms |
//! | `host_first` | sums inside a host first |
//! | `volume` | bytes sent against the formulas |
//! | `point_to_point` | send and recv |
//! | `mismatch` | ranks that call different things |
//! | `torn` | groups that are given up while memory is read |
//! | `faults` | ranks that end, stay away, break or give up |

#[path = "collectives/faults.rs"]
mod faults;
#[path = "collectives/host_first.rs"]
mod host_first;
#[path = "collectives/mismatch.rs"]
mod mismatch;
#[path = "collectives/operations.rs"]
mod operations;
#[path = "collectives/order.rs"]
mod order;
#[path = "collectives/point_to_point.rs"]
mod point_to_point;
#[path = "collectives/programs.rs"]
mod programs;
#[path = "collectives/rounding.rs"]
mod rounding;
#[path = "collectives/torn.rs"]
mod torn;
#[path = "collectives/value.rs"]
mod value;
#[path = "collectives/volume.rs"]
mod volume;

use std::sync::Arc;
use std::time::Duration;

use burn_dist::Result;
use burn_dist::communicator::{
    Algorithm, Call, Communicator, CommunicatorOptions, HostBuffer, Operation, Work,
};
use tests::{Kind, run_communicators};

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Direct,
    Algorithm::Ring,
    Algorithm::Centralized,
    Algorithm::HostFirst,
];

/// Options for ranks that all do the right thing: the timeout only ends a test that is stuck.
fn options(algorithm: Algorithm) -> CommunicatorOptions {
    CommunicatorOptions {
        algorithm,
        timeout: Duration::from_secs(20),
        ..CommunicatorOptions::default()
    }
}

/// Runs `check` on every rank of groups of 1 to 5, for every kind and algorithm.
fn every(check: impl Fn(Arc<dyn Communicator>, Algorithm) + Send + Sync) {
    every_of(&ALGORITHMS, check);
}

fn every_of(
    algorithms: &[Algorithm],
    check: impl Fn(Arc<dyn Communicator>, Algorithm) + Send + Sync,
) {
    for kind in Kind::all() {
        for &algorithm in algorithms {
            for n in 1..=5 {
                println!("{kind:?}, {algorithm:?}, {n} ranks");
                run_communicators(kind, n, options(algorithm), |c| check(c, algorithm));
            }
        }
    }
}

fn run(c: &dyn Communicator, operation: Operation, input: HostBuffer) -> Result<HostBuffer> {
    c.run(Call::new(operation, input))
}

fn start(c: &dyn Communicator, operation: Operation, input: HostBuffer) -> Work {
    c.start(Call::new(operation, input))
}
