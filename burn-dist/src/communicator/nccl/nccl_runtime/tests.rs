use std::sync::atomic::Ordering;

use super::super::fakes::Machine;
use super::*;

#[test]
fn each_missing_piece_has_its_own_error() {
    let text = |change: &dyn Fn(&Machine)| {
        let machine = Machine::new(0);
        change(&machine);
        match machine.driver() {
            Ok(driver) => driver.check_device(3, 4).expect_err("missing").to_string(),
            Err(error) => error.to_string(),
        }
    };
    let set = |what: &std::sync::atomic::AtomicI32, value| what.store(value, Ordering::SeqCst);
    let old = text(&|machine| set(&machine.driver_version, 12_040));
    assert!(
        old.starts_with("the NVIDIA driver serves CUDA 12.4, but"),
        "{old}"
    );
    let broken = text(&|machine| set(&machine.init_result, 999));
    assert!(
        broken.contains("does not start: CUDA says words of the driver (999)"),
        "{broken}"
    );
    for none in [
        text(&|machine| set(&machine.init_result, 100)),
        text(&|machine| set(&machine.device_count, 0)),
    ] {
        assert!(
            none.starts_with("the NVIDIA driver has no device"),
            "{none}"
        );
    }
    let few = text(&|machine| set(&machine.device_count, 2));
    assert!(
        few.contains("device 3 is asked for, but this process sees 2; the host has 4 ranks"),
        "{few}"
    );
    let outside = text(&|machine| set(&machine.device_count, 3));
    assert!(
        outside.contains("this process sees 3; the host has 4 ranks"),
        "{outside}"
    );
    let machine = Machine::new(0);
    let far = machine
        .driver()
        .expect("a driver")
        .check_device(8, 4)
        .expect_err("missing");
    assert!(
        far.to_string()
            .contains("device 8 is asked for, but this process sees 8, from 0"),
        "{far}"
    );
    set(&machine.nccl_version, 21_703);
    let old = machine.library().expect_err("too old").to_string();
    assert!(
        old.contains("is NCCL 2.17.3, but 2.18 or newer is needed"),
        "{old}"
    );
}

#[test]
fn what_is_not_nccl_is_not_taken_for_it() {
    let nowhere = NcclLibrary::load(Some(Path::new("no/such/libnccl.so.2"))).expect_err("missing");
    let text = nowhere.to_string();
    assert!(
        text.starts_with("NCCL could not be loaded from no/such/libnccl.so.2: "),
        "{text}"
    );
    assert!(text.contains("BURN_DIST_NCCL_LIBRARY"), "{text}");
    let other = NcclLibrary::load(Some(Path::new("libc.so.6"))).expect_err("not NCCL");
    let text = other.to_string();
    assert!(
        text.starts_with("libc.so.6 has no ncclGetVersion: it is not NCCL, or older than 2.18"),
        "{text}"
    );
}
