//! The command on a ZooKeeper server: every exit code, and a hand-off.

use std::time::Duration;

use fencelock_testbed::{Port, ZooKeeper};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::Fixture;

#[test]
fn every_exit_code() {
    let server = ZooKeeper::start().unwrap();
    let dead = Port::free().unwrap();
    server.make_root("/locks", Some("ann:right")).unwrap();
    let url = |password: &str| {
        format!(
            "zookeeper://ann:{password}@127.0.0.1:{}/locks",
            server.port()
        )
    };
    all(&Described {
        url: url("right"),
        bad: (
            format!("{}?no-such-option=1", url("right")),
            "no-such-option",
        ),
        server: Some(Server {
            dead: format!(
                "zookeeper://127.0.0.1:{}?connect-timeout=500ms",
                dead.number()
            ),
            wrong_password: url("wrong-secret"),
            silence: &|| server.pause().unwrap(),
            speak: &|| server.resume().unwrap(),
            kill: &|| server.kill9(),
        }),
    });
}

#[test]
fn run_and_hold_and_show() {
    let server = ZooKeeper::start().unwrap();
    let fixture = Fixture::on(format!("{}/locks", server.url()));
    let mut hold = fixture.start(&["hold", "a"]);
    let granted = hold.json();
    assert_eq!(fixture.show("a")["token"], granted["token"]);
    let sequencer = granted["sequencer"].as_str().unwrap();
    assert_eq!(fixture.run(&["check", sequencer]).code, 0);
    let waiter = fixture.start(&["run", "a", "-c", "echo $FENCELOCK_TOKEN"]);
    fixture.await_waiters("a", 1);
    assert_eq!(hold.end().code, 0);
    let ran = waiter.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let token: u64 = ran.out.trim().parse().unwrap();
    assert!(token > granted["token"].as_u64().unwrap());
    assert_eq!(fixture.run(&["check", sequencer]).code, 1);
    // A client deletes its nodes at its end.
    assert_eq!(server.count_below("/locks", None).unwrap(), 0);
}

#[test]
fn a_ttl_above_the_longest_session_is_kept_up() {
    let (shortest, longest) = (Duration::from_millis(400), Duration::from_secs(3));
    let server = ZooKeeper::builder().sessions(shortest, longest).start();
    let server = server.unwrap();
    let fixture = Fixture::on(server.url());
    // Longer than one lease, which is two thirds of the longest session.
    let ran = fixture.run(&["run", "--ttl", "60s", "a", "--", "sleep", "3"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}
