//! Any bytes for `etcd_stored`.
#![no_main]

#[path = "../stored.rs"]
#[allow(dead_code)]
mod stored;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stored::etcd_stored(bytes));
