//! Any bytes for `zookeeper_stored`.
#![no_main]

#[path = "../stored.rs"]
#[allow(dead_code)]
mod stored;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stored::zookeeper_stored(bytes));
