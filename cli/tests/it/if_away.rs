//! `run --if-away`: what a command does if its store does not answer.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use fencelock_testbed::Redis;

use crate::fixture::{Fixture, until};

/// A store at an address where no server listens.
const AWAY: &str = "redis://127.0.0.1:1?connect-timeout=200ms";

#[test]
fn a_store_that_is_away_at_the_start() {
    is_away_at_the_start(AWAY.to_owned());
}

/// The balancer answers, but the service does not.
#[test]
fn a_balancer_that_reaches_no_replica_is_away() {
    for status in [
        "502 Bad Gateway",
        "503 Service Unavailable",
        "429 Too Many Requests",
    ] {
        let port = balancer(status);
        is_away_at_the_start(format!(
            "fencelock+http://127.0.0.1:{port}?connect-timeout=200ms"
        ));
    }
}

/// Answers each request like a balancer without a server for it, until the tests end.
fn balancer(status: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The request arrives in one packet, and its content does not matter. The client may have gone.
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>"
            );
        }
    });
    port
}

fn is_away_at_the_start(url: String) {
    let fixture = Fixture::on(url);
    let run = |words: &[&str]| {
        let shell = ["-c", "echo ran $FENCELOCK_TOKEN $FENCELOCK_NAME; exit 3"];
        let mut command = fixture.command(&[&["run", "x"], words, &shell].concat());
        // As in a `run` of another lock.
        command
            .env("FENCELOCK_TOKEN", "17")
            .env("FENCELOCK_NAME", "y");
        crate::fixture::finish(command)
    };
    for words in [&[][..], &["--if-away", "fail"]] {
        let ran = run(words);
        assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{ran:?}");
    }
    let skipped = run(&["--if-away", "skip"]);
    assert_eq!((skipped.code, skipped.out.as_str()), (0, ""), "{skipped:?}");
    assert!(skipped.err.contains("was not run"), "{}", skipped.err);
    let alone = run(&["--if-away", "run"]);
    assert_eq!((alone.code, alone.out.as_str()), (3, "ran\n"), "{alone:?}");
    assert!(
        alone.err.contains("warning: lock x: ") && alone.err.contains("without a lock"),
        "{}",
        alone.err
    );
    let begun = Instant::now();
    let waited = run(&["--if-away", "wait", "-w", "1s"]);
    assert_eq!((waited.code, waited.out.as_str()), (69, ""), "{waited:?}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn correctness_does_not_run_without_a_lock() {
    let fixture = Fixture::on(AWAY.to_owned());
    let refused = fixture.run(&[
        "run",
        "--purpose",
        "correctness",
        "--if-away",
        "run",
        "x",
        "--",
        "echo",
        "ran",
    ]);
    assert_eq!(
        (refused.code, refused.out.as_str()),
        (64, ""),
        "{refused:?}"
    );
    let file = fixture.path("f.toml");
    fs::write(
        &file,
        format!("[store.sure]\nurl = \"{AWAY}\"\npurpose = \"correctness\"\n"),
    )
    .unwrap();
    let words = [
        "run",
        "--config",
        &file,
        "--store",
        "@sure",
        "--if-away",
        "run",
        "x",
        "--",
        "echo",
        "ran",
    ];
    let refused = fixture.run(&words);
    assert_eq!(
        (refused.code, refused.out.as_str()),
        (64, ""),
        "{refused:?}"
    );
}

#[test]
fn a_held_lock_is_no_store_that_is_away() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["hold", "x"]);
    holder.line();
    for choice in ["wait", "fail", "skip", "run"] {
        let ran = fixture.run(&["run", "-n", "--if-away", choice, "x", "--", "echo", "ran"]);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{ran:?}");
    }
    holder.end();
    let ran = fixture.run(&[
        "run",
        "--if-away",
        "skip",
        "x",
        "-c",
        "test -n \"$FENCELOCK_TOKEN\" && echo ran",
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{ran:?}");
}

#[test]
fn a_store_that_goes_away_while_a_command_waits() {
    let mut redis = Redis::start().unwrap();
    let fixture = Fixture::on(format!(
        "{}?response-timeout=500ms&connect-timeout=1s",
        redis.url()
    ));
    let mut holder = fixture.start(&["hold", "x"]);
    holder.line();
    let wait = |words: &[&str]| {
        fixture.start(&[&["run", "-q"], words, &["x", "--", "echo", "ran"]].concat())
    };
    let skips = wait(&["--if-away", "skip"]);
    let fails = wait(&["--if-away", "fail"]);
    let waits = wait(&[]);
    fixture.await_waiters("x", 3);
    redis.kill9();
    assert_eq!(skips.end().code, 0);
    assert_eq!(fails.end().code, 69);
    drop(holder);
    redis.restart_empty().unwrap();
    let mut waits = waits;
    assert_eq!(waits.line(), "ran");
    until("it ends", || !waits.runs());
}

/// Also at the start, `-w` is the whole time.
#[test]
fn the_wait_for_the_opening_has_its_end() {
    let refused = Fixture::on("redis://127.0.0.1:1".to_owned());
    let begun = Instant::now();
    let ran = refused.run(&["run", "--if-away", "wait", "-w", "5s", "a", "--", "true"]);
    let took = begun.elapsed();
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(took >= Duration::from_secs(5), "{took:?}");
    assert!(took < Duration::from_secs(9), "{took:?}");
    // This server accepts connections, and is silent for the time of `connect-timeout`.
    let redis = Redis::start().unwrap();
    redis.pause().unwrap();
    let silent = Fixture::on(format!("{}?connect-timeout=1m", redis.url()));
    let begun = Instant::now();
    assert_eq!(silent.run(&["run", "-w", "1s", "a", "--", "true"]).code, 69);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    redis.resume().unwrap();
}
