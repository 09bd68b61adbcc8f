//! [`CudaDriver`]: CUDA's driver, found when the program runs.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use libloading::Library;

use super::cuda_functions::{CudaFunctions, CudaTable, NO_DEVICE, SUCCESS};
use crate::error::{DistError, Result};

const NAME: &str = "libcuda.so.1";

const WITHOUT: &str =
    "or leave `nccl` out of the world's options: groups then go through host memory";

/// CUDA's driver, started. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CudaDriver {
    functions: Arc<dyn CudaFunctions>,
    version: (u32, u32),
    device_count: usize,
}

impl CudaDriver {
    /// The oldest CUDA whose driver orders work of a whole device by events.
    pub const OLDEST: (u32, u32) = (12, 5);

    /// Loads and starts the driver.
    ///
    /// # Errors
    /// [`DistError::Config`], of its own for each of: no driver, one that is too old, one that does not start, no
    /// device.
    pub fn load() -> Result<Self> {
        // SAFETY: this is the driver's name; being loaded it does nothing.
        let library = unsafe { Library::new(NAME) }.map_err(|error| {
            DistError::config(
                format!("there is no NVIDIA driver: {NAME} could not be loaded ({error})"),
                format!("install the driver, in a container pass it in (as `--gpus all` does), {WITHOUT}"),
            )
        })?;
        // SAFETY: the driver's function of this name has this signature and may be called at any time.
        let number = unsafe {
            let mut number = 0;
            type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
            match library.get::<GetVersion>(b"cuDriverGetVersion") {
                Ok(function) if function(&mut number) == SUCCESS => number,
                _ => 0,
            }
        };
        // Older ones lack functions of the table.
        check_version(number)?;
        // SAFETY: these names are the driver's, whose signatures never change.
        let table = unsafe { CudaTable::bind(library) }.map_err(|symbol| {
            DistError::config(
                format!("{NAME} has no {symbol}, although it says that it is of CUDA {number}"),
                "install NVIDIA's driver again; a stub for building programs may lie in its place",
            )
        })?;
        Self::new(Arc::new(table))
    }

    pub(super) fn new(functions: Arc<dyn CudaFunctions>) -> Result<Self> {
        let (mut number, mut count): (c_int, c_int) = (0, 0);
        // SAFETY: the result goes to a variable of that kind.
        let result = unsafe { functions.driver_get_version(&mut number) };
        let version = check_version(if result == SUCCESS { number } else { 0 })?;
        // SAFETY: the driver may be started any number of times.
        let started = unsafe { functions.init(0) };
        if started != SUCCESS && started != NO_DEVICE {
            return Err(DistError::config(
                format!(
                    "the NVIDIA driver does not start: {}",
                    words(&*functions, started)
                ),
                format!("see what `nvidia-smi` says, {WITHOUT}"),
            ));
        }
        if started == SUCCESS {
            // SAFETY: the driver is started; the result goes to a variable of that kind.
            let counted = unsafe { functions.device_get_count(&mut count) };
            count = if counted == SUCCESS { count } else { 0 };
        }
        if count <= 0 {
            return Err(DistError::config(
                "the NVIDIA driver has no device for this process",
                format!("see what `nvidia-smi` says and what CUDA_VISIBLE_DEVICES is, {WITHOUT}"),
            ));
        }
        Ok(Self {
            functions,
            version,
            device_count: count as usize,
        })
    }

    /// Major and minor of the newest CUDA that the driver can serve.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Number of devices that this process sees.
    pub fn device_count(&self) -> usize {
        self.device_count
    }

    /// What a device is called, for people.
    pub fn device_name(&self, index: usize) -> String {
        let mut name = [0 as c_char; 100];
        let device = self.device(index);
        // SAFETY: the name is written with its zero into as many bytes as are said to be there.
        let result = device.map(|device| unsafe {
            let length = name.len() as c_int;
            self.functions
                .device_get_name(name.as_mut_ptr(), length, device)
        });
        match result {
            // SAFETY: the array was all zeros, and its last byte still is.
            Ok(SUCCESS) => unsafe { CStr::from_ptr(name.as_ptr()) }
                .to_string_lossy()
                .into_owned(),
            Ok(other) => words(&*self.functions, other),
            Err(problem) => problem,
        }
    }

    /// Refuses a device that is not there, for a rank of a host that runs `local_size` of them.
    pub(super) fn check_device(&self, index: usize, local_size: usize) -> Result<()> {
        let count = self.device_count;
        if index < count {
            return Ok(());
        }
        let problem = match local_size > count {
            true => format!(
                "CUDA device {index} is asked for, but this process sees {count}; the host has {local_size} ranks"
            ),
            false => {
                format!("CUDA device {index} is asked for, but this process sees {count}, from 0")
            }
        };
        Err(DistError::config(
            problem,
            format!(
                "start at most one rank per device on each host, give each rank a device of its own, {WITHOUT}"
            ),
        ))
    }

    /// The driver's handle of a device.
    pub(super) fn device(&self, index: usize) -> std::result::Result<c_int, String> {
        let mut device = 0;
        // SAFETY: the driver is started; the result goes to a variable of that kind.
        let result = unsafe { self.functions.device_get(&mut device, index as c_int) };
        match result {
            SUCCESS => Ok(device),
            other => Err(words(&*self.functions, other)),
        }
    }

    pub(super) fn functions(&self) -> &Arc<dyn CudaFunctions> {
        &self.functions
    }
}

fn check_version(number: c_int) -> Result<(u32, u32)> {
    let number = u32::try_from(number).unwrap_or(0);
    let version = (number / 1000, number % 1000 / 10);
    if version >= CudaDriver::OLDEST {
        return Ok(version);
    }
    Err(DistError::config(
        format!(
            "the NVIDIA driver serves CUDA {}.{}, but NCCL groups need 12.5 or newer",
            version.0, version.1
        ),
        format!("install driver 555 or newer, {WITHOUT}"),
    ))
}

/// What the driver says about a result.
pub(super) fn words(functions: &dyn CudaFunctions, result: c_int) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: any result may be asked for; the text ends with a zero and is never freed, or stays null.
    let text = unsafe {
        functions.get_error_string(result, &mut text);
        match text.is_null() {
            true => "an error that it does not know".into(),
            false => CStr::from_ptr(text).to_string_lossy(),
        }
    };
    format!("CUDA says {text} ({result})")
}
