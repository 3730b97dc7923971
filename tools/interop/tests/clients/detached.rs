//! A hold goes from one process to another as data, also between languages.

use crate::program::{node_dir, run};
use crate::service::Service;

/// One program takes the lock, and the other one continues with it.
fn goes(from: &str, to: &str) {
    let service = Service::start();
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let dir = node_dir();
    for (step, program) in [("take", from), ("attach", to)] {
        run(&dir, program, &[&url, step, "detached.json"]);
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
