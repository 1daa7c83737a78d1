//! See the module of the same name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater_fuzz::replica_operations::run(data));
