//! Exclusion covers the command: however `run` ends, its command has ended before the lock is granted again.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::fixture::{Fixture, Running, group, lives, only_child, send, until};

/// Ignores SIGTERM, has a child that ignores it too, and prints its process id.
const DEAF: &str = "trap '' TERM; sleep 60 & echo $$; wait";

/// Prints whether a process of the group `$0` runs. Processes that have ended but are not reaped do not count.
const LIVENESS: &str = "ps -eo pgid=,stat= | grep -q \"^ *$0 [^Z]\" && echo lives || echo gone";

/// Starts a command that ignores SIGTERM, under a lease of this length.
fn deaf(fixture: &Fixture, ttl: &str) -> (Running, i32) {
    let mut running = fixture.start(&["run", "--ttl", ttl, "a", "-c", DEAF]);
    let command = running.line().parse().unwrap();
    until("its child runs", || group(command).len() >= 2);
    (running, command)
}

#[test]
fn kill_9_of_run_ends_the_group_before_the_lease_ends() {
    let fixture = Fixture::new();
    let (running, command) = deaf(&fixture, "6s");
    let supervisor = only_child(running.pid());
    let next = fixture.start(&["run", "a", "--", "sh", "-c", LIVENESS, &command.to_string()]);
    fixture.await_waiters("a", 1);
    let killed = Instant::now();
    running.signal(Signal::KILL);
    until("the group is gone", || group(command).is_empty());
    until("the supervisor is gone", || !lives(supervisor));
    let next = next.end();
    // The next holder saw that the group had ended before the lease.
    assert_eq!((next.code, next.out.as_str()), (0, "gone\n"));
    assert!(
        killed.elapsed() < Duration::from_secs(12),
        "{:?}",
        killed.elapsed()
    );
    drop(running);
}

#[test]
fn kill_9_of_run_leaves_time_to_clean_up() {
    let fixture = Fixture::new();
    let script =
        "trap 'echo cleaned > note; exit' TERM; echo up; while :; do sleep 60 & wait; done";
    let mut running = fixture.start(&["run", "a", "-c", script]);
    assert_eq!(running.line(), "up");
    running.signal(Signal::KILL);
    until("it has cleaned up", || fixture.read("note") == "cleaned\n");
}

#[test]
fn kill_9_of_the_supervisor_ends_the_group_at_once() {
    let fixture = Fixture::new();
    let (running, command) = deaf(&fixture, "30s");
    send(only_child(running.pid()), Signal::KILL);
    until("the group is gone", || group(command).is_empty());
    let ran = running.end();
    assert_eq!(ran.code, 70, "{}", ran.err);
    assert!(ran.err.contains("supervisor"), "{}", ran.err);
    assert_eq!(fixture.run(&["run", "-n", "a", "true"]).code, 0);
}

#[test]
fn kill_9_of_run_and_supervisor_together_ends_the_command() {
    let fixture = Fixture::new();
    let (running, command) = deaf(&fixture, "30s");
    let supervisor = only_child(running.pid());
    // Both are stopped first, so that neither can react to the end of the other.
    for signal in [Signal::STOP, Signal::KILL] {
        running.signal(signal);
        send(supervisor, signal);
    }
    until("the command is gone", || !lives(command));
    for left in group(command) {
        send(left, Signal::KILL);
    }
}

#[test]
fn the_supervisor_ignores_signals() {
    let fixture = Fixture::new();
    let mut running = fixture.start(&["run", "a", "-c", "echo up; cat"]);
    assert_eq!(running.line(), "up");
    let supervisor = only_child(running.pid());
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::TSTP,
    ] {
        send(supervisor, signal);
    }
    running.type_in("still here\n");
    assert_eq!(running.line(), "still here");
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn a_stopped_run_loses_its_command_at_the_deadline() {
    let fixture = Fixture::new();
    let (mut running, command) = deaf(&fixture, "5s");
    let next = fixture.start(&["run", "a", "--", "sh", "-c", LIVENESS, &command.to_string()]);
    fixture.await_waiters("a", 1);
    running.signal(Signal::STOP);
    until("the group is gone", || group(command).is_empty());
    let next = next.end();
    // The next holder saw that the group had ended before the lease.
    assert_eq!((next.code, next.out.as_str()), (0, "gone\n"));
    assert!(running.runs());
    let continued = Instant::now();
    running.signal(Signal::CONT);
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(ran.err.contains("lock a was lost"), "{}", ran.err);
    assert!(
        continued.elapsed() < Duration::from_secs(12),
        "{:?}",
        continued.elapsed()
    );
}

