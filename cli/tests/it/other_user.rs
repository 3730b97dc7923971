//! A command that changes its user, as sudo does: `run` may not signal it. These tests start `run` as another user, so
//! they do nothing unless root runs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use crate::fixture::{Fixture, Running, lives, send, until};

/// Changes the user of the processes below it, as sudo does.
const BECOME_ROOT: &str = r#"
#include <unistd.h>
int main(int count, char **words) {
    if (count < 2 || setgid(0) || setuid(0)) return 99;
    execvp(words[1], words + 1);
    return 98;
}
"#;

const AS_NOBODY: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "env",
    "--default-signal",
];

/// A store and a directory for a user who is not root, with a program in it that becomes root.
fn fixture() -> Option<Fixture> {
    if !geteuid().is_root() {
        return None;
    }
    let fixture = Fixture::new();
    fs::set_permissions(fixture.path("."), Permissions::from_mode(0o777)).unwrap();
    fs::write(fixture.path("root.c"), BECOME_ROOT).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-o", &fixture.path("root"), &fixture.path("root.c")]);
    let compiled = crate::fixture::finish(compile);
    assert_eq!(compiled.code, 0, "{compiled:?}");
    fs::set_permissions(fixture.path("root"), Permissions::from_mode(0o4755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_fencelock"), fixture.path("fencelock")).unwrap();
    Some(fixture)
}

fn as_nobody(fixture: &Fixture, words: &[&str]) -> Running {
    let fencelock = fixture.path("fencelock");
    let start = [&AS_NOBODY[..], &[&fencelock]].concat();
    Running::start(fixture.command_through(&start, words))
}

#[test]
fn a_command_that_became_root_keeps_the_lock_until_it_ends() {
    let Some(fixture) = fixture() else { return };
    let script = "echo $$; until test -e over; do sleep 0.01; done";
    let words = [
        "run",
        "--ttl",
        "2s",
        "--max-hold",
        "2s",
        "--kill-after",
        "100ms",
        "a",
        "--",
    ];
    let mut running = as_nobody(
        &fixture,
        &[&words[..], &["./root", "sh", "-c", script]].concat(),
    );
    let command: i32 = running.line().parse().unwrap();
    // Longer than `--max-hold` and `--kill-after`.
    std::thread::sleep(Duration::from_secs(3));
    assert!(lives(command));
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 1);
    fs::write(fixture.path("over"), "").unwrap();
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    for part in [
        "another user",
        "sudo fencelock run",
        "until it ended by itself",
    ] {
        assert!(ran.err.contains(part), "{part:?} is not in {}", ran.err);
    }
    assert!(!ran.err.contains("was ended"), "{}", ran.err);
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

#[test]
fn a_part_of_a_command_that_became_root_keeps_the_lock_for_its_lease() {
    let Some(fixture) = fixture() else { return };
    let script = "./root sleep 60 & echo $$ $!; wait";
    let words = ["run", "--ttl", "6s", "--max-hold", "2s", "a", "-c", script];
    let mut running = as_nobody(&fixture, &words);
    let line = running.line();
    let (command, part) = line.split_once(' ').unwrap();
    let (command, part): (i32, i32) = (command.parse().unwrap(), part.parse().unwrap());
    until("the command is ended", || !lives(command));
    let ended = Instant::now();
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 1);
    let next = fixture.run(&["run", "a", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
    // The last renewal was at most a third of the ttl ago.
    let waited = ended.elapsed();
    assert!(waited > Duration::from_millis(1500), "{waited:?}");
    assert!(lives(part));
    until("it has ended", || !running.runs());
    // This process still has the output open.
    send(part, Signal::KILL);
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    for part in ["another user", "sudo fencelock run", "still runs"] {
        assert!(ran.err.contains(part), "{part:?} is not in {}", ran.err);
    }
    assert!(!ran.err.contains("was ended"), "{}", ran.err);
}
