//! Every case on every engine.

use std::path::Path;
use std::process::ExitCode;

use fencelock_conformance::{harness, subjects};

fn main() -> ExitCode {
    let worker = Path::new(env!("CARGO_BIN_EXE_fencelock-conformance-worker"));
    let (mut all, replica) = (subjects::all(), subjects::OneReplica::new(worker));
    if subjects::wants_more() {
        all.push(&replica);
    }
    harness::main(&all, worker)
}
