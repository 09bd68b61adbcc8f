//! Ranks of a test, on libraries that write down what is called: there need be no device.
#![allow(unsafe_code)]

use std::panic::Location;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use burn::tensor::DType;

use super::NcclCommunicator;
use super::fakes::Machine;
use crate::communicator::{
    Communicator, CommunicatorOptions, DeviceCall, DeviceWork, InProcessHub, Members, Operation,
    ReduceOp,
};
use crate::error::{DistError, Result};

/// Nothing here takes long; what does, hangs.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

pub(super) const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

pub(super) fn options() -> CommunicatorOptions {
    CommunicatorOptions {
        timeout: Duration::from_secs(20),
        startup_timeout: Duration::from_secs(20),
        ..CommunicatorOptions::default()
    }
}

/// Says when a call's memory is given back.
struct Memory(Arc<Machine>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.note("memory is given back");
    }
}

#[track_caller]
fn call(machine: &Arc<Machine>, operation: Operation, dtype: DType, shape: &[usize]) -> DeviceCall {
    DeviceCall {
        operation,
        dtype,
        shape: shape.to_vec(),
        send: 1000,
        receive: 5000,
        site: Location::caller(),
        label: None,
        keep: Box::new(Memory(machine.clone())),
    }
}

/// One rank in a test.
pub(super) struct Rank {
    pub(super) index: usize,
    pub(super) machine: Arc<Machine>,
    pub(super) communicator: Arc<dyn Communicator>,
    /// The communicator beside it.
    pub(super) host: Arc<dyn Communicator>,
    pub(super) hub: InProcessHub,
}

impl Rank {
    /// This rank in another group.
    pub(super) fn beside(&self, communicator: Arc<dyn Communicator>) -> Self {
        Self {
            index: self.index,
            machine: self.machine.clone(),
            communicator,
            host: self.host.clone(),
            hub: self.hub.clone(),
        }
    }

    pub(super) fn start(
        &self,
        operation: Operation,
        dtype: DType,
        shape: &[usize],
    ) -> Result<DeviceWork> {
        let call = call(&self.machine, operation, dtype, shape);
        let device = self.communicator.device().expect("invariant: it has one");
        // SAFETY: the fakes look at no memory.
        unsafe { device.start(call) }
    }

    /// What NCCL and CUDA were called for by one call that is waited for.
    pub(super) fn calls(&self, operation: Operation, dtype: DType, shape: &[usize]) -> Vec<String> {
        self.machine.take_log();
        let work = self
            .start(operation, dtype, shape)
            .expect("invariant: a good call");
        work.wait().expect("invariant: no failure");
        let log = self.machine.take_log();
        let (before, rest) = log.split_at(2);
        assert_eq!(before, ["the device's work is noted", "the stream waits"]);
        let at = rest
            .iter()
            .position(|text| text == "the stream's work is noted")
            .expect("invariant: noted");
        assert_eq!(rest[at + 1..], ["the device waits", "memory is given back"]);
        rest[..at].to_vec()
    }

    /// Waits until the watchdog has seen something.
    pub(super) fn wait_for_failure(&self) -> DistError {
        let start = Instant::now();
        loop {
            if let Some(failure) = self.communicator.failure() {
                return failure;
            }
            assert!(start.elapsed() < LONGEST, "no failure comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until NCCL's communicator was aborted.
    pub(super) fn wait_for_abort(&self) {
        let start = Instant::now();
        while !self.machine.log().contains(&"abort".into()) {
            assert!(start.elapsed() < LONGEST, "nothing is aborted");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a test on ranks with these machines, in rank order; checks what they leave behind.
pub(super) fn on_ranks<T: Send + 'static>(
    machines: Vec<Arc<Machine>>,
    options: CommunicatorOptions,
    test: impl Fn(Result<Rank>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (hub, test, ranks) = (InProcessHub::new(), Arc::new(test), machines.len());
    let (sender, receiver) = mpsc::channel();
    let everyone: Vec<usize> = (0..ranks).collect();
    for (index, machine) in machines.iter().cloned().enumerate() {
        let (hub, test, sender, everyone) =
            (hub.clone(), test.clone(), sender.clone(), everyone.clone());
        std::thread::spawn(move || {
            let members = Members::new("world", &everyone, index).expect("invariant: members");
            let inner: Arc<dyn Communicator> = Arc::new(hub.connect(&members, options, None));
            let host = inner.clone();
            let made = NcclCommunicator::new(&machine.runtime(), inner, options);
            let rank = made.map(|communicator| Rank {
                index,
                machine,
                communicator: Arc::new(communicator),
                host,
                hub,
            });
            // Who waits for a rank that panics gets an error from the channel.
            let _ = sender.send((index, test(rank)));
        });
    }
    drop(sender);
    let mut results: Vec<(usize, T)> = Vec::new();
    while results.len() < ranks {
        results.push(
            receiver
                .recv_timeout(LONGEST)
                .expect("invariant: every rank ends in time"),
        );
    }
    results.sort_by_key(|(index, _)| *index);
    for machine in machines {
        machine.check_end();
    }
    results.into_iter().map(|(_, result)| result).collect()
}

pub(super) fn machines(ranks: usize) -> Vec<Arc<Machine>> {
    (0..ranks).map(Machine::new).collect()
}
