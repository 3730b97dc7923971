//! The command on PostgreSQL: every exit code with each strategy, and tables that another user created.

use fencelock_testbed::{Port, Postgres};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::Fixture;

fn every_code(strategy: &str) {
    let server = Postgres::builder().password("right").start().unwrap();
    let free_port = Port::free().unwrap();
    let url = |password: &str, port: u16| {
        format!("postgres://lock:{password}@127.0.0.1:{port}/lock?strategy={strategy}")
    };
    all(&Described {
        url: url("right", server.port()),
        bad: (
            "postgres://lock@127.0.0.1/lock?strategy=hope".to_owned(),
            "strategy",
        ),
        server: Some(Server {
            dead: url("right", free_port.number()) + "&connect-timeout=500ms",
            wrong_password: url("secret", server.port()),
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
fn every_code_with_advisory_locks() {
    every_code("advisory");
}

/// A user without the right to create tables gets an error that names this right. It works after another user has run
/// the output of `schema`.
#[test]
fn schema_prints_what_a_user_without_rights_needs() {
    let server = Postgres::start().unwrap();
    server.psql("lock", "CREATE ROLE poor LOGIN").unwrap();
    let fixture = Fixture::on(format!("postgres://poor@127.0.0.1:{}/lock", server.port()));
    let refused = fixture.run(&["run", "a", "true"]);
    assert_eq!(refused.code, 77, "{}", refused.err);
    assert!(
        refused.err.contains("CREATE") && refused.err.contains("fencelock schema postgres"),
        "{}",
        refused.err
    );
    let schema = fixture.run(&["schema", "postgres"]);
    assert_eq!(schema.code, 0, "{}", schema.err);
    server.psql("lock", &schema.out).unwrap();
    let refused = fixture.run(&["run", "a", "true"]);
    assert_eq!(refused.code, 77, "{}", refused.err);
    assert!(refused.err.contains("fencelock_store"), "{}", refused.err);
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_store, fencelock_bound, fencelock_locks, \
                 fencelock_holders, fencelock_waiters TO poor; GRANT USAGE, SELECT, UPDATE ON fencelock_tokens TO poor";
    server.psql("lock", grant).unwrap();
    for strategy in ["lease", "advisory"] {
        let fixture = Fixture::on(format!(
            "postgres://poor@127.0.0.1:{}/lock?strategy={strategy}",
            server.port()
        ));
        let ran = fixture.run(&["run", "a", "true"]);
        assert_eq!(ran.code, 0, "{strategy}: {}", ran.err);
    }
    assert_eq!(fixture.run(&["schema", "abacus"]).code, 64);
}
