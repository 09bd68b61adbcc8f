//! NCCL and the driver of this machine: `cargo test -p burn-dist --features cuda --test nccl`.
#![cfg(feature = "cuda")]

use std::path::Path;
use std::time::{Duration, Instant};

use burn_dist::communicator::{CudaDriver, NcclLibrary};
use burn_dist::{World, WorldOptions, launch_threads};

fn on(device: usize) -> WorldOptions {
    WorldOptions {
        nccl: Some(device),
        ..WorldOptions::default()
    }
}

/// The version in the name of the package that the library lies in, as `nvidia_nccl_cu13-2.32.3.dist-info` beside
/// `nvidia/nccl/lib/libnccl.so.2`.
fn packaged_version(library: &Path) -> Option<String> {
    let site = library.ancestors().nth(4)?;
    let entries = std::fs::read_dir(site).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (_, version) = name.strip_prefix("nvidia_nccl_")?.split_once('-')?;
        Some(version.strip_suffix(".dist-info")?.to_string())
    })
}

#[test]
#[ignore = "set BURN_DIST_NCCL_LIBRARY to the library in a folder that `pip install --target` has filled"]
fn the_library_of_a_package_has_the_packages_version() {
    let path = std::env::var_os("BURN_DIST_NCCL_LIBRARY").expect("BURN_DIST_NCCL_LIBRARY is set");
    let path = Path::new(&path);
    let library = NcclLibrary::load(Some(path)).unwrap_or_else(|error| panic!("{error}"));
    let (major, minor, patch) = library.version();
    let packaged = packaged_version(path).expect("a package's folder around the library");
    assert_eq!(format!("{major}.{minor}.{patch}"), packaged);
}

/// Where there is a driver, the device after its last one is what is missing.
#[test]
fn a_world_without_what_nccl_needs_fails_at_once() {
    let start = Instant::now();
    let (device, expected) = match CudaDriver::load() {
        Ok(driver) => {
            let count = driver.device_count();
            (
                count,
                format!("CUDA device {count} is asked for, but this process sees {count}"),
            )
        }
        Err(error) => (0, error.to_string()),
    };
    let error = World::from_env_with(on(device))
        .expect_err("it is missing")
        .to_string();
    assert!(error.starts_with(&expected), "{error}");
    let ran = std::sync::atomic::AtomicBool::new(false);
    let threads = launch_threads(2, on(device), |_| {
        ran.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    });
    let error = threads.expect_err("it is missing").to_string();
    assert!(error.starts_with(&expected), "{error}");
    assert!(!ran.into_inner(), "no rank runs");
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
