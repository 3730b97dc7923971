//! Every command of the README and of docs/command.md runs.

use std::process::{Command, Stdio};

use crate::fixture::{Fixture, finish};

const README: &str = include_str!("../../../README.md");
const COMMAND: &str = include_str!("../../../docs/command.md");

/// Commands about the source tree: they would run this test again.
const OF_THE_TREE: [&str; 2] = ["cargo install --path cli\n", "./test.sh\n"];

#[test]
fn the_commands_of_the_readme_run() {
    let fixture = Fixture::new();
    let here = std::path::Path::new(env!("CARGO_BIN_EXE_fencelock"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", here.parent().unwrap().display());
    let mut count = 0;
    for block in [README, COMMAND]
        .iter()
        .flat_map(|page| page.split("```sh\n").skip(1))
        .map(|block| block.split("```").next().unwrap())
        .filter(|block| !OF_THE_TREE.contains(block))
    {
        // The first command would build what is already built here.
        let block = block.replace("cargo run -q -- ", "fencelock ");
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", &block])
            .current_dir(fixture.path(""))
            .env_remove("FENCELOCK_OWNER")
            .env("FENCELOCK_STORE", fixture.store())
            .env("SHELL", "/bin/sh")
            .env("PATH", &path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{block}\n{ran:?}");
        count += 1;
    }
    assert!(count >= 5, "only {count} blocks were found");
}
