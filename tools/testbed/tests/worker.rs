//! Child processes: lines, signals, and no child outlives this process.
#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use fencelock_testbed::{Process, Streams, Worker};

#[test]
fn speaks_in_lines_and_ends_with_its_input() {
    let mut worker = Worker::spawn(&Command::new("cat")).unwrap();
    worker.send("one").unwrap();
    worker.send("two").unwrap();
    assert_eq!(worker.line_blocking().as_deref(), Some("one"));
    assert_eq!(worker.line_blocking().as_deref(), Some("two"));
    worker.end_input();
    assert_eq!(worker.line_blocking(), None);
    let ended = worker.process().wait_for(Duration::from_secs(5));
    assert!(ended.unwrap().0.success());
    assert!(worker.send("three").is_err());
    assert!(
        worker
            .process()
            .pause()
            .unwrap_err()
            .to_string()
            .contains("has ended")
    );
}

#[test]
fn a_stopped_worker_goes_on_where_it_was() {
    let mut worker = Worker::spawn(&Command::new("cat")).unwrap();
    worker.process().pause().unwrap();
    let stat = format!("/proc/{}/stat", worker.process().pid());
    let state = std::fs::read_to_string(stat).unwrap();
    assert!(state.contains(") T "), "{state}");
    worker.send("buffered").unwrap();
    worker.process().resume().unwrap();
    assert_eq!(worker.line_blocking().as_deref(), Some("buffered"));
}

#[test]
fn killed_means_gone() {
    let worker = Worker::spawn(&Command::new("cat")).unwrap();
    let pid = worker.process().pid();
    assert_eq!(worker.process().kill9().0.signal(), Some(9));
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_program_that_is_not_there_ends_at_once_or_is_an_error() {
    let streams = Streams {
        stdin: std::process::Stdio::null(),
        stdout: std::process::Stdio::null(),
        stderr: std::process::Stdio::null(),
    };
    let spawned = Process::spawn(&Command::new("/no/such/program"), streams);
    if let Ok(process) = spawned {
        let ended = process.wait_for(Duration::from_secs(5));
        assert_eq!(ended.unwrap().0.code(), Some(127));
    }
}
