//! The whole command: worker processes, real servers, faults, and the verdict.
#![allow(clippy::unwrap_used)]

mod runs;
mod scenarios;
mod stored;

use std::process::{Command, Output};

/// Runs the program to its end.
fn torture(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-torture"));
    command.args(words).output().unwrap()
}
