//! Generated programs: the same on every rank, they give the same bits over everything that carries
//! them; with one call of one rank changed, every rank learns which call differs.

use burn::tensor::DType;
use burn_dist::DistError;
use burn_dist::communicator::{
    Algorithm, Call, CommunicatorOptions, HostBuffer, Operation, ReduceOp,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tests::{Kind, run_communicators, under_mpirun};

use super::{options, run};

/// One call, the same on every rank but for the values.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    what: u8,
    dtype: DType,
    /// Rows for each rank.
    rows: usize,
    root: usize,
}

impl Step {
    fn call(&self, n: usize, rank: usize) -> Call {
        let Self {
            what, rows, root, ..
        } = *self;
        let root = root % n;
        let (operation, shape) = match what {
            0 => (Operation::AllReduce(ReduceOp::Sum), vec![rows]),
            1 => (Operation::AllReduce(ReduceOp::Max), vec![rows]),
            2 => (Operation::ReduceScatter(ReduceOp::Sum), vec![n * rows]),
            3 => (Operation::AllGather, vec![rows]),
            4 => (Operation::Broadcast { root }, vec![rows]),
            5 => (Operation::Gather { root }, vec![rows]),
            6 => {
                let counts = vec![rows; n];
                let (send_counts, recv_counts) = (counts.clone(), counts);
                let operation = Operation::AllToAll {
                    send_counts,
                    recv_counts,
                };
                (operation, vec![n * rows])
            }
            _ => (Operation::Barrier, vec![0]),
        };
        let mut input = HostBuffer::zeros(self.dtype, shape);
        for (i, byte) in input.bytes_mut().iter_mut().enumerate() {
            // Any bits but those of infinities and NaNs, whose sums have more than one form.
            *byte = (i * 31 + rank * 17 + rows) as u8 & 0x3F;
        }
        Call::new(operation, input)
    }
}

fn steps(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let dtypes = [DType::F32, DType::F64, DType::BF16, DType::I32, DType::U8];
    let dtype = prop::sample::select(dtypes.to_vec());
    // Small ones, ones of several blocks, and, rarely, ones that neighbours read.
    let rows = prop_oneof![6 => 0usize..40, 3 => 0usize..60_000, 1 => 200_000usize..300_000];
    let step = (0u8..8, dtype, rows, 0usize..4);
    let step = step.prop_map(|(what, dtype, rows, root)| Step {
        what,
        dtype,
        rows,
        root,
    });
    prop::collection::vec(step, 1..longest)
}

type Outcome = Result<Vec<Vec<u8>>, (usize, DistError)>;

fn kinds() -> Vec<Kind> {
    match under_mpirun() {
        true => vec![Kind::Mpi],
        false => vec![Kind::InProcess, Kind::Tcp, Kind::SharedMemory, Kind::Mixed],
    }
}

/// What every rank gets, or its first error and where.
fn outputs(
    kind: Kind,
    n: usize,
    options: CommunicatorOptions,
    program: impl Fn(usize) -> Vec<Step> + Sync,
) -> Vec<(usize, Outcome)> {
    run_communicators(kind, n, options, |c| {
        let rank = c.members().rank();
        let mut outputs = Vec::new();
        for (number, step) in program(rank).iter().enumerate() {
            let Call {
                operation, input, ..
            } = step.call(n, rank);
            match run(&*c, operation, input) {
                Ok(output) => outputs.push(output.bytes().to_vec()),
                Err(error) => return (rank, Err((number, error))),
            }
        }
        (rank, Ok(outputs))
    })
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        // Processes draw the same programs.
        rng_seed: match under_mpirun() {
            true => RngSeed::Fixed(7),
            false => RngSeed::Random,
        },
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn a_program_gives_the_same_bits_over_everything(program in steps(12), n in 2usize..5) {
        let plain = CommunicatorOptions {
            pipelined: false,
            ..options(Algorithm::Direct)
        };
        let expected = outputs(Kind::InProcess, n, plain, |_| program.clone());
        for (_, outcome) in &expected {
            prop_assert!(outcome.is_ok(), "{outcome:?}");
        }
        for kind in kinds() {
            let found = outputs(kind, n, options(Algorithm::Direct), |_| program.clone());
            for (rank, outcome) in found {
                let same = outcome == expected[rank].1;
                prop_assert!(same, "{kind:?}, rank {rank}: differs in {program:?}");
            }
        }
    }

    #[test]
    fn a_program_that_differs_on_one_rank_is_an_error_on_all_that_names_the_call(
        program in steps(8),
        changed in any::<prop::sample::Index>(),
        by in 0usize..4,
        n in 2usize..5,
        culprit in 0usize..4,
    ) {
        let (changed, culprit) = (changed.index(program.len()), culprit % n);
        let mut other = program.clone();
        let step = &mut other[changed];
        match by {
            0 => step.what = (step.what + 1) % 8,
            1 => step.dtype = if step.dtype == DType::F32 { DType::I32 } else { DType::F32 },
            2 => step.rows += 1,
            _ => step.root += 1,
        }
        // A barrier has no type, and only some calls have a root.
        let (mine, theirs) = (program[changed].call(n, 0), other[changed].call(n, 0));
        let same = mine.operation == theirs.operation
            && (mine.operation == Operation::Barrier
                || (mine.input.dtype(), mine.input.shape())
                    == (theirs.input.dtype(), theirs.input.shape()));
        prop_assume!(!same);
        for kind in kinds() {
            let found = outputs(kind, n, options(Algorithm::Direct), |rank| {
                if rank == culprit { other.clone() } else { program.clone() }
            });
            for (rank, outcome) in found {
                let Err((number, error)) = outcome else {
                    return Err(TestCaseError::fail(format!("{kind:?}: rank {rank} goes on")));
                };
                let text = error.to_string();
                // A rank that is still busy with the call before hears of it there, from a peer.
                let behind = number < changed && error.comes_from_a_peer();
                prop_assert!(number == changed || behind, "{} at call {}", &text, number);
                prop_assert!(text.contains("disagrees: expected"), "{}", &text);
                prop_assert!(text.contains(&format!("call {changed}:")), "{}", &text);
                if rank != culprit
                    && let DistError::Mismatch { differing, .. } = error
                {
                    prop_assert_eq!(differing, culprit);
                }
            }
        }
    }
}
