//! A store that starts after the command.

use std::time::{Duration, Instant};

use fencelock_testbed::Redis;

use crate::fixture::{Fixture, Running, until};

#[test]
fn the_command_connects_within_connect_timeout() {
    let mut redis = Redis::start().unwrap();
    redis.kill9();
    let url = format!("{}?connect-timeout=30s&response-timeout=5s", redis.url());
    let fixture = Fixture::on(url);
    let begun = Instant::now();
    let commands = [
        &["run", "-n", "a", "--", "echo", "ran"][..],
        &["run", "-w", "60s", "b", "--", "echo", "ran"],
        &["show", "c"],
    ];
    let running = commands.map(|words| Running::start(fixture.command(words)));
    std::thread::sleep(Duration::from_secs(1));
    redis.restart_empty().unwrap();
    // If the machine is too busy, the test proves nothing.
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(25),
        "the server took {took:?} to start"
    );
    for running in running {
        let ran = running.end();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    }
}

#[test]
fn a_shorter_wait_gives_up_sooner() {
    let redis = Redis::start().unwrap();
    redis.kill9();
    let fixture = Fixture::on(format!("{}?connect-timeout=1h", redis.url()));
    let begun = Instant::now();
    let ran = fixture.run(&["run", "-w", "400ms", "a", "--", "echo", "ran"]);
    let took = begun.elapsed();
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{ran:?}");
    assert!(took >= Duration::from_millis(300), "{took:?}");
    // A signal ends the wait.
    let mut waiting = fixture.start(&["run", "a", "--", "echo", "ran"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(waiting.runs());
    waiting.signal(rustix::process::Signal::TERM);
    until("it has ended", || !waiting.runs());
    assert_eq!(waiting.end().code, 143);
}
