//! [`NcclLibrary`]: NCCL, found when the program runs.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::path::Path;
use std::sync::Arc;

use libloading::Library;

use super::foreign::Handle;
use super::nccl_functions::{NcclFunctions, NcclTable, SUCCESS};
use crate::error::{DistError, Result};

/// Where NCCL may be, in this order, if nobody says it: for the system's own search.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const HINT: &str = "install it (`pip install nvidia-nccl-cu13` will do) and set BURN_DIST_NCCL_LIBRARY to its \
                    `nvidia/nccl/lib/libnccl.so.2`, or leave `nccl` out of the world's options";

/// NCCL. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NcclLibrary {
    functions: Arc<dyn NcclFunctions>,
    path: Arc<str>,
    version: (u32, u32, u32),
}

impl NcclLibrary {
    /// The oldest version that has all that is used here.
    pub const OLDEST: (u32, u32, u32) = (2, 18, 0);

    /// Loads NCCL from a file, or from where the system finds `libnccl.so.2`.
    ///
    /// # Errors
    /// [`DistError::Config`] if there is no such library, or if it is not NCCL or older than
    /// [`OLDEST`](Self::OLDEST).
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let (library, path) = match path {
            Some(path) => {
                // SAFETY: what a library does when it is loaded is up to whoever names it; NCCL does nothing.
                let library = unsafe { Library::new(path) };
                let path = path.display().to_string();
                let library = library.map_err(|error| {
                    DistError::config(
                        format!("NCCL could not be loaded from {path}: {error}"),
                        HINT,
                    )
                })?;
                (library, path)
            }
            None => Self::find()?,
        };
        // SAFETY: names that begin with nccl are NCCL's, whose signatures do not change within version 2.
        let table = unsafe { NcclTable::bind(library) }.map_err(|symbol| {
            DistError::config(
                format!("{path} has no {symbol}: it is not NCCL, or older than 2.18"),
                HINT,
            )
        })?;
        Self::new(Arc::new(table), &path)
    }

    fn find() -> Result<(Library, String)> {
        let mut problems = Vec::new();
        for name in NAMES {
            // SAFETY: as in `load`.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok((library, name.into())),
                Err(error) => problems.push(format!("{name} ({error})")),
            }
        }
        let problem = format!("NCCL was not found; tried {}", problems.join(", "));
        Err(DistError::config(problem, HINT))
    }

    pub(super) fn new(functions: Arc<dyn NcclFunctions>, path: &str) -> Result<Self> {
        let mut number: c_int = 0;
        // SAFETY: the result goes to a variable of that kind.
        let result = unsafe { functions.get_version(&mut number) };
        let version = version(number);
        if result != SUCCESS || version < Self::OLDEST {
            let (major, minor, patch) = version;
            return Err(DistError::config(
                format!("{path} is NCCL {major}.{minor}.{patch}, but 2.18 or newer is needed"),
                HINT,
            ));
        }
        let path = path.into();
        Ok(Self {
            functions,
            path,
            version,
        })
    }

    /// What [`load`](Self::load) was given or has found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Major, minor and patch.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    pub(super) fn functions(&self) -> &Arc<dyn NcclFunctions> {
        &self.functions
    }
}

/// The three parts of `NCCL_VERSION_CODE`, as it is from 2.9 on and as it was before.
fn version(number: c_int) -> (u32, u32, u32) {
    let number = u32::try_from(number).unwrap_or(0);
    match number {
        10_000.. => (number / 10_000, number / 100 % 100, number % 100),
        _ => (number / 1000, number / 100 % 10, number % 100),
    }
}

/// What NCCL says about a result, and about what went before it in a communicator.
pub(super) fn words(functions: &dyn NcclFunctions, result: c_int, comm: Option<Handle>) -> String {
    let text = |pointer: *const std::ffi::c_char| match pointer.is_null() {
        true => String::new(),
        // SAFETY: NCCL's texts end with a zero and are kept as long as NCCL is, by the thread that asks.
        false => unsafe { CStr::from_ptr(pointer) }
            .to_string_lossy()
            .into_owned(),
    };
    // SAFETY: any result may be asked for, also one that NCCL does not know; the communicator is alive.
    let (name, last) = unsafe {
        let last = comm.map_or(std::ptr::null(), |comm| functions.get_last_error(comm));
        (functions.get_error_string(result), last)
    };
    match (text(name), text(last).trim()) {
        (name, "") => format!("NCCL says {name} ({result})"),
        (name, last) => format!("NCCL says {name} ({result}): {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_three_parts() {
        assert_eq!(version(23_203), (2, 32, 3));
        assert_eq!(version(21_805), (2, 18, 5));
        assert_eq!(version(2_804), (2, 8, 4));
        assert!(version(0) < NcclLibrary::OLDEST && version(-1) < NcclLibrary::OLDEST);
    }
}
