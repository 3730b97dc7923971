//! A `run` within a `run`.

use rustix::process::Signal;

use crate::bed::{Bed, group, until};

const FENCELOCK: &str = env!("CARGO_BIN_EXE_fencelock");

#[test]
fn the_same_name_joins_the_hold_and_the_group() {
    let bed = Bed::new();
    let inner = "echo $FENCELOCK_TOKEN $FENCELOCK_SEQUENCER $FENCELOCK_OWNER; ps -o pgid= -p $$";
    let outer = "echo $FENCELOCK_TOKEN $FENCELOCK_SEQUENCER $FENCELOCK_OWNER; ps -o pgid= -p $$; \
                 \"$0\" run -w 5 a -- sh -c \"$1\"; echo code $?; \"$0\" check $FENCELOCK_SEQUENCER";
    let ran = bed.run(&["run", "a", "--", "sh", "-c", outer, FENCELOCK, inner]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<&str> = ran.out.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[0..2], lines[2..4]);
    assert_eq!(lines[4], "code 0");
    // It was released once, by the outer one.
    assert!(bed.show("a")["token"].is_null());
}

#[test]
fn codes_pass_through_a_nested_run() {
    let bed = Bed::new();
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137)] {
        let words = ["run", "a", "--", FENCELOCK, "run", "a", "-c", script];
        assert_eq!(bed.run(&words).code, code);
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
    assert_eq!(bed.run(&words).code, 127);
}

#[test]
fn shared_joins_exclusive_but_not_the_other_way_round() {
    let bed = Bed::new();
    let words = [
        "run", "a", "--", FENCELOCK, "run", "-s", "a", "--", "echo", "ran",
    ];
    assert_eq!(bed.run(&words).out, "ran\n");
    let words = [
        "run", "-s", "a", "--", FENCELOCK, "run", "-x", "a", "--", "echo", "ran",
    ];
    let ran = bed.run(&words);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{}", ran.err);
    assert!(ran.err.contains("exclusive"), "{}", ran.err);
}

#[test]
fn another_name_is_a_hold_of_its_own() {
    let bed = Bed::new();
    let words = [
        "run", "a", "--", FENCELOCK, "run", "b", "--", FENCELOCK, "run", "a", "-n", "--", "sh",
        "-c",
    ];
    let script = "\"$0\" ls --json; ps -o pgid= -p $PPID";
    let ran = bed.run(&[&words[..], &[script, FENCELOCK]].concat());
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

/// Two commands side by side within one do not enter each other's locks.
#[test]
fn siblings_exclude_each_other() {
    let bed = Bed::new();
    // As one beside it would, which has the same owner around it.
    let beside = "FENCELOCK_OWNER=$AROUND \"$0\" run -n b -- echo both; echo code $?; \
                  FENCELOCK_OWNER=$AROUND \"$0\" run -n a -- echo joined";
    let script = "AROUND=$FENCELOCK_OWNER \"$0\" run b -- sh -c \"$1\" \"$0\"";
    let ran = bed.run(&["run", "a", "--", "sh", "-c", script, FENCELOCK, beside]);
    assert_eq!(ran.out, "code 1\njoined\n", "{}", ran.err);
}

#[test]
fn an_owner_whose_hold_is_over_joins_nothing() {
    let bed = Bed::new();
    let ran = bed.run(&["run", "a", "-c", "echo $FENCELOCK_OWNER"]);
    let owner = ran.out.trim();
    let mut holder = bed.start(&["hold", "a"]);
    holder.line();
    let mut late = bed.command(&["run", "-n", "a", "--", "echo", "ran"]);
    late.env("FENCELOCK_OWNER", owner);
    let late = crate::bed::finish(late);
    assert_eq!((late.code, late.out.as_str()), (1, ""), "{}", late.err);
}

#[test]
fn a_text_that_is_no_owner_is_refused() {
    let bed = Bed::new();
    let mut command = bed.command(&["run", "a", "--", "echo", "ran"]);
    command.env("FENCELOCK_OWNER", "somebody");
    let ran = crate::bed::finish(command);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""));
    assert!(
        ran.err.contains("somebody") && ran.err.contains("FENCELOCK_OWNER"),
        "{}",
        ran.err
    );
}

#[test]
fn the_outer_guard_ends_a_nested_command_as_well() {
    let bed = Bed::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let words = [
        "run", "--ttl", "1s", "a", "--", FENCELOCK, "run", "--ttl", "1s", "a", "-c", script,
    ];
    let mut outer = bed.start(&words);
    let command: i32 = outer.line().parse().unwrap();
    let group_of = |pid| {
        let all = crate::bed::processes();
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
    let bed = Bed::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let words = [
        "run", "--ttl", "1s", "a", "--", FENCELOCK, "run", "b", "-c", script,
    ];
    let mut outer = bed.start(&words);
    let command: i32 = outer.line().parse().unwrap();
    let next = bed.start(&[
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "kill -0 $0 2>&1 && echo lives || echo gone",
        &command.to_string(),
    ]);
    bed.await_waiters("a", 1);
    outer.signal(Signal::STOP);
    let next = next.end();
    assert!(next.out.ends_with("gone\n"), "{}", next.out);
    outer.signal(Signal::CONT);
    assert_eq!(outer.end().code, 75);
}

#[test]
fn a_short_lease_of_the_outer_command_does_not_end_the_inner_one() {
    let bed = Bed::new();
    // Its own command line names none, so 30 s, of which it would want the last five to end its command in.
    let words = [
        "run", "--ttl", "1500ms", "a", "--", FENCELOCK, "run", "a", "-c",
    ];
    let ran = bed.run(&[&words[..], &["sleep 2; echo done"]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
}

#[test]
fn an_empty_owner_is_none() {
    let bed = Bed::new();
    let mut command = bed.command(&["run", "a", "--", "echo", "ran"]);
    command.env("FENCELOCK_OWNER", "");
    let ran = crate::bed::finish(command);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
}
