//! Every case on every engine.

use std::path::Path;
use std::process::ExitCode;

use fencelock_conformance::{harness, subjects};

fn main() -> ExitCode {
    let worker = Path::new(env!("CARGO_BIN_EXE_fencelock-conformance-worker"));
    harness::main(&subjects::all(), worker)
}
