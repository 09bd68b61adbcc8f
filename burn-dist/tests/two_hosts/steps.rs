//! A fixed series of collectives: the hash of its outputs, and what it must send to another host.

use burn::tensor::bf16;
use burn_dist::ProcessGroup;
use burn_dist::communicator::{HostBuffer, Operation, ReduceOp};
use sha2::{Digest, Sha256};

use super::{PER_HOST, RANKS};

const ROUNDS: usize = 3;

/// Elements of an array: smaller than the world, of no round number, and far more than a block.
const SIZES: [usize; 6] = [1, 3, 257, 4_099, 65_536, 300_001];

const KINDS: [Kind; 5] = [
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::Broadcast,
];

const TYPES: [Type; 3] = [Type::F32, Type::Bf16, Type::I32];

#[derive(Clone, Copy)]
enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
}

#[derive(Clone, Copy)]
enum Type {
    F32,
    Bf16,
    I32,
}

/// One call of the series.
#[derive(Clone, Copy)]
struct Step {
    number: usize,
    kind: Kind,
    elements: usize,
    of: Type,
}

fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..ROUNDS {
        for elements in SIZES {
            for (kind, of) in KINDS.into_iter().flat_map(|k| TYPES.map(|t| (k, t))) {
                let number = steps.len();
                steps.push(Step {
                    number,
                    kind,
                    elements,
                    of,
                });
            }
        }
    }
    steps
}

/// Runs the series; the hash of all bytes that this rank was given.
pub(crate) fn hash(group: &ProcessGroup) -> burn_dist::Result<String> {
    let mut hash = Sha256::new();
    for step in steps() {
        let output = group.run(step.operation(group.index()), step.input(group.index()))?;
        hash.update((output.bytes().len() as u64).to_le_bytes());
        hash.update(output.bytes());
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Bytes that a host must send to the other however the calls are carried out: what the other's ranks
/// have to know of this one's.
pub(crate) fn least_sent(host: usize) -> u64 {
    steps()
        .iter()
        .map(|step| step.least_sent(host) as u64)
        .sum()
}

impl Step {
    fn root(&self) -> usize {
        self.number % RANKS
    }

    /// Rows that one rank gives to another: not as many to each, for small arrays none to some.
    fn rows(&self, from: usize, to: usize) -> usize {
        self.elements * ((2 * from + to) % RANKS) / (2 * RANKS)
    }

    fn operation(&self, rank: usize) -> Operation {
        match self.kind {
            Kind::AllReduce => Operation::AllReduce(ReduceOp::Sum),
            Kind::ReduceScatter => Operation::ReduceScatter(ReduceOp::Sum),
            Kind::AllGather => Operation::AllGather,
            Kind::AllToAll => Operation::AllToAll {
                send_counts: (0..RANKS).map(|to| self.rows(rank, to)).collect(),
                recv_counts: (0..RANKS).map(|from| self.rows(from, rank)).collect(),
            },
            Kind::Broadcast => Operation::Broadcast { root: self.root() },
        }
    }

    /// Elements that a rank puts in.
    fn count(&self, rank: usize) -> usize {
        match self.kind {
            Kind::AllReduce | Kind::Broadcast => self.elements,
            Kind::ReduceScatter => self.elements.next_multiple_of(RANKS),
            Kind::AllGather => self.elements.div_ceil(RANKS),
            Kind::AllToAll => (0..RANKS).map(|to| self.rows(rank, to)).sum(),
        }
    }

    fn input(&self, rank: usize) -> HostBuffer {
        // Any odd number for each array: xorshift never leaves 0, and never reaches it otherwise.
        let mut state = (self.number * RANKS + rank) as u32 * 2 + 1;
        let mut random = || {
            for shift in [13, -17, 5] {
                state ^= match shift {
                    left @ 0.. => state << left,
                    right => state >> -right,
                };
            }
            state as i32
        };
        // Of unequal magnitudes, so that another order of a sum gives other bits.
        let mut float = || random() as f32 * 2f32.powi(random() % 20 - 31);
        let count = self.count(rank);
        match self.of {
            Type::F32 => HostBuffer::from_values((0..count).map(|_| float()).collect()),
            Type::Bf16 => {
                let values = (0..count).map(|_| bf16::from_f32(float()));
                HostBuffer::from_values(values.collect::<Vec<bf16>>())
            }
            Type::I32 => HostBuffer::from_values((0..count).map(|_| random()).collect()),
        }
    }

    fn least_sent(&self, host: usize) -> usize {
        let element = match self.of {
            Type::F32 | Type::I32 => 4,
            Type::Bf16 => 2,
        };
        let own = host * PER_HOST..(host + 1) * PER_HOST;
        let others = (0..RANKS).filter(|rank| !own.contains(rank));
        let elements = match self.kind {
            // The sum over this host.
            Kind::AllReduce => self.elements,
            // Its parts that the other host's ranks get.
            Kind::ReduceScatter => self.count(0) / RANKS * PER_HOST,
            // The arrays of this host's ranks, once.
            Kind::AllGather => self.count(0) * PER_HOST,
            Kind::AllToAll => others
                .flat_map(|to| own.clone().map(move |from| (from, to)))
                .map(|(from, to)| self.rows(from, to))
                .sum(),
            Kind::Broadcast if own.contains(&self.root()) => self.elements,
            Kind::Broadcast => 0,
        };
        elements * element
    }
}
