#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    burn_dist::fuzzing::store_request(bytes);
});
