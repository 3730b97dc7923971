//! Any bytes for `store_url`.
#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::store_url(&String::from_utf8_lossy(bytes)));
