//! What happens within one process: exceptions, interrupted calls, and the end of a client.

use crate::program::{node_dir, run};
use crate::service::Service;

fn runs(program: &str) {
    let service = Service::start();
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    run(&node_dir(), program, &[&url]);
}

#[test]
fn a_loss_before_the_body_begins_is_told() {
    runs("lost_before.py");
}

#[test]
fn a_lock_whose_attach_was_interrupted_is_not_renewed() {
    runs("interrupted.py");
}

#[test]
fn a_python_client_that_is_closed_ends_its_calls() {
    runs("closed.py");
}

#[test]
fn a_node_client_that_is_closed_has_left_the_queue() {
    runs("closed.mjs");
}

#[test]
fn a_lock_whose_detach_was_cancelled_is_renewed() {
    runs("kept.py");
}
