//! The functions of CUDA's driver that are used here, and their constants.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};

use super::foreign::{Handle, foreign_functions};

/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_READY`: what an event stands for is not done.
pub(super) const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const WITHOUT_TIMING: c_uint = 2;

foreign_functions! {
    /// The driver's functions.
    CudaFunctions, CudaTable {
        "cuInit" init(flags: c_uint) -> c_int;
        "cuDriverGetVersion" driver_get_version(version: *mut c_int) -> c_int;
        "cuGetErrorString" get_error_string(result: c_int, text: *mut *const c_char) -> c_int;
        "cuDeviceGetCount" device_get_count(count: *mut c_int) -> c_int;
        "cuDeviceGet" device_get(device: *mut c_int, index: c_int) -> c_int;
        "cuDeviceGetName" device_get_name(name: *mut c_char, length: c_int, device: c_int) -> c_int;
        "cuDeviceGetUuid_v2" device_get_uuid(uuid: *mut [u8; 16], device: c_int) -> c_int;
        "cuDevicePrimaryCtxRetain" primary_context_retain(context: *mut Handle, device: c_int) -> c_int;
        "cuDevicePrimaryCtxRelease_v2" primary_context_release(device: c_int) -> c_int;
        "cuCtxPushCurrent_v2" context_push(context: Handle) -> c_int;
        "cuCtxPopCurrent_v2" context_pop(context: *mut Handle) -> c_int;
        "cuCtxRecordEvent" context_record_event(context: Handle, event: Handle) -> c_int;
        "cuCtxWaitEvent" context_wait_event(context: Handle, event: Handle) -> c_int;
        "cuStreamCreate" stream_create(stream: *mut Handle, flags: c_uint) -> c_int;
        "cuStreamDestroy_v2" stream_destroy(stream: Handle) -> c_int;
        "cuStreamWaitEvent" stream_wait_event(stream: Handle, event: Handle, flags: c_uint) -> c_int;
        "cuEventCreate" event_create(event: *mut Handle, flags: c_uint) -> c_int;
        "cuEventDestroy_v2" event_destroy(event: Handle) -> c_int;
        "cuEventRecord" event_record(event: Handle, stream: Handle) -> c_int;
        "cuEventQuery" event_query(event: Handle) -> c_int;
        "cuMemAlloc_v2" memory_alloc(address: *mut u64, bytes: usize) -> c_int;
        "cuMemFree_v2" memory_free(address: u64) -> c_int;
    }
}
