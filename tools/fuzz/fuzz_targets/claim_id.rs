//! Any bytes for `claim_id`.
#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::claim_id(&String::from_utf8_lossy(bytes)));
