//! A `run` inside a `run`.

use rustix::process::Signal;

use crate::fixture::{Fixture, group, lives, until};

const FENCELOCK: &str = env!("CARGO_BIN_EXE_fencelock");

#[test]
fn the_same_name_joins_the_hold_and_the_group() {
    let fixture = Fixture::new();
    let inner = "echo $FENCELOCK_TOKEN $FENCELOCK_SEQUENCER $FENCELOCK_OWNER; ps -o pgid= -p $$";
    let outer = "echo $FENCELOCK_TOKEN $FENCELOCK_SEQUENCER $FENCELOCK_OWNER; ps -o pgid= -p $$; \
                 \"$0\" run -w 5 a -- sh -c \"$1\"; echo code $?; \"$0\" check $FENCELOCK_SEQUENCER";
    let ran = fixture.run(&["run", "a", "--", "sh", "-c", outer, FENCELOCK, inner]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<&str> = ran.out.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[0..2], lines[2..4]);
    assert_eq!(lines[4], "code 0");
    // The outer command has released it.
    assert!(fixture.show("a")["token"].is_null());
}

#[test]
fn codes_pass_through_a_nested_run() {
    let fixture = Fixture::new();
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137)] {
        let words = ["run", "a", "--", FENCELOCK, "run", "a", "-c", script];
        assert_eq!(fixture.run(&words).code, code);
    }
    let words = [
        "run",
        "a",
        "--",
        FENCELOCK,
        "run",
        "a",
        "--",
        "no-such-command",
    ];
    assert_eq!(fixture.run(&words).code, 127);
}

#[test]
fn shared_joins_exclusive_but_not_the_other_way_round() {
    let fixture = Fixture::new();
    let words = [
        "run", "a", "--", FENCELOCK, "run", "-s", "a", "--", "echo", "ran",
    ];
    assert_eq!(fixture.run(&words).out, "ran\n");
    let words = [
        "run", "-s", "a", "--", FENCELOCK, "run", "-x", "a", "--", "echo", "ran",
    ];
    let ran = fixture.run(&words);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{}", ran.err);
    assert!(ran.err.contains("exclusive"), "{}", ran.err);
}

#[test]
fn another_name_is_a_hold_of_its_own() {
    let fixture = Fixture::new();
    let words = [
        "run", "a", "--", FENCELOCK, "run", "b", "--", FENCELOCK, "run", "a", "-n", "--", "sh",
        "-c",
    ];
    let script = "\"$0\" ls --json; ps -o pgid= -p $PPID";
    let ran = fixture.run(&[&words[..], &[script, FENCELOCK]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let held: serde_json::Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    let names: Vec<_> = held
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| &lock["name"])
        .collect();
    assert_eq!(names, ["a", "b"]);
}

/// Two commands inside the same `run` exclude each other.
#[test]
fn siblings_exclude_each_other() {
    let fixture = Fixture::new();
    // A sibling of the nested command: both have the same outer owner.
    let sibling = "FENCELOCK_OWNER=$AROUND \"$0\" run -n b -- echo both; echo code $?; \
                  FENCELOCK_OWNER=$AROUND \"$0\" run -n a -- echo joined";
    let script = "AROUND=$FENCELOCK_OWNER \"$0\" run b -- sh -c \"$1\" \"$0\"";
    let ran = fixture.run(&["run", "a", "--", "sh", "-c", script, FENCELOCK, sibling]);
    assert_eq!(ran.out, "code 1\njoined\n", "{}", ran.err);
}

#[test]
fn an_owner_whose_hold_is_over_joins_nothing() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["run", "a", "-c", "echo $FENCELOCK_OWNER"]);
    let owner = ran.out.trim();
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    let mut late = fixture.command(&["run", "-n", "a", "--", "echo", "ran"]);
    late.env("FENCELOCK_OWNER", owner);
    let late = crate::fixture::finish(late);
    assert_eq!((late.code, late.out.as_str()), (1, ""), "{}", late.err);
}

