//! `run` without failures: exclusion, order, environment, streams, signals.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::{Fixture, Running, finish, only_child, processes, until};

/// A script that records whether another copy of it runs, and its argument.
const ALONE: &str = "mkdir running 2>/dev/null || echo overlap >> overlaps; echo $0 >> order; sleep 0.01; rmdir running";

#[test]
fn two_never_overlap() {
    let fixture = Fixture::new();
    let loops = "for i in 1 2 3 4 5 6 7 8 9 10; do \"$0\" run a -- sh -c \"$1\" $i || exit 1; done";
    let both = [0, 1].map(|_| {
        let mut command = std::process::Command::new("sh");
        let fencelock = env!("CARGO_BIN_EXE_fencelock");
        command.args(["-c", loops, fencelock, ALONE]);
        command.current_dir(fixture.path("."));
        command.env("FENCELOCK_STORE", fixture.store());
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        Running::start(command)
    });
    for running in both {
        let ran = running.end();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
    assert_eq!(fixture.read("overlaps"), "");
    assert_eq!(fixture.read("order").lines().count(), 20);
}

#[test]
fn fifty_run_one_after_another_in_the_order_of_their_arrival() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    let all: Vec<Running> = (0..50)
        .map(|i| {
            let waiter = fixture.start(&["run", "a", "--", "sh", "-c", ALONE, &i.to_string()]);
            fixture.await_waiters("a", i + 1);
            waiter
        })
        .collect();
    holder.end_input();
    for running in all {
        assert_eq!(running.end().code, 0);
    }
    let order: Vec<usize> = fixture
        .read("order")
        .lines()
        .map(|i| i.parse().unwrap())
        .collect();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    assert_eq!(fixture.read("overlaps"), "");
}

#[test]
fn the_command_knows_its_lock() {
    let fixture = Fixture::new();
    let print = "echo $FENCELOCK_NAME; echo $FENCELOCK_TOKEN; echo $FENCELOCK_SEQUENCER; echo $FENCELOCK_OWNER;\
                 \"$0\" check $FENCELOCK_SEQUENCER && echo checked";
    let fencelock = env!("CARGO_BIN_EXE_fencelock");
    let run = || fixture.run(&["run", "a b", "--", "sh", "-c", print, fencelock]);
    let (first, second) = (run(), run());
    let lines = |out: &str| out.lines().map(str::to_owned).collect::<Vec<_>>();
    let [name, token, sequencer, owner, checked] = &lines(&first.out)[..] else {
        panic!("{first:?}");
    };
    assert_eq!((name.as_str(), checked.as_str()), ("a b", "checked"));
    assert!(
        sequencer.starts_with(&format!("fl1:x:{token}:")),
        "{sequencer}"
    );
    assert!(sequencer.ends_with(":a%20b"), "{sequencer}");
    assert!(owner.contains('#'), "{owner}");
    let number = |token: &str| token.parse::<u64>().unwrap();
    assert!(number(token) < number(&lines(&second.out)[1]));
    assert_eq!(fixture.run(&["check", sequencer]).code, 1);
}

#[test]
fn streams_are_the_commands_own() {
    let fixture = Fixture::new();
    let mut cat = fixture.start(&["run", "a", "--", "cat"]);
    cat.type_in("one\n");
    assert_eq!(cat.line(), "one");
    cat.type_in("two");
    let ran = cat.end();
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (0, "two", "")
    );
    let ran = fixture.run(&["run", "a", "-c", "echo out; echo err >&2"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("out\n", "err\n"));
    // The command can close its input.
    let mut deaf = fixture.start(&["run", "a", "-c", "exec < /dev/null; echo closed; sleep 60"]);
    assert_eq!(deaf.line(), "closed");
    deaf.signal(Signal::TERM);
    assert_eq!(deaf.end().code, 143);
}

#[test]
fn no_signal_is_blocked_or_ignored_in_the_command() {
    let fixture = Fixture::new();
    let mask = |ran: &str, what: &str| {
        let line = ran.lines().find_map(|line| line.strip_prefix(what));
        // The C library uses the signals from 32 on.
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & 0x7fff_ffff
    };
    let inside = fixture
        .run(&["run", "a", "--", "cat", "/proc/self/status"])
        .out;
    assert_eq!(mask(&inside, "SigBlk:"), 0);
    assert_eq!(mask(&inside, "SigIgn:"), 0);
    // A signal that was ignored before stays ignored.
    let mut nohup = std::process::Command::new("nohup");
    nohup.args([env!("CARGO_BIN_EXE_fencelock"), "run", "a", "--", "cat"]);
    nohup
        .arg("/proc/self/status")
        .env("FENCELOCK_STORE", fixture.store());
    nohup.stdin(std::process::Stdio::null());
    let inside = finish(nohup).out;
    let hup = 1 << (Signal::HUP.as_raw() - 1);
    assert_eq!(mask(&inside, "SigIgn:") & hup, hup);
}

