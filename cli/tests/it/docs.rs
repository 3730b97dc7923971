//! The shell of docs/fencing.md, docs/composite.md and docs/configuration.md runs.

use std::process::{Command, Stdio};

use crate::fixture::{Fixture, finish};

#[test]
fn the_examples_of_the_page_on_fencing_run() {
    run(include_str!("../../../docs/fencing.md"), 5);
}

#[test]
fn the_examples_of_the_page_on_sets_run() {
    run(include_str!("../../../docs/composite.md"), 1);
}

#[test]
fn the_examples_of_the_page_on_the_configuration_file_run() {
    run(include_str!("../../../docs/configuration.md"), 1);
}

fn run(page: &str, count: usize) {
    let blocks = page.split("```sh\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), count);
    for block in blocks {
        let fixture = Fixture::new();
        let here = std::path::Path::new(env!("CARGO_BIN_EXE_fencelock"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", here.parent().unwrap().display());
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", block])
            .current_dir(fixture.path(""))
            .env_remove("FENCELOCK_OWNER")
            .env("FENCELOCK_STORE", fixture.store())
            .env("SHELL", "/bin/sh")
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{block}\n{ran:?}");
    }
}
