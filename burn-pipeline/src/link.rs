//! [`Sender`] and [`Receiver`]: messages from one rank to another, in order.

use std::collections::{HashMap, VecDeque};

use burn::tensor::{BoolStore, DType};
use burn_dist::communicator::{HostBuffer, Operation, Work};
use burn_dist::{DistError, ProcessGroup, Result};

use crate::Action;

/// Words of the header that goes ahead of each message: what it is, and the tensors' types and shapes.
const HEADER: usize = 64;

fn types() -> [DType; 9] {
    [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::U32,
        DType::U8,
        DType::Bool(BoolStore::Native),
    ]
}

/// The end that sends, index 0 of its group.
#[derive(Debug)]
pub(crate) struct Sender {
    group: ProcessGroup,
    under_way: Vec<(Action, Work)>,
}

/// The end that receives, index 1 of its group.
#[derive(Debug)]
pub(crate) struct Receiver {
    group: ProcessGroup,
    expected: VecDeque<Action>,
    state: State,
    arrived: HashMap<Action, Vec<HostBuffer>>,
}

#[derive(Debug)]
enum State {
    Idle,
    Header(Action, Work),
    Payload(Action, Vec<Work>),
}

/// What is ahead of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    stage: usize,
    micro_batch: usize,
    tensors: Vec<(DType, Vec<usize>)>,
}

impl Header {
    fn encode(&self) -> Result<Vec<u64>> {
        let mut words = vec![
            self.stage as u64,
            self.micro_batch as u64,
            self.tensors.len() as u64,
        ];
        for (dtype, shape) in &self.tensors {
            let known = types().iter().position(|known| known == dtype);
            let Some(code) = known else {
                return Err(DistError::config(
                    format!("an activation of {dtype:?} cannot pass between stages"),
                    "cast it to a float of 16 to 64 bits, an integer, or a boolean",
                ));
            };
            words.push(code as u64);
            words.push(shape.len() as u64);
            words.extend(shape.iter().map(|&size| size as u64));
        }
        if words.len() > HEADER {
            return Err(DistError::config(
                format!(
                    "{} tensors between two stages take a header of {} words, {HEADER} at most",
                    self.tensors.len(),
                    words.len()
                ),
                "pass fewer tensors, or join some",
            ));
        }
        words.resize(HEADER, 0);
        Ok(words)
    }

    fn decode(words: &[u64]) -> Option<Self> {
        let mut words = words.iter().map(|&word| word as usize);
        let (stage, micro_batch, count) = (words.next()?, words.next()?, words.next()?);
        let mut tensors = Vec::new();
        for _ in 0..count {
            let dtype = *types().get(words.next()?)?;
            let dims = words.next()?;
            let shape: Vec<usize> = words.by_ref().take(dims).collect();
            if shape.len() != dims {
                return None;
            }
            tensors.push((dtype, shape));
        }
        Some(Self {
            stage,
            micro_batch,
            tensors,
        })
    }
}