#[test]
fn signals_are_passed_on() {
    let fixture = Fixture::new();
    let script = "for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo got $s\" $s; done; echo ready; \
                  while :; do sleep 60 & wait; done";
    let mut running = fixture.start(&["run", "a", "-c", script]);
    assert_eq!(running.line(), "ready");
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        running.signal(signal);
        assert_eq!(running.line(), format!("got {name}"));
    }
    assert!(running.runs());
}

#[test]
fn the_command_and_its_supervisor_have_groups_of_their_own() {
    let fixture = Fixture::new();
    let mut running = fixture.start(&["run", "a", "-c", "echo $$; sleep 60"]);
    let command: i32 = running.line().parse().unwrap();
    let supervisor = only_child(running.pid());
    let all = processes();
    let group = |pid| all.iter().find(|process| process.pid == pid).unwrap().group;
    assert_eq!(only_child(supervisor), command);
    assert_eq!(group(command), command);
    assert_eq!(group(supervisor), supervisor);
    assert_ne!(group(running.pid()), supervisor);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 143);
    until("the supervisor is gone", || {
        !crate::fixture::lives(supervisor)
    });
}

#[test]
fn a_background_process_of_the_command_stays() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["run", "a", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"]);
    assert_eq!(ran.code, 0);
    let left: i32 = ran.out.trim().parse().unwrap();
    assert!(crate::fixture::lives(left));
    crate::fixture::send(left, Signal::KILL);
}

#[test]
fn the_store_of_the_command_line_wins_in_every_position() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    let other = format!("sqlite:{}", fixture.path("other.db"));
    for words in [
        ["--store", &other, "run", "-n", "a", "true"],
        ["run", "--store", &other, "-n", "a", "true"],
    ] {
        assert_eq!(fixture.run(&words).code, 0, "{words:?}");
    }
    assert_eq!(fixture.run(&["run", "-n", "a", "true"]).code, 1);
}

#[test]
fn the_default_store_is_a_file_of_the_user() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["run", "a", "--", "true"]);
    command.env_remove("FENCELOCK_STORE");
    command.env("XDG_STATE_HOME", fixture.path("state"));
    assert_eq!(finish(command).code, 0);
    assert!(std::path::Path::new(&fixture.path("state/fencelock/locks.db")).exists());
}

#[test]
fn verbose_prints_what_happens() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["run", "-v", "a", "--", "true"]);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("lock a is held, token"), "{lines:?}");
    assert!(lines[1].contains("lock a is released"), "{lines:?}");
}

#[test]
fn at_least_keeps_the_lock_after_the_command_has_ended() {
    let fixture = Fixture::new();
    let begun = Instant::now();
    let once = &["run", "-nv", "--at-least", "6s", "a", "--", "echo", "ran"];
    let first = fixture.run(once);
    assert_eq!((first.code, first.out.as_str()), (0, "ran\n"), "{first:?}");
    assert!(first.err.contains("stays taken for another"), "{first:?}");
    let second = fixture.run(once);
    assert_eq!((second.code, second.out.as_str()), (1, ""), "{second:?}");
    assert_eq!(fixture.show("a")["holders"].as_array().unwrap().len(), 1);
    // If this took longer than the time, the test would prove nothing.
    assert!(begun.elapsed() < Duration::from_secs(6));
    let third = fixture.run(&["run", "--at-least", "0", "a", "--", "echo", "ran"]);
    assert_eq!((third.code, third.out.as_str()), (0, "ran\n"), "{third:?}");
    assert!(begun.elapsed() >= Duration::from_secs(6));
    assert_eq!(fixture.run(once).code, 0, "--at-least 0 is none");
}

#[test]
fn at_least_counts_for_a_hold_too() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--at-least", "1m", "a"]);
    hold.line();
    assert_eq!(hold.end().code, 0);
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 1);
    let token = fixture.show("a")["token"].to_string();
    let released = fixture.run(&["release", "a", "--token", &token]);
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 0);
    let longer = fixture.run(&["run", "--at-least", "2h", "--max-hold", "1h", "a", "true"]);
    assert_eq!(longer.code, 64, "{longer:?}");
    assert!(longer.err.contains("--at-least \"2h\""), "{longer:?}");
}
