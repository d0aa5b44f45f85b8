#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvtide_fuzz::index::run(input));
