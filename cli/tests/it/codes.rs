//! What `run` exits with.

use rustix::process::Signal;

use crate::bed::{Bed, until};

#[test]
fn the_commands_own_code_passes_through() {
    let bed = Bed::new();
    for code in [0, 1, 3, 75, 255] {
        let ran = bed.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""));
    }
}

#[test]
fn a_command_that_a_signal_ended_is_128_and_the_signal() {
    let bed = Bed::new();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let ran = bed.run(&["run", "a", "-c", &format!("kill -{signal} $$; sleep 60")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""), "{signal}");
    }
}

#[test]
fn what_cannot_be_started_is_126_and_what_is_not_there_127() {
    let bed = Bed::new();
    let ran = bed.run(&["run", "a", "--", "no-such-command"]);
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("no-such-command"), "{}", ran.err);
    let ran = bed.run(&["run", "a", "--", "/etc/passwd"]);
    assert_eq!(ran.code, 126);
    assert!(ran.err.contains("/etc/passwd"), "{}", ran.err);
    // Neither leaves the lock behind.
    assert_eq!(bed.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

#[test]
fn a_held_lock_is_1_or_what_was_asked_for() {
    let bed = Bed::new();
    let mut holder = bed.start(&["hold", "a"]);
    holder.line();
    for (options, code) in [
        (&["-n"][..], 1),
        (&["-w", "0"], 1),
        (&["-w", "0.2"], 1),
        (&["-w", "200ms"], 1),
        (&["-n", "-E", "99"], 99),
        (&["-w", "0.2", "-E", "0"], 0),
        (&["-n", "-s"], 1),
    ] {
        let words = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
        let ran = bed.run(&words);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{options:?}");
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.err.contains("lock a is"), "{}", ran.err);
    }
    let ran = bed.run(&["run", "-nq", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (1, "", ""));
    assert!(holder.runs());
    // Nobody who gave up stands in line still.
    bed.await_waiters("a", 0);
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
fn max_hold_ends_the_command_with_75() {
    let bed = Bed::new();
    let begun = std::time::Instant::now();
    let script = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done";
    let ran = bed.run(&["run", "--max-hold", "300ms", "a", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (75, "asked\n"), "{}", ran.err);
    assert!(ran.err.contains("--max-hold"), "{}", ran.err);
    assert!(begun.elapsed().as_millis() >= 300);
    // Who does not listen is killed.
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
    until("the lock is free", || bed.show("a")["token"].is_null());
}
