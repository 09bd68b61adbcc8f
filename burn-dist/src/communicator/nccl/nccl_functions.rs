//! The functions of NCCL that are used here, and their constants.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null;

use burn::tensor::DType;

use super::foreign::{Handle, foreign_functions};
use crate::communicator::ReduceOp;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInvalidUsage`.
#[cfg(test)]
pub(super) const INVALID_USAGE: c_int = 5;
/// `ncclRemoteError`: another rank ended, or the network lost it.
pub(super) const REMOTE_ERROR: c_int = 6;
/// `ncclInProgress`: look again.
pub(super) const IN_PROGRESS: c_int = 7;

/// What a first rank makes up and all ranks of a communicator come with: `ncclUniqueId`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// `ncclConfig_t` as of NCCL 2.18. Newer ones look at the size and the version, and take the rest as not set.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    pub(super) blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Filled up, so that what newer versions have in the place of the padding is not set either.
    traffic_class: c_int,
}

impl Config {
    const NOT_SET: c_int = c_int::MIN;

    /// Everything as NCCL does it by itself, but no call waits: it says [`IN_PROGRESS`].
    pub(super) fn without_waiting() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: Self::NOT_SET,
            min_ctas: Self::NOT_SET,
            max_ctas: Self::NOT_SET,
            net_name: null(),
            split_share: Self::NOT_SET,
            traffic_class: Self::NOT_SET,
        }
    }
}

/// `ncclUint8`.
pub(super) const BYTE: c_int = 1;

/// `ncclDataType_t` of an element type, if NCCL has it.
pub(super) fn data_type(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => BYTE,
        DType::Bool(_) if dtype.size() == 1 => BYTE,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::I16 | DType::U16 | DType::Flex32 | DType::Bool(_) | DType::QFloat(_) => return None,
    })
}

/// `ncclRedOp_t` of a reduction.
pub(super) fn reduction(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}

foreign_functions! {
    /// NCCL's functions.
    NcclFunctions, NcclTable {
        "ncclGetVersion" get_version(version: *mut c_int) -> c_int;
        "ncclGetErrorString" get_error_string(result: c_int) -> *const c_char;
        "ncclGetLastError" get_last_error(comm: Handle) -> *const c_char;
        "ncclGetUniqueId" get_unique_id(id: *mut UniqueId) -> c_int;
        "ncclCommInitRankConfig" comm_init_rank_config(
            comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config
        ) -> c_int;
        "ncclCommGetAsyncError" comm_get_async_error(comm: Handle, result: *mut c_int) -> c_int;
        "ncclCommFinalize" comm_finalize(comm: Handle) -> c_int;
        "ncclCommDestroy" comm_destroy(comm: Handle) -> c_int;
        "ncclCommAbort" comm_abort(comm: Handle) -> c_int;
        "ncclCommSplit" comm_split(
            comm: Handle, color: c_int, key: c_int, new: *mut Handle, config: *mut Config
        ) -> c_int;
        "ncclGroupStart" group_start() -> c_int;
        "ncclGroupEnd" group_end() -> c_int;
        "ncclAllReduce" all_reduce(
            send: u64, receive: u64, count: usize, data_type: c_int, op: c_int, comm: Handle, stream: Handle
        ) -> c_int;
        "ncclReduceScatter" reduce_scatter(
            send: u64, receive: u64, count: usize, data_type: c_int, op: c_int, comm: Handle, stream: Handle
        ) -> c_int;
        "ncclAllGather" all_gather(
            send: u64, receive: u64, count: usize, data_type: c_int, comm: Handle, stream: Handle
        ) -> c_int;
        "ncclBroadcast" broadcast(
            send: u64, receive: u64, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: Handle
        ) -> c_int;
        "ncclSend" send(
            send: u64, count: usize, data_type: c_int, peer: c_int, comm: Handle, stream: Handle
        ) -> c_int;
        "ncclRecv" recv(
            receive: u64, count: usize, data_type: c_int, peer: c_int, comm: Handle, stream: Handle
        ) -> c_int;
    }
}
