#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stanchion_engine::fuzz::label(data));