#[test]
fn the_command_of_a_stopped_run_gets_sigterm_before_the_deadline() {
    let fixture = Fixture::new();
    let script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 60 & wait; done";
    let begun = Instant::now();
    let mut running = fixture.start(&["run", "--ttl", "6s", "a", "-c", script]);
    assert_eq!(running.line(), "up");
    let stopped = Instant::now();
    running.signal(Signal::STOP);
    assert_eq!(running.line(), "asked");
    // The grace period is a third of the ttl. A twelfth before the end the command is killed.
    let (early, late) = (begun.elapsed(), stopped.elapsed());
    assert!(early > Duration::from_millis(3700), "{early:?}");
    assert!(late < Duration::from_millis(5400), "{late:?}");
    running.signal(Signal::CONT);
    assert_eq!(running.end().code, 75);
}

#[test]
fn after_a_stop_of_everything_past_the_lease_the_command_is_killed_at_once() {
    let fixture = Fixture::new();
    let script = "trap '' TERM; echo tick >> ticks; echo $$; while :; do echo tick >> ticks; sleep 0.2; done";
    let mut running = fixture.start(&["run", "--ttl", "3s", "a", "-c", script]);
    let command: i32 = running.line().parse().unwrap();
    let supervisor = only_child(running.pid());
    let send_all = |signal| {
        running.signal(signal);
        send(supervisor, signal);
        // The supervisor may have ended it already.
        let _ = kill_process_group(Pid::from_raw(command).unwrap(), signal);
    };
    send_all(Signal::STOP);
    // The lease of the stopped processes ends, and the lock is granted again.
    let next = fixture.run(&["run", "a", "--", "cat", "ticks"]);
    assert_eq!(next.code, 0);
    let begun = Instant::now();
    send_all(Signal::CONT);
    until("the group is gone", || group(command).is_empty());
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "{:?}",
        begun.elapsed()
    );
    // It had at most the time to end the step in which it was stopped.
    let ticks = fixture.read("ticks").lines().count() - next.out.lines().count();
    assert!(ticks <= 2, "{ticks} steps after the lease");
}

#[test]
fn run_kills_the_command_of_a_stopped_supervisor() {
    let fixture = Fixture::new();
    let (running, command) = deaf(&fixture, "30s");
    let supervisor = only_child(running.pid());
    send(supervisor, Signal::STOP);
    // An eviction: `run` sees it at its next renewal, but the stopped supervisor gets no order.
    let token = fixture.show("a")["token"].to_string();
    assert_eq!(fixture.run(&["release", "a", "--token", &token]).code, 0);
    until("the group is gone", || group(command).is_empty());
    assert_eq!(running.end().code, 75);
    until("the supervisor is gone", || !lives(supervisor));
}

#[test]
fn a_lock_that_is_taken_away_ends_the_command() {
    let fixture = Fixture::new();
    let (running, command) = deaf(&fixture, "5s");
    let token = fixture.show("a")["token"].to_string();
    assert_eq!(fixture.run(&["release", "a", "--token", &token]).code, 0);
    until("the group is gone", || group(command).is_empty());
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

#[test]
fn a_request_to_release_sends_sigterm_to_the_command() {
    let fixture = Fixture::new();
    let script = "trap 'echo asked; exit 9' TERM; echo up; while :; do sleep 60 & wait; done";
    let mut running = fixture.start(&["run", "--ttl", "5s", "a", "-c", script]);
    assert_eq!(running.line(), "up");
    let token = fixture.show("a")["token"].to_string();
    assert_eq!(
        fixture
            .run(&["release", "a", "--token", &token, "--ask"])
            .code,
        0
    );
    assert_eq!(running.line(), "asked");
    let ran = running.end();
    assert_eq!(ran.code, 9);
    assert!(ran.err.contains("release --ask"), "{}", ran.err);
}

#[test]
fn a_lock_delay_keeps_the_next_claim_out_after_a_kill() {
    let fixture = Fixture::new();
    let words = [
        "run",
        "--ttl",
        "2400ms",
        "--lock-delay",
        "1500ms",
        "a",
        "-c",
        "echo up; sleep 60",
    ];
    let begun = Instant::now();
    let mut running = fixture.start(&words);
    assert_eq!(running.line(), "up");
    running.signal(Signal::KILL);
    assert_eq!(fixture.run(&["run", "a", "true"]).code, 0);
    // The lease ends 2.4 s after the grant at the earliest.
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(3700), "{waited:?}");
}
