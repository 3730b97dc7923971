//! The command on MariaDB.

use fencelock_testbed::{MariaDb, Port};

use crate::bed::Bed;
use crate::exit_codes::{self, Described, Server};

fn every_code(strategy: &str) {
    let server = MariaDb::builder().password("right-secret").start().unwrap();
    let nobody = Port::free().unwrap();
    let url = |password: &str, port: u16| {
        format!("mysql://lock:{password}@127.0.0.1:{port}/lock?strategy={strategy}")
    };
    exit_codes::all(&Described {
        url: url("right-secret", server.port()),
        bad: (
            "mysql://lock@127.0.0.1/lock?strategy=hope".to_owned(),
            "strategy",
        ),
        server: Some(Server {
            dead: url("right-secret", nobody.number()) + "&connect-timeout=500ms",
            wrong_password: url("wrong-secret", server.port()),
            silence: &|| server.pause().unwrap(),
            speak: &|| server.resume().unwrap(),
            kill: &|| server.kill9(),
        }),
    });
}

#[test]
fn every_code_with_leases() {
    every_code("lease");
}

#[test]
fn run_and_hold_and_show() {
    let server = MariaDb::start().unwrap();
    let bed = Bed::on(server.url());
    let mut hold = bed.start(&["hold", "a"]);
    let granted = hold.json();
    assert_eq!(bed.show("a")["token"], granted["token"]);
    let sequencer = granted["sequencer"].as_str().unwrap();
    assert_eq!(bed.run(&["check", sequencer]).code, 0);
    let waiter = bed.start(&["run", "a", "-c", "echo $FENCELOCK_TOKEN"]);
    bed.await_waiters("a", 1);
    assert_eq!(hold.end().code, 0);
    let ran = waiter.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let token: u64 = ran.out.trim().parse().unwrap();
    assert!(token > granted["token"].as_u64().unwrap());
    assert!(bed.show("a")["token"].is_null());
    assert_eq!(bed.run(&["check", sequencer]).code, 1);
}
