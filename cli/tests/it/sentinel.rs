//! The command on a Redis master behind Sentinels.

use std::time::Duration;

use fencelock_testbed::{Port, RedisSentinel};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::Fixture;

#[test]
fn every_code() {
    // Fail-overs have tests of their own.
    let builder = RedisSentinel::builder().down_after(Duration::from_secs(120));
    let group = builder.start().unwrap();
    let free_port = Port::free().unwrap();
    // There are two replicas, so three can never confirm.
    let many = Fixture::on(format!("{}&replicas=3", group.url()));
    let ran = many.run(&["run", "-n", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
    assert!(ran.err.contains("2 of 3 replicas"), "{}", ran.err);
    let master = &group.servers()[0];
    all(&Described {
        url: format!("{}&replicas=2&response-timeout=2s", group.url()),
        bad: ("redis+sentinel://127.0.0.1:1".to_owned(), "master"),
        server: Some(Server {
            dead: format!(
                "redis+sentinel://127.0.0.1:{}/main?connect-timeout=500ms",
                free_port.number()
            ),
            wrong_password: group.url_with("secret"),
            silence: &|| master.pause().unwrap(),
            speak: &|| master.resume().unwrap(),
            kill: &|| master.kill9(),
        }),
    });
}

/// The command runs during a fail-over, and still holds the lock afterwards.
#[test]
fn a_command_survives_a_failover() {
    let group = RedisSentinel::start().unwrap();
    let fixture = Fixture::on(format!("{}&replicas=1", group.url()));
    let mut hold = fixture.start(&["hold", "--ttl", "20s", "a"]);
    let token = hold.json()["token"].clone();
    group.servers()[0].kill9();
    group.await_failover(0).unwrap();
    assert_eq!(fixture.show("a")["token"], token);
    assert!(hold.runs());
    // The number of replicas that remain.
    let ran = fixture.run(&["run", "-w", "20", "b", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    assert_eq!(hold.end().code, 0);
}
