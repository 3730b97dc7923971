//! Every exit code of `fencelock run`, against whatever store is described. The tests of each engine call [`all`].

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::bed::{Bed, Ran, group, until};

/// A store, and its ways to fail.
pub(crate) struct Described<'a> {
    /// Its URL.
    pub(crate) url: String,
    /// A URL of this engine that cannot be used, and a word that says why.
    pub(crate) bad: (String, &'static str),
    /// What only a store behind a server has.
    pub(crate) server: Option<Server<'a>>,
}

/// The server behind a store, and its ways to fail.
pub(crate) struct Server<'a> {
    /// A URL of this engine at which nobody answers. `connect-timeout=500ms` stands in it.
    pub(crate) dead: String,
    /// A URL with a password that the server refuses: one that has the word `secret` in it.
    pub(crate) wrong_password: String,
    /// Makes the server fall silent: connections stay, and nothing is answered.
    pub(crate) silence: &'a dyn Fn(),
    /// Ends that.
    pub(crate) speak: &'a dyn Fn(),
    /// Kills it, for good.
    pub(crate) kill: &'a dyn Fn(),
}

/// Runs through all of them. The server is dead afterwards.
pub(crate) fn all(store: &Described<'_>) {
    let bed = Bed::on(store.url.clone());
    the_commands_own(&bed);
    not_started(&bed);
    held(&bed);
    bad_input(&bed);
    ended_while_waiting(&bed);
    max_hold(&bed);
    refuses(&Bed::on(store.bad.0.clone()), 78, store.bad.1);
    let Some(server) = &store.server else {
        return;
    };
    let begun = Instant::now();
    refuses(&Bed::on(server.dead.clone()), 69, "127.0.0.1");
    in_time(begun);
    let wrong = Bed::on(server.wrong_password.clone());
    let ran = refuses(&wrong, 77, "refuses");
    assert!(!ran.err.contains("secret"), "{}", ran.err);
    lost_to_silence(&bed, server);
    dead_while_waiting(&bed, server);
}

/// The command's own code, and 128 and the signal that ended it.
fn the_commands_own(bed: &Bed) {
    for code in [0, 1, 3, 75, 255] {
        let ran = bed.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""));
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let ran = bed.run(&["run", "a", "-c", &format!("kill -{signal} $$; sleep 60")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""), "{signal}");
    }
}

/// 126 and 127.
fn not_started(bed: &Bed) {
    for (command, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        let ran = bed.run(&["run", "a", "--", command]);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains(command), "{}", ran.err);
    }
    // Neither leaves the lock behind.
    assert_eq!(bed.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

/// 1, or what was asked for.
fn held(bed: &Bed) {
    let mut holder = bed.start(&["hold", "a"]);
    holder.line();
    for (options, code) in [
        (&["-n"][..], 1),
        (&["-w", "0"], 1),
        (&["-w", "0.2"], 1),
        (&["-w", "200ms"], 1),
        (&["-n", "-E", "99"], 99),
        (&["-w", "0.2", "-E", "0"], 0),
    ] {
        let words = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
        let ran = bed.run(&words);
        let what = format!("{options:?}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{what}");
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(ran.err.contains("lock a is"), "{}", ran.err);
    }
    let ran = bed.run(&["run", "-nq", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (1, "", ""));
    assert!(holder.runs());
    // Nobody who gave up stands in line still.
    bed.await_waiters("a", 0);
    assert_eq!(holder.end().code, 0);
    assert_eq!(bed.run(&["run", "-n", "a", "--", "true"]).code, 0);
}

/// 64.
fn bad_input(bed: &Bed) {
    refuses_words(
        bed,
        &["run", "--ttl", "0", "a", "--", "echo", "ran"],
        64,
        "ttl",
    );
    refuses_words(bed, &["run", "", "--", "echo", "ran"], 64, "lock name");
}

/// 75 where the time to hold is over.
/// 128 and the signal.
fn ended_while_waiting(bed: &Bed) {
    let mut holder = bed.start(&["hold", "a"]);
    holder.line();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let waiter = bed.start(&["run", "a", "--", "echo", "ran"]);
        bed.await_waiters("a", 1);
        waiter.signal(signal);
        let ran = waiter.end();
        let what = format!("{signal:?}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{what}");
        bed.await_waiters("a", 0);
    }
    assert_eq!(holder.end().code, 0);
}

fn max_hold(bed: &Bed) {
    let script = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done";
    let ran = bed.run(&["run", "--max-hold", "300ms", "a", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (75, "asked\n"), "{}", ran.err);
    assert!(ran.err.contains("--max-hold"), "{}", ran.err);
}

/// 75 where the lock is lost; 69 where the store is silent at open; and the command's own code where only the release
/// is not confirmed.
fn lost_to_silence(bed: &Bed, server: &Server<'_>) {
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.01; done";
    let mut running = bed.start(&["run", "--ttl", "2s", "a", "-c", script]);
    let command: i32 = running.line().parse().unwrap();
    // Long enough to end before it is lost. Whether the server then finds its release or not, this soon it is over.
    let mut releasing = bed.start(&["run", "--ttl", "12s", "b", "-c", "echo up; cat; exit 7"]);
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
    let between = if bed.store().contains('?') { '&' } else { '?' };
    let silent = format!("{}{between}connect-timeout=500ms", bed.store());
    let begun = Instant::now();
    refuses(&Bed::on(silent), 69, "127.0.0.1");
    in_time(begun);
    (server.speak)();
    until("the store is back", || {
        bed.run(&["run", "-w", "5", "b", "--", "true"]).code == 0
    });
}

/// 69 where the store is dead at the end of the wait.
fn dead_while_waiting(bed: &Bed, server: &Server<'_>) {
    let mut hold = bed.start(&["hold", "c"]);
    hold.line();
    let waiter = bed.start(&["run", "-w", "2", "c", "--", "echo", "ran"]);
    bed.await_waiters("c", 1);
    (server.kill)();
    let ran = waiter.end();
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
}

/// Ends with `code` and one line that has `word` in it, and nothing was run.
fn refuses(bed: &Bed, code: i32, word: &str) -> Ran {
    refuses_words(bed, &["run", "-n", "a", "--", "echo", "ran"], code, word)
}

fn refuses_words(bed: &Bed, words: &[&str], code: i32, word: &str) -> Ran {
    let ran = bed.run(words);
    assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.starts_with("fencelock: "), "{}", ran.err);
    assert!(ran.err.contains(word), "{word:?} is not in {}", ran.err);
    ran
}

fn in_time(begun: Instant) {
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}
