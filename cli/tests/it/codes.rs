//! What `run` exits with.

use rustix::process::Signal;

use crate::bed::{Bed, finish, until};
use crate::exit_codes::{Described, all};

#[test]
fn every_code_on_a_file() {
    let bed = Bed::new();
    all(&Described {
        url: bed.store().to_owned(),
        bad: (format!("{}?bogus=1", bed.store()), "bogus"),
        server: None,
    });
}

#[test]
fn a_signal_that_ends_the_waiting_is_128_and_the_signal() {
    let bed = Bed::new();
    let mut holder = bed.start(&["hold", "a"]);
    holder.line();
    for (signal, code) in [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let waiter = bed.start(&["run", "a", "--", "echo", "ran"]);
        bed.await_waiters("a", 1);
        waiter.signal(signal);
        let ran = waiter.end();
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{signal:?}");
        bed.await_waiters("a", 0);
    }
}

#[test]
fn shared_holders_stand_beside_each_other() {
    let bed = Bed::new();
    let mut one = bed.start(&["hold", "--shared", "a"]);
    assert_eq!(one.json()["mode"], "shared");
    let beside = bed.run(&["run", "-n", "--shared", "a", "--", "echo", "ran"]);
    assert_eq!((beside.code, beside.out.as_str()), (0, "ran\n"));
    let alone = bed.run(&["run", "-n", "-x", "a", "--", "echo", "ran"]);
    assert_eq!((alone.code, alone.out.as_str()), (1, ""));
}

#[test]
fn max_hold_kills_who_does_not_listen() {
    let bed = Bed::new();
    let begun = std::time::Instant::now();
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 0.01; done";
    let words = [
        "run",
        "--max-hold",
        "300ms",
        "--kill-after",
        "100ms",
        "a",
        "-c",
        deaf,
    ];
    let ran = bed.run(&words);
    assert_eq!((ran.code, ran.out.as_str()), (75, "deaf\n"), "{}", ran.err);
    assert!(begun.elapsed().as_millis() >= 300);
    until("the lock is free", || bed.show("a")["token"].is_null());
}

/// Some who start commands ignore word of children, and with it the children are gone before anybody can ask how they ended.
#[test]
fn the_commands_own_code_also_where_word_of_children_is_ignored() {
    let bed = Bed::new();
    let start = [
        "env",
        "--ignore-signal=CHLD",
        env!("CARGO_BIN_EXE_fencelock"),
    ];
    let command = |words: &[&str]| bed.command_through(&start, words);
    let ran = finish(command(&["run", "a", "-c", "exit 3"]));
    assert_eq!((ran.code, ran.err.as_str()), (3, ""), "{ran:?}");
    let words = ["run", "a", "--", start[2], "run", "a", "-c", "exit 4"];
    let ran = finish(command(&words));
    assert_eq!((ran.code, ran.err.as_str()), (4, ""), "{ran:?}");
}
