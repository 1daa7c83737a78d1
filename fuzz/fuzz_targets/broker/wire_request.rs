//! See the module of the same name. Apart from the others, since `cargo xtask test fuzz` builds no broker.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater_fuzz::wire_request::run(data));
