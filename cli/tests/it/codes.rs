//! The exit codes of `run`.

use rustix::process::Signal;

use crate::exit_codes::{Described, all};
use crate::fixture::{Fixture, finish, until};

#[test]
fn every_code_on_a_file() {
    let fixture = Fixture::new();
    all(&Described {
        url: fixture.store().to_owned(),
        bad: (format!("{}?bogus=1", fixture.store()), "bogus"),
        server: None,
    });
}

#[test]
fn a_signal_that_ends_the_waiting_is_128_and_the_signal() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    for (signal, code) in [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let waiter = fixture.start(&["run", "a", "--", "echo", "ran"]);
        fixture.await_waiters("a", 1);
        waiter.signal(signal);
        let ran = waiter.end();
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{signal:?}");
        fixture.await_waiters("a", 0);
    }
}

#[test]
fn shared_holders_hold_together() {
    let fixture = Fixture::new();
    let mut one = fixture.start(&["hold", "--shared", "a"]);
    assert_eq!(one.json()["mode"], "shared");
    let second = fixture.run(&["run", "-n", "--shared", "a", "--", "echo", "ran"]);
    assert_eq!((second.code, second.out.as_str()), (0, "ran\n"));
    let alone = fixture.run(&["run", "-n", "-x", "a", "--", "echo", "ran"]);
    assert_eq!((alone.code, alone.out.as_str()), (1, ""));
}

#[test]
fn max_hold_kills_a_command_that_ignores_sigterm() {
    let fixture = Fixture::new();
    let begun = std::time::Instant::now();
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 60 & wait; done";
    let words = [
        "run",
        "--max-hold",
        "2s",
        "--kill-after",
        "100ms",
        "a",
        "-c",
        deaf,
    ];
    let ran = fixture.run(&words);
    assert_eq!((ran.code, ran.out.as_str()), (75, "deaf\n"), "{}", ran.err);
    assert!(begun.elapsed().as_secs() >= 2);
    until("the lock is free", || fixture.show("a")["token"].is_null());
}

/// While SIGCHLD is ignored, the kernel reaps children at once, and their exit codes cannot be read.
#[test]
fn the_code_of_the_command_even_if_sigchld_was_ignored() {
    let fixture = Fixture::new();
    let start = [
        "env",
        "--ignore-signal=CHLD",
        env!("CARGO_BIN_EXE_fencelock"),
    ];
    let command = |words: &[&str]| fixture.command_through(&start, words);
    let ran = finish(command(&["run", "a", "-c", "exit 3"]));
    assert_eq!((ran.code, ran.err.as_str()), (3, ""), "{ran:?}");
    let words = ["run", "a", "--", start[2], "run", "a", "-c", "exit 4"];
    let ran = finish(command(&words));
    assert_eq!((ran.code, ran.err.as_str()), (4, ""), "{ran:?}");
}
