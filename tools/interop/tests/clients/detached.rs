//! A hold goes from one process to another as data, also between languages.

use std::path::Path;
use std::process::Command;

use crate::program::{node_dir, python};
use crate::service::Service;

/// One program takes the lock, and the other one continues with it.
fn goes(from: &str, to: &str) {
    let service = Service::start();
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let dir = node_dir();
    for (step, program) in [("take", from), ("attach", to)] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("clients")
            .join(program);
        std::fs::copy(source, dir.path().join(program)).expect("copied");
        let mut command = match program.ends_with(".py") {
            true => python(),
            false => Command::new("node"),
        };
        command
            .args([program, &url, step, "detached.json"])
            .current_dir(dir.path());
        let ran = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{step}: {said}");
    }
}

#[test]
fn a_python_process_goes_on_with_the_lock_of_another() {
    goes("detached.py", "detached.py");
}

#[test]
fn a_node_process_goes_on_with_the_lock_of_another() {
    goes("detached.mjs", "detached.mjs");
}

#[test]
fn a_python_process_goes_on_with_the_lock_of_a_node_process() {
    goes("detached.mjs", "detached.py");
}

#[test]
fn a_node_process_goes_on_with_the_lock_of_a_python_process() {
    goes("detached.py", "detached.mjs");
}
