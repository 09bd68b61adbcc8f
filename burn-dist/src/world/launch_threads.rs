//! [`launch_threads`]: ranks as threads of this process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

use super::flight_signal::{self, FlightSignal};
use super::nccl_start::{self, Nccl};
use super::{World, WorldOptions};
use crate::communicator::InProcessHub;
use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;

/// Runs `f` on `ranks` threads, each with its world; results in rank order.
///
/// When a rank fails or panics, its groups tell the others, which then end too; the error names the
/// rank that failed first. A rank that computes for ever keeps this call waiting, as it borrows
/// what is the caller's.
///
/// Rank threads share Burn's random generator: draw from a seed on one rank at a time, or leave it to
/// [`DataParallel::wrap`](crate::data_parallel::DataParallel::wrap) to give all ranks the same values.
///
/// # Errors
/// [`DistError::Rank`] with the first failure's words; [`DistError::Config`] for 0 ranks,
/// and for each of what NCCL needs and is not there, if the options ask for NCCL.
pub fn launch_threads<T: Send>(
    ranks: usize,
    options: WorldOptions,
    f: impl Fn(World) -> Result<T> + Send + Sync,
) -> Result<Vec<T>> {
    let all = RankThreads::new(ranks, options)?;
    let _signal = all.listen()?;
    let results: Vec<Option<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (all, f) = (&all, &f);
                named(rank).spawn_scoped(scope, move || all.run(rank, f))
            })
            .collect();
        threads
            .into_iter()
            .enumerate()
            .map(|(rank, thread)| match thread {
                Ok(thread) => thread.join().ok().flatten(),
                Err(error) => {
                    all.not_started(rank, &error);
                    None
                }
            })
            .collect()
    });
    all.end(results.into_iter().flatten().collect())
}

/// A rank's thread, not yet started.
pub(super) fn named(rank: usize) -> std::thread::Builder {
    std::thread::Builder::new().name(format!("rank {rank}"))
}

/// What the threads of one world share.
pub(super) struct RankThreads {
    number: usize,
    options: WorldOptions,
    hub: InProcessHub,
    nccl: Vec<Option<Nccl>>,
    recorders: Vec<FlightRecorder>,
    first: Mutex<Option<Failure>>,
}

impl RankThreads {
    pub(super) fn new(ranks: usize, options: WorldOptions) -> Result<Self> {
        if ranks == 0 {
            return Err(DistError::config("a world of 0 ranks", "start at least 1"));
        }
        let library = std::env::var_os("BURN_DIST_NCCL_LIBRARY").filter(|path| !path.is_empty());
        let library = library.as_deref().map(Path::new);
        let nccl = (0..ranks).map(|rank| nccl_start::start(&options, library, rank, ranks));
        Ok(Self {
            number: ranks,
            options,
            hub: InProcessHub::new(),
            nccl: nccl.collect::<Result<_>>()?,
            recorders: recorders(ranks, options),
            first: Mutex::new(None),
        })
    }

    /// Writes recordings when asked, until it is dropped.
    pub(super) fn listen(&self) -> Result<Option<FlightSignal>> {
        FlightSignal::listen(self.recorders.clone())
    }

    /// The whole of a rank; `None` if it fails or panics, which the others hear.
    pub(super) fn run<T>(&self, rank: usize, f: impl Fn(World) -> Result<T>) -> Option<T> {
        let world = World::thread(
            rank,
            self.number,
            self.options,
            self.hub.clone(),
            self.nccl[rank].clone(),
            self.recorders.get(rank).cloned(),
        );
        match catch_unwind(AssertUnwindSafe(|| f(world))) {
            Ok(Ok(value)) => {
                self.hub.end(rank, None);
                Some(value)
            }
            Ok(Err(error)) => {
                let problem = match &error {
                    // It says so already.
                    DistError::Rank { rank: of, problem } if *of == rank => problem.clone(),
                    error => error.to_string(),
                };
                self.hub.end(rank, Some(&problem));
                self.note(rank, problem, error.comes_from_a_peer());
                None
            }
            Err(panic) => {
                let problem = format!("it panicked: {}", panic_text(&*panic));
                self.note(rank, problem.clone(), false);
                self.hub.end(rank, Some(&problem));
                None
            }
        }
    }

    pub(super) fn not_started(&self, rank: usize, error: &std::io::Error) {
        self.note(rank, format!("its thread did not start: {error}"), false);
    }

