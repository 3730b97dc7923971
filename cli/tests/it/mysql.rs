//! The command on MariaDB, with each strategy.

use fencelock_testbed::{MariaDb, Port};

use crate::exit_codes::{self, Described, Server};
use crate::fixture::Fixture;

fn every_code(strategy: &str) {
    let server = MariaDb::builder().password("right-secret").start().unwrap();
    let free_port = Port::free().unwrap();
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
            dead: url("right-secret", free_port.number()) + "&connect-timeout=500ms",
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
fn every_code_with_rows_for_update() {
    every_code("for-update");
}

#[test]
fn every_code_with_get_lock() {
    every_code("get-lock");
}

/// Its locks would end with the replica's connections, even if the client still holds them.
#[cfg(feature = "serve")]
#[test]
fn locks_that_depend_on_a_connection_are_not_served() {
    let server = MariaDb::start().unwrap();
    for strategy in ["for-update", "get-lock"] {
        let fixture = Fixture::on(format!("{}?strategy={strategy}", server.url()));
        let ran = fixture.run(&["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(ran.code, 78, "{strategy}: {}", ran.err);
        assert!(ran.err.contains("strategy=lease"), "{}", ran.err);
    }
}

/// A user with enough rights creates the tables of all strategies. The other users have the least rights.
#[test]
fn schema_prints_what_a_user_without_rights_needs() {
    let server = MariaDb::start().unwrap();
    server
        .sql("CREATE USER 'poor'@'%'; CREATE DATABASE theirs; GRANT SELECT ON theirs.* TO 'poor'@'%'")
        .unwrap();
    let url = |strategy: &str| {
        let port = server.port();
        format!("mysql://poor@127.0.0.1:{port}/theirs?strategy={strategy}")
    };
    for strategy in ["lease", "for-update", "get-lock"] {
        let refused = Fixture::on(url(strategy)).run(&["run", "a", "true"]);
        assert_eq!(refused.code, 77, "{strategy}: {}", refused.err);
        assert!(refused.err.contains("CREATE"), "{}", refused.err);
    }
    let fixture = Fixture::on(url("lease"));
    let schema = fixture.run(&["schema", "mysql"]);
    assert_eq!(schema.code, 0, "{}", schema.err);
    server.sql(&format!("USE theirs; {}", schema.out)).unwrap();
    server
        .sql("GRANT INSERT, UPDATE, DELETE ON theirs.* TO 'poor'@'%'")
        .unwrap();
    for strategy in ["lease", "for-update", "get-lock"] {
        let ran = Fixture::on(url(strategy)).run(&["run", "a", "true"]);
        assert_eq!(ran.code, 0, "{strategy}: {}", ran.err);
    }
}

#[test]
fn run_and_hold_and_show() {
    let server = MariaDb::start().unwrap();
    let fixture = Fixture::on(server.url());
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
    assert!(fixture.show("a")["token"].is_null());
    assert_eq!(fixture.run(&["check", sequencer]).code, 1);
}