#[test]
fn a_bad_owner_is_refused() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["run", "a", "--", "echo", "ran"]);
    command.env("FENCELOCK_OWNER", "no-owner");
    let ran = crate::fixture::finish(command);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""));
    assert!(
        ran.err.contains("no-owner") && ran.err.contains("FENCELOCK_OWNER"),
        "{}",
        ran.err
    );
}

#[test]
fn the_outer_supervisor_ends_a_nested_command_as_well() {
    let fixture = Fixture::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 60 & wait; done";
    let words = [
        "run", "--ttl", "3s", "a", "--", FENCELOCK, "run", "--ttl", "3s", "a", "-c", script,
    ];
    let mut outer = fixture.start(&words);
    let command: i32 = outer.line().parse().unwrap();
    let group_of = |pid| {
        let all = crate::fixture::processes();
        all.into_iter()
            .find(|process| process.pid == pid)
            .unwrap()
            .group
    };
    let id = group_of(command);
    assert_ne!(id, command);
    outer.signal(Signal::KILL);
    until("the group is gone", || group(id).is_empty());
}

#[test]
fn a_nested_hold_of_another_name_ends_with_the_outer_one() {
    let fixture = Fixture::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 60 & wait; done";
    let words = [
        "run", "--ttl", "4s", "a", "--", FENCELOCK, "run", "b", "-c", script,
    ];
    let mut outer = fixture.start(&words);
    let command: i32 = outer.line().parse().unwrap();
    let next = fixture.start(&[
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "kill -0 $0 2>&1 && echo lives || echo gone",
        &command.to_string(),
    ]);
    fixture.await_waiters("a", 1);
    outer.signal(Signal::STOP);
    let next = next.end();
    assert!(next.out.ends_with("gone\n"), "{}", next.out);
    outer.signal(Signal::CONT);
    assert_eq!(outer.end().code, 75);
}

#[test]
fn a_short_lease_of_the_outer_command_does_not_end_the_inner_one() {
    let fixture = Fixture::new();
    // The inner ttl is the default of 30 s, so its own grace would be the last 10 s, longer than the outer lease.
    let words = [
        "run",
        "--ttl",
        "9s",
        "a",
        "--",
        FENCELOCK,
        "run",
        "--kill-after",
        "1m",
        "a",
        "-c",
    ];
    let ran = fixture.run(&[&words[..], &["sleep 2; echo done"]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
}

/// The outer lease is long at first (`--at-least`), and short after that.
#[test]
fn a_lease_that_gets_shorter_does_not_end_the_inner_command() {
    let fixture = Fixture::new();
    let words = [
        "run",
        "--at-least",
        "6s",
        "--ttl",
        "2400ms",
        "a",
        "--",
        FENCELOCK,
        "run",
        "a",
        "-c",
    ];
    let run = || fixture.run(&[&words[..], &["sleep 7; echo done"]].concat());
    // A grace by the first lease would end it each time. A short lease also ends on a machine that stands still.
    let mut ran = run();
    for _ in 0..2 {
        if ran.code == 75 {
            ran = run();
        }
    }
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
}

/// The outer command has ended, and somebody else may hold the lock.
#[test]
fn a_loss_kills_an_inner_command_that_still_has_time_to_end() {
    let fixture = Fixture::new();
    let job = "trap '' TERM; echo $$; while :; do sleep 60 & wait; done";
    let outer = "\"$0\" run --max-hold 1800ms --kill-after 10m a -- sh -c \"$1\" & sleep 4";
    let mut outer = fixture.start(&["run", "a", "--", "sh", "-c", outer, FENCELOCK, job]);
    let command: i32 = outer.line().parse().unwrap();
    until("the outer command has ended", || !outer.runs());
    until("the inner command is killed", || !lives(command));
}

#[test]
fn an_empty_owner_counts_as_unset() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["run", "a", "--", "echo", "ran"]);
    command.env("FENCELOCK_OWNER", "");
    let ran = crate::fixture::finish(command);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
}
