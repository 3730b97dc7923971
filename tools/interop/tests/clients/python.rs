//! What can only happen within a Python process.

use std::path::Path;

use crate::program::python;
use crate::service::Service;

fn runs(program: &str) {
    let service = Service::start();
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let mut command = python();
    command.arg(clients.join(program)).arg(url);
    let ran = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}

#[test]
fn a_loss_before_the_body_begins_is_told() {
    runs("lost_before.py");
}

#[test]
fn a_lock_whose_attach_was_interrupted_is_not_renewed() {
    runs("interrupted.py");
}
