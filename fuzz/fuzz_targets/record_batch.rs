//! See the module of the same name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater_fuzz::record_batch::run(data));
