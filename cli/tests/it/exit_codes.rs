//! Every exit code of `fencelock run`, on any store. The tests of each engine call [`all`].

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::{Fixture, Ran, group, until};

/// A store, and how it can fail.
pub(crate) struct Described<'a> {
    /// Its URL.
    pub(crate) url: String,
    /// A URL of this engine that cannot be used, and a word of the error.
    pub(crate) bad: (String, &'static str),
    /// The server, if the store is a server.
    pub(crate) server: Option<Server<'a>>,
}

/// The server of a store, and how it can fail.
pub(crate) struct Server<'a> {
    /// A URL of this engine without a server, with `connect-timeout=500ms`.
    pub(crate) dead: String,
    /// A URL with a wrong password that contains the word `secret`.
    pub(crate) wrong_password: String,
    /// Makes the server silent: connections stay open, and requests get no answer.
    pub(crate) silence: &'a dyn Fn(),
    /// Ends the silence.
    pub(crate) speak: &'a dyn Fn(),
    /// Kills the server for good.
    pub(crate) kill: &'a dyn Fn(),
}

/// Checks all exit codes. The server is dead afterwards.
pub(crate) fn all(store: &Described<'_>) {
    let fixture = Fixture::on(store.url.clone());
    the_commands_own(&fixture);
    not_started(&fixture);
    held(&fixture);
    bad_input(&fixture);
    ended_while_waiting(&fixture);
    max_hold(&fixture);
    refuses(&Fixture::on(store.bad.0.clone()), 78, store.bad.1);
    let Some(server) = &store.server else {
        return;
    };
    let begun = Instant::now();
    refuses(&Fixture::on(server.dead.clone()), 69, "127.0.0.1");
    in_time(begun);
    let wrong = Fixture::on(server.wrong_password.clone());
    let ran = refuses(&wrong, 77, "refuses");
    assert!(ran.err.contains("docs/rights.md"), "{}", ran.err);
    assert!(!ran.err.contains("secret"), "{}", ran.err);
    lost_to_silence(&fixture, server);
    dead_while_waiting(&fixture, server);
}

/// The command's own code, and 128 + the signal that ended it.
fn the_commands_own(fixture: &Fixture) {
    for code in [0, 1, 3, 75, 255] {
        let ran = fixture.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""));
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let ran = fixture.run(&["run", "a", "-c", &format!("kill -{signal} $$; sleep 60")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""), "{signal}");
    }
}

/// 126 and 127.
fn not_started(fixture: &Fixture) {
    for (command, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        let ran = fixture.run(&["run", "a", "--", command]);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains(command), "{}", ran.err);
    }
    // Both have released the lock.
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

/// 1, or the code of `-E`.
fn held(fixture: &Fixture) {
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    for (options, code, running) in [
        (&["-n"][..], 1),
        (&["-w", "0"], 1),
        (&["-w", "3"], 1),
        (&["-w", "3000ms"], 1),
        (&["-n", "-E", "99"], 99),
        (&["-w", "3", "-E", "0"], 0),
    ]
    .map(|(options, code)| {
        // They wait at the same time.
        let words = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
        (options, code, fixture.start(&words))
    }) {
        let ran = running.end();
        let what = format!("{options:?}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{what}");
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.err.contains("lock a is"), "{}", ran.err);
        let words: Vec<&str> = ran.err.split_whitespace().collect();
        let holder = words.iter().rposition(|word| *word == "by");
        let holder = holder.and_then(|at| words.get(at + 1));
        assert!(
            holder.is_some_and(|owner| owner.contains('@')),
            "{}",
            ran.err
        );
    }
    let ran = fixture.run(&["run", "-nq", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (1, "", ""));
    assert!(holder.runs());
    // No claim that gave up is still queued.
    fixture.await_waiters("a", 0);
    assert_eq!(holder.end().code, 0);
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

/// 64.
fn bad_input(fixture: &Fixture) {
    refuses_words(
        fixture,
        &["run", "--ttl", "0", "a", "--", "echo", "ran"],
        64,
        "ttl",
    );
    refuses_words(fixture, &["run", "", "--", "echo", "ran"], 64, "lock name");
}

/// 128 + the signal.
fn ended_while_waiting(fixture: &Fixture) {
    let mut holder = fixture.start(&["hold", "a"]);
    holder.line();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let waiter = fixture.start(&["run", "a", "--", "echo", "ran"]);
        fixture.await_waiters("a", 1);
        waiter.signal(signal);
        let ran = waiter.end();
        let what = format!("{signal:?}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{what}");
        fixture.await_waiters("a", 0);
    }
    assert_eq!(holder.end().code, 0);
}

/// 75 when `--max-hold` is over.
fn max_hold(fixture: &Fixture) {
    let script = "trap 'echo asked; exit 0' TERM; while :; do sleep 60 & wait; done";
    let ran = fixture.run(&["run", "--max-hold", "2s", "a", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (75, "asked\n"), "{}", ran.err);
    assert!(ran.err.contains("--max-hold"), "{}", ran.err);
}

/// 75 if the lock is lost; 69 if the store is silent at open; and the command's own code if only the release is not
/// confirmed.
fn lost_to_silence(fixture: &Fixture, server: &Server<'_>) {
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 60 & wait; done";
    let mut running = fixture.start(&["run", "--ttl", "5s", "a", "-c", script]);
    let command: i32 = running.line().parse().unwrap();
    // The ttl is long enough that the command ends before the lock is lost. Whether the server sees the release does
    // not matter.
    let mut releasing = fixture.start(&["run", "--ttl", "12s", "b", "-c", "echo up; cat; exit 7"]);
    assert_eq!(releasing.line(), "up");
    (server.silence)();
    let begun = Instant::now();
    assert_eq!(running.line(), "asked");
    until("the group is gone", || group(command).is_empty());
    let ran = running.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(ran.err.contains("lock a was lost"), "{}", ran.err);
    in_time(begun);
    let begun = Instant::now();
    let ran = releasing.end();
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(
        ran.err.contains("did not confirm the release"),
        "{}",
        ran.err
    );
    in_time(begun);
    let between = if fixture.store().contains('?') {
        '&'
    } else {
        '?'
    };
    let silent = format!("{}{between}connect-timeout=500ms", fixture.store());
    let begun = Instant::now();
    refuses(&Fixture::on(silent), 69, "127.0.0.1");
    in_time(begun);
    (server.speak)();
    until("the store is back", || {
        fixture.run(&["run", "-w", "5", "b", "--", "true"]).code == 0
    });
}

/// 69 if the store is dead at the end of the wait.
fn dead_while_waiting(fixture: &Fixture, server: &Server<'_>) {
    let mut hold = fixture.start(&["hold", "c"]);
    hold.line();
    // Long enough that the waiter learns of the death in time, even on a busy machine.
    let waiter = fixture.start(&["run", "-w", "5", "c", "--", "echo", "ran"]);
    fixture.await_waiters("c", 1);
    (server.kill)();
    let ran = waiter.end();
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
}

/// The command ends with `code` and one line that contains `word`, and runs nothing.
fn refuses(fixture: &Fixture, code: i32, word: &str) -> Ran {
    refuses_words(
        fixture,
        &["run", "-n", "a", "--", "echo", "ran"],
        code,
        word,
    )
}

fn refuses_words(fixture: &Fixture, words: &[&str], code: i32, word: &str) -> Ran {
    let ran = fixture.run(words);
    assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.starts_with("fencelock: "), "{}", ran.err);
    assert!(ran.err.contains(word), "{word:?} is not in {}", ran.err);
    ran
}

fn in_time(begun: Instant) {
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}
