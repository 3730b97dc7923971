//! Any bytes for `redis_stored`.
#![no_main]

#[path = "../stored.rs"]
#[allow(dead_code)]
mod stored;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stored::redis_stored(bytes));
