//! [`carry_out`]: a call as NCCL's functions.
#![allow(unsafe_code)]

use std::ffi::c_int;

use burn::tensor::DType;

use super::connection::{Connection, Fault};
use super::foreign::Handle;
use super::nccl_functions::{BYTE, IN_PROGRESS, NcclFunctions, SUCCESS, data_type, reduction};
use crate::communicator::{DeviceCall, Operation, ReduceOp};

/// Why NCCL cannot do this, or `None` if it can.
pub(super) fn refusal(operation: &Operation, dtype: DType) -> Option<(String, &'static str)> {
    match operation {
        Operation::Gather { .. } | Operation::Scatter { .. } => Some((
            "it is for arrays in host memory".into(),
            "call it on the communicator itself, or use send_recv",
        )),
        Operation::AllReduce(_) | Operation::ReduceScatter(_) if data_type(dtype).is_none() => {
            Some((
                format!("NCCL cannot reduce {}", dtype.name()),
                "convert the array to a type that NCCL has, as f32 or i32",
            ))
        }
        _ => None,
    }
}

/// One half of a pair.
struct Move {
    peer: usize,
    address: u64,
    count: usize,
    sends: bool,
}

/// A type of NCCL, and how many of them an element is: what only moves can move as bytes.
fn moved_as(dtype: DType) -> (c_int, usize) {
    data_type(dtype).map_or((BYTE, dtype.size()), |known| (known, 1))
}

/// Submits a call, which was checked, to `stream`. NCCL may not be done with it when this returns.
///
/// # Safety
/// As of [`DeviceCommunicator::start`](crate::communicator::DeviceCommunicator::start); `scratch` is the address of
/// a byte that nothing else uses.
pub(super) unsafe fn carry_out(
    call: &DeviceCall,
    size: usize,
    scratch: u64,
    connection: &Connection,
    stream: Handle,
) -> Result<(), Fault> {
    let elements: usize = call.shape.iter().product();
    let (kind, per_element) = moved_as(call.dtype);
    let (send, receive, count) = (call.send, call.receive, elements * per_element);
    let moves = |moves: Vec<Move>| {
        let moves: Vec<Move> = moves.into_iter().filter(|m| m.count > 0).collect();
        if moves.is_empty() {
            return Ok(());
        }
        // SAFETY: each move lies inside of the input or of the output.
        connection.call(|nccl, comm| unsafe { grouped(nccl, &moves, kind, comm, stream) })
    };
    let carry = |f: &dyn Fn(&dyn NcclFunctions, Handle) -> c_int| match count {
        0 => Ok(()),
        _ => connection.call(f),
    };
    match &call.operation {
        // SAFETY: of all these calls: the arrays are as the caller vouches for, and hold what the counts say; the
        // communicator is alive under its lock, and the stream is of its device.
        Operation::AllReduce(op) => carry(&|nccl, comm| unsafe {
            nccl.all_reduce(send, receive, count, kind, reduction(*op), comm, stream)
        }),
        Operation::ReduceScatter(op) => carry(&|nccl, comm| {
            let op = reduction(*op);
            // SAFETY: as above; the output is one part of the input.
            unsafe { nccl.reduce_scatter(send, receive, count / size, kind, op, comm, stream) }
        }),
        // SAFETY: as above; the output is as many inputs as there are members.
        Operation::AllGather => carry(&|nccl, comm| unsafe {
            nccl.all_gather(send, receive, count, kind, comm, stream)
        }),
        Operation::Broadcast { root } => carry(&|nccl, comm| {
            let root = *root as c_int;
            // SAFETY: as above.
            unsafe { nccl.broadcast(send, receive, count, kind, root, comm, stream) }
        }),
        Operation::AllToAll {
            send_counts,
            recv_counts,
        } => {
            let width = call.shape[1..].iter().product::<usize>();
            let bytes = (width * call.dtype.size()) as u64;
            let halves = |counts: &[usize], start: u64, sends: bool| {
                let mut row = 0;
                let halves = counts.iter().enumerate().map(|(peer, &rows)| {
                    let address = start + row * bytes;
                    row += rows as u64;
                    let count = rows * width * per_element;
                    Move {
                        peer,
                        address,
                        count,
                        sends,
                    }
                });
                halves.collect::<Vec<Move>>()
            };
            let mut all = halves(send_counts, send, true);
            all.extend(halves(recv_counts, receive, false));
            moves(all)
        }
        Operation::SendRecv {
            to,
            from,
            receive: shape,
        } => {
            let half = |peer: usize, address: u64, count: usize, sends: bool| Move {
                peer,
                address,
                count,
                sends,
            };
            let sent = to.map(|to| half(to, send, count, true));
            let received = shape.iter().product::<usize>() * per_element;
            let received = from.map(|from| half(from, receive, received, false));
            moves(sent.into_iter().chain(received).collect())
        }
        // SAFETY: the scratch byte is there for this.
        Operation::Barrier => connection.call(|nccl, comm| unsafe {
            nccl.all_reduce(
                scratch,
                scratch,
                1,
                BYTE,
                reduction(ReduceOp::Max),
                comm,
                stream,
            )
        }),
        Operation::Gather { .. } | Operation::Scatter { .. } => {
            unreachable!("invariant: {} was refused", call.operation.name())
        }
    }
}

/// All moves at once, so that none of them waits for another.
///
/// # Safety
/// Each move is inside of an array of the device.
unsafe fn grouped(
    nccl: &dyn NcclFunctions,
    moves: &[Move],
    kind: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    // SAFETY: every start of a group has its end on this thread, also after a failure; the rest is the caller's.
    unsafe {
        let started = nccl.group_start();
        if started != SUCCESS {
            return started;
        }
        let mut first_failure = SUCCESS;
        for &Move {
            peer,
            address,
            count,
            sends,
        } in moves
        {
            let peer = peer as c_int;
            let result = match sends {
                true => nccl.send(address, count, kind, peer, comm, stream),
                false => nccl.recv(address, count, kind, peer, comm, stream),
            };
            if !matches!(result, SUCCESS | IN_PROGRESS) {
                first_failure = result;
                break;
            }
        }
        let ended = nccl.group_end();
        match first_failure {
            SUCCESS => ended,
            failure => failure,
        }
    }
}
