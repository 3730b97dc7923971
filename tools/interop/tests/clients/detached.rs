//! A hold goes from one process to another, as data.

use std::path::Path;

use fencelock_testbed::Dir;

use crate::program::python;
use crate::service::Service;

#[test]
fn a_python_process_goes_on_with_the_lock_of_another() {
    let service = Service::start();
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let dir = Dir::new("detached").expect("a directory");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/detached.py");
    for step in ["take", "attach"] {
        let mut command = python();
        command
            .arg(&program)
            .args([&url, step, "detached.json"])
            .current_dir(dir.path());
        let ran = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{step}: {said}");
    }
}