impl Sender {
    pub(crate) fn new(group: ProcessGroup) -> Self {
        Self {
            group,
            under_way: Vec::new(),
        }
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Starts a message for `action`, the receive on the other side.
    pub(crate) fn send(&mut self, action: Action, tensors: Vec<HostBuffer>) -> Result<()> {
        let header = Header {
            stage: action.stage,
            micro_batch: action.micro_batch,
            tensors: tensors
                .iter()
                .map(|tensor| (tensor.dtype(), tensor.shape().to_vec()))
                .collect(),
        };
        let header = HostBuffer::from_values(header.encode()?);
        let to = || Operation::SendRecv {
            to: Some(1),
            from: None,
            receive: vec![0],
        };
        for buffer in std::iter::once(header).chain(tensors) {
            self.under_way
                .push((action, self.group.start(to(), buffer)));
        }
        self.check(false)
    }

    /// Looks at what has ended; with `all` waits for the rest.
    pub(crate) fn check(&mut self, all: bool) -> Result<()> {
        let mut rest = Vec::new();
        for (action, work) in self.under_way.drain(..) {
            match all || work.is_done() {
                true => drop(work.wait()?),
                false => rest.push((action, work)),
            }
        }
        self.under_way = rest;
        Ok(())
    }
}

impl Receiver {
    pub(crate) fn new(group: ProcessGroup) -> Self {
        Self {
            group,
            expected: VecDeque::new(),
            state: State::Idle,
            arrived: HashMap::new(),
        }
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// A message will come, after those that are expected already.
    pub(crate) fn expect(&mut self, action: Action) -> Result<()> {
        self.expected.push_back(action);
        self.advance(None)
    }

    /// Takes a step for what has come: starts to receive tensors whose header is there.
    pub(crate) fn poll(&mut self) -> Result<()> {
        self.advance(None)
    }

    /// Waits for a message.
    pub(crate) fn take(&mut self, action: Action) -> Result<Vec<HostBuffer>> {
        self.advance(Some(action))?;
        Ok(self
            .arrived
            .remove(&action)
            .expect("invariant: a lowered plan expects what it takes"))
    }

    fn start(&self, receive: Vec<usize>, dtype: DType) -> Work {
        let operation = Operation::SendRecv {
            to: None,
            from: Some(0),
            receive,
        };
        self.group
            .start(operation, HostBuffer::zeros(dtype, vec![0]))
    }

    /// Goes on until `wanted` has come, or as far as it goes without waiting.
    fn advance(&mut self, wanted: Option<Action>) -> Result<()> {
        loop {
            if wanted.is_some_and(|wanted| self.arrived.contains_key(&wanted)) {
                return Ok(());
            }
            let waits = wanted.is_some();
            match std::mem::replace(&mut self.state, State::Idle) {
                State::Idle => {
                    let Some(action) = self.expected.pop_front() else {
                        return Ok(());
                    };
                    self.state = State::Header(action, self.start(vec![HEADER], DType::U64));
                }
                State::Header(action, work) if waits || work.is_done() => {
                    let words = work.wait()?.to_values::<u64>();
                    let header = Header::decode(&words);
                    let right = header.filter(|header| {
                        header.stage == action.stage && header.micro_batch == action.micro_batch
                    });
                    let Some(header) = right else {
                        let got: Vec<u64> = words.into_iter().take(3).collect();
                        return Err(DistError::config(
                            format!(
                                "{action} was expected, a message of stage, micro-batch and tensors {got:?} came"
                            ),
                            "give the same schedule to every rank",
                        ));
                    };
                    let tensors = header.tensors.into_iter();
                    let works = tensors.map(|(dtype, shape)| self.start(shape, dtype));
                    self.state = State::Payload(action, works.collect());
                }
                State::Payload(action, works) if waits || works.iter().all(Work::is_done) => {
                    let tensors = works.into_iter().map(Work::wait).collect::<Result<_>>()?;
                    self.arrived.insert(action, tensors);
                }
                state => {
                    self.state = state;
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_back() {
        let header = Header {
            stage: 3,
            micro_batch: 70_000,
            tensors: vec![
                (DType::F32, vec![2, 0, 5]),
                (DType::Bool(BoolStore::Native), vec![]),
                (DType::I64, vec![1; 9]),
            ],
        };
        let words = header.encode().expect("it fits");
        assert_eq!(words.len(), HEADER);
        assert_eq!(Header::decode(&words), Some(header));
        assert_eq!(Header::decode(&[1, 2, 50]), None);
        assert_eq!(Header::decode(&[0, 0, 1, 99, 0]), None);
        let many = Header {
            stage: 0,
            micro_batch: 0,
            tensors: vec![(DType::F32, vec![1; 8]); 9],
        };
        assert!(many.encode().is_err());
    }
}
