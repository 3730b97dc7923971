//! PostgreSQL servers that start, stop, crash and are replaced.

use std::time::Instant;

use fencelock_testbed::Postgres;

#[test]
fn remembers_over_a_kill_and_forgets_when_told() {
    let mut server = Postgres::builder().password("secret").start().unwrap();
    server
        .psql("lock", "CREATE TABLE t AS SELECT 1 AS a")
        .unwrap();
    server.kill9();
    assert!(server.psql("lock", "SELECT 1").is_err());
    server.restart().unwrap();
    assert_eq!(server.psql("lock", "SELECT a FROM t").unwrap(), "1");
    server.pause().unwrap();
    server.resume().unwrap();
    assert_eq!(server.psql("lock", "SELECT a FROM t").unwrap(), "1");
    server.restart_empty().unwrap();
    assert!(server.psql("lock", "SELECT a FROM t").is_err());
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let primary = Postgres::start().unwrap();
    let replica = primary.replica().unwrap();
    primary
        .psql("lock", "CREATE TABLE t AS SELECT 1 AS a")
        .unwrap();
    let begin = Instant::now();
    while replica.psql("lock", "SELECT a FROM t").is_err() {
        assert!(begin.elapsed().as_secs() < 20, "{}", replica.log());
    }
    assert!(replica.psql("lock", "INSERT INTO t VALUES (2)").is_err());
    primary.kill9();
    replica.promote().unwrap();
    replica.psql("lock", "INSERT INTO t VALUES (2)").unwrap();
}
