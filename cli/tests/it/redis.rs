//! The command on a Redis server: every exit code, and a server that hangs.

use std::time::{Duration, Instant};

use fencelock_testbed::{Port, Redis};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::{Fixture, Running, group, patient, until};

#[test]
fn every_code() {
    let redis = Redis::builder().password("right").start().unwrap();
    let free_port = Port::free().unwrap();
    all(&Described {
        url: format!("{}?response-timeout=2s", redis.url()),
        bad: ("redis://127.0.0.1:1/x".to_owned(), "database"),
        server: Some(Server {
            dead: format!(
                "redis://127.0.0.1:{}?connect-timeout=500ms",
                free_port.number()
            ),
            wrong_password: format!(
                "redis://:secret@127.0.0.1:{}?response-timeout=2s",
                redis.port()
            ),
            silence: &|| redis.pause().unwrap(),
            speak: &|| redis.resume().unwrap(),
            kill: &|| redis.kill9(),
        }),
    });
}

#[test]
fn run_and_hold_and_show() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(patient(&redis));
    let mut hold = fixture.start(&["hold", "a"]);
    let granted = hold.json();
    assert_eq!(fixture.show("a")["token"], granted["token"]);
    assert_eq!(
        fixture
            .run(&["check", granted["sequencer"].as_str().unwrap()])
            .code,
        0
    );
    let waiter = fixture.start(&["run", "a", "-c", "echo $FENCELOCK_TOKEN"]);
    fixture.await_waiters("a", 1);
    assert_eq!(hold.end().code, 0);
    let ran = waiter.end();
    assert_eq!(ran.code, 0);
    let token: u64 = ran.out.trim().parse().unwrap();
    assert!(token > granted["token"].as_u64().unwrap());
    assert!(fixture.show("a")["token"].is_null());
}

#[test]
fn a_waiter_gets_a_whole_lease_before_its_command_starts() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(patient(&redis));
    let mut hold = fixture.start(&["hold", "a"]);
    hold.line();
    let script = "trap 'echo asked' TERM; sleep 0.05; echo $FENCELOCK_TOKEN";
    let all: Vec<_> = (0..10)
        .map(|i| {
            let waiter = fixture.start(&["run", "a", "-c", script]);
            fixture.await_waiters("a", i + 1);
            waiter
        })
        .collect();
    hold.end_input();
    let mut last = 0;
    for running in all {
        let ran = running.end();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let token: u64 = ran.out.trim().parse().unwrap();
        assert!(token > last);
        last = token;
    }
}

#[test]
fn a_ttl_above_the_maximum_is_refused() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(patient(&redis));
    let ran = fixture.run(&["run", "--ttl", "36000d", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains("ttl"), "{}", ran.err);
    assert_eq!(redis.command::<u64>(&["EXISTS", "a"]).unwrap(), 0);
}

#[test]
fn a_wrong_password_is_77_and_never_shown() {
    let redis = Redis::builder().password("right-secret").start().unwrap();
    let fixture = Fixture::on(format!(
        "redis://:wrong-secret@127.0.0.1:{}?response-timeout=5s",
        redis.port()
    ));
    for words in [&["hold", "a"][..], &["show", "a"]] {
        let ran = fixture.run(words);
        assert_eq!((ran.code, ran.out.as_str()), (77, ""), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert!(!ran.err.contains("secret"), "{}", ran.err);
    }
    let fixture = Fixture::on(patient(&redis));
    let mut hold = fixture.start(&["hold", "a"]);
    hold.line();
    let listed = fixture.run(&["ls"]);
    assert_eq!(listed.code, 0);
    assert!(!listed.out.contains("secret"), "{}", listed.out);
}

#[test]
fn a_lock_of_another_library_is_listed_once_a_claim_waits_for_it() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(patient(&redis));
    for (key, value) in [("a", "theirs"), ("cache", "no lock")] {
        let _: String = redis.command(&["SET", key, value]).unwrap();
    }
    let shown = fixture.run(&["show", "a"]).out;
    let expected =
        "a: held, exclusive, without a token, by another library: theirs, without a lease\n";
    assert_eq!(shown, expected);
    // Any string may be a lock of another library.
    assert_eq!(fixture.run(&["ls"]).out, "");
    let _waiter = fixture.start(&["run", "a", "true"]);
    fixture.await_waiters("a", 1);
    let listed = fixture.run(&["ls"]).out;
    assert!(
        listed.starts_with(expected) && !listed.contains("cache"),
        "{listed}"
    );
    assert_eq!(fixture.show("a")["holders"][0]["foreign"], true);
}

#[test]
fn a_hung_store_ends_the_command_in_time() {
    let redis = Redis::start().unwrap();
    let in_time = |(gone, ended): (Duration, Duration)| {
        gone < Duration::from_secs(6) && ended < gone + Duration::from_secs(1)
    };
    // On a machine that stands still it may be late once.
    let mut took = hang(&redis);
    for _ in 0..2 {
        if !in_time(took) {
            took = hang(&redis);
        }
    }
    assert!(in_time(took), "{took:?}");
}

/// Returns how long after the server hung the command was gone, and `run` had ended.
fn hang(redis: &Redis) -> (Duration, Duration) {
    let fixture = Fixture::on(redis.url());
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 60 & wait; done";
    let begun = Instant::now();
    let mut running = fixture.start(&["run", "--ttl", "6s", "a", "-c", script]);
    let command: i32 = running.line().parse().unwrap();
    let hung = Instant::now();
    redis.pause().unwrap();
    assert_eq!(running.line(), "asked");
    // SIGTERM comes a third of the ttl before the end.
    let (early, asked) = (begun.elapsed(), hung.elapsed());
    assert!(early > Duration::from_millis(3700), "{early:?}");
    assert!(asked < Duration::from_millis(5400), "{asked:?}");
    until("the group is gone", || group(command).is_empty());
    let gone = hung.elapsed();
    assert!(
        gone > asked + Duration::from_millis(100),
        "{gone:?} after {asked:?}"
    );
    let ran = running.end();
    let ended = hung.elapsed();
    redis.resume().unwrap();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(ran.err.contains("lock a was lost"), "{}", ran.err);
    (gone, ended)
}

#[test]
fn purpose_correctness_warns_about_what_the_store_cannot_promise() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(patient(&redis));
    let ran = fixture.run(&["run", "--purpose", "correctness", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"));
    assert!(ran.err.contains("fencelock: warning: "), "{}", ran.err);
    let ran = fixture.run(&["run", "--purpose", "efficiency", "a", "--", "echo", "ran"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("ran\n", ""));
}

#[test]
fn a_waiter_without_a_limit_says_that_the_store_is_silent() {
    let redis = Redis::start().unwrap();
    let fixture = Fixture::on(format!("{}?response-timeout=2s", redis.url()));
    let mut hold = fixture.start(&["hold", "a"]);
    hold.line();
    let to_file = "exec \"$@\" 2> waiter";
    let start = ["sh", "-c", to_file, "sh", env!("CARGO_BIN_EXE_fencelock")];
    let waiter =
        Running::start(fixture.command_through(&start, &["run", "a", "--", "echo", "ran"]));
    fixture.await_waiters("a", 1);
    let says = |words: &str| until(words, || fixture.read("waiter").contains(words));
    redis.pause().unwrap();
    says(&format!("still waiting for lock a: store {}", redis.url()));
    redis.resume().unwrap();
    says("still waiting for lock a: the store answers again");
    assert_eq!(fixture.read("waiter").lines().count(), 2);
    assert_eq!(hold.end().code, 0);
    let ran = waiter.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"));
}