    /// Keeps the first failure; one of a rank's own counts as earlier than what peers met because of it,
    /// as a panicking rank leaves its groups before its panic arrives here.
    fn note(&self, rank: usize, problem: String, from_a_peer: bool) {
        let first = self.first.lock();
        let mut first = first.expect("invariant: no panic under this lock");
        if first
            .as_ref()
            .is_none_or(|known| known.from_a_peer && !from_a_peer)
        {
            *first = Some(Failure {
                error: DistError::Rank { rank, problem },
                from_a_peer,
            });
        }
    }

    /// The results, if no rank failed.
    pub(super) fn end<T>(&self, results: Vec<T>) -> Result<Vec<T>> {
        let first = self.first.lock();
        let mut first = first.expect("invariant: no panic under this lock");
        match first.take() {
            Some(failure) => Err(failure.error),
            None => Ok(results),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap_or_else(|| "a panic without a message".into())
}

/// One for each rank, or none.
fn recorders(ranks: usize, options: WorldOptions) -> Vec<FlightRecorder> {
    if ranks == 1 || !options.flight_recorder {
        return Vec::new();
    }
    let folder = std::env::var_os("BURN_DIST_FLIGHT_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(
        || flight_signal::folder(std::process::id()),
        std::path::PathBuf::from,
    );
    (0..ranks)
        .map(|rank| FlightRecorder::new(rank, ranks, Some(folder.clone())))
        .collect()
}

/// Why a rank ended.
struct Failure {
    error: DistError,
    from_a_peer: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::ReduceOp;
    use std::time::Duration;

    fn options() -> WorldOptions {
        WorldOptions {
            step_timeout: Duration::from_secs(5),
            ..WorldOptions::default()
        }
    }

    #[test]
    fn ranks_meet_and_return_in_order() {
        let sums = launch_threads(4, options(), |world| {
            let group = world.whole()?;
            let rank = world.rank() as u32;
            Ok((rank, group.all_reduce_values(vec![rank], ReduceOp::Sum)?[0]))
        });
        assert_eq!(sums.expect("no fault"), [(0, 6), (1, 6), (2, 6), (3, 6)]);
    }

    #[test]
    fn the_rank_that_failed_first_is_named() {
        let error = launch_threads(3, options(), |world| {
            let group = world.whole()?;
            group.barrier()?;
            assert!(world.rank() != 1, "out of luck");
            group.barrier()
        })
        .expect_err("rank 1 panics");
        let DistError::Rank { rank, problem } = &error else {
            panic!("{error}");
        };
        assert_eq!(*rank, 1);
        assert!(problem.contains("out of luck"), "{problem}");
    }

    #[test]
    fn a_rank_that_never_makes_its_group_keeps_nobody_waiting() {
        let patient = WorldOptions::default();
        let start = std::time::Instant::now();
        let error = launch_threads(3, patient, |world| {
            if world.rank() == 1 {
                return Err(DistError::config("a bad number", "take another"));
            }
            world.whole()?.barrier()
        })
        .expect_err("rank 1 fails");
        assert!(
            error.to_string().starts_with("rank 1 failed: a bad number"),
            "{error}"
        );
        let error = launch_threads(3, patient, |world| match world.rank() {
            1 => Ok(()),
            _ => world.whole()?.barrier(),
        })
        .expect_err("rank 1 has ended");
        assert!(error.to_string().contains("lost rank(s) [1]"), "{error}");
        assert!(start.elapsed() < patient.step_timeout / 4);
    }

    #[test]
    fn groups_of_a_mesh_are_made_for_a_world_of_its_size() {
        use crate::mesh::{DeviceMesh, MeshAxis, ParallelDims};
        let dims = ParallelDims {
            tp: 2,
            dp_replicate: 2,
            ..ParallelDims::default()
        };
        let mesh = DeviceMesh::new(dims, 4).expect("a mesh");
        let ranks = launch_threads(4, options(), |world| {
            let tp = world.axis_group(&mesh, &[MeshAxis::Tp])?;
            let whole = world.whole()?;
            let dp = world.axis_group_within(&whole, &mesh, &[MeshAxis::DpReplicate])?;
            let rank = vec![world.rank() as u32];
            Ok((
                tp.all_gather_values(rank.clone())?,
                dp.all_gather_values(rank)?,
            ))
        })
        .expect("no fault");
        assert_eq!(ranks[3].0.concat(), [2, 3]);
        assert_eq!(ranks[3].1.concat(), [1, 3]);
        let error = World::solo().axis_group(&mesh, &[MeshAxis::Tp]);
        assert!(
            error
                .map(drop)
                .expect_err("of 4")
                .to_string()
                .contains("the mesh has 4 ranks")
        );
    }
}
