//! MariaDB servers that start, stop, crash and are replaced.

use fencelock_testbed::MariaDb;

#[test]
fn remembers_over_a_kill_and_forgets_when_told() {
    let mut server = MariaDb::builder().password("secret").start().unwrap();
    server
        .sql("CREATE TABLE `lock`.t AS SELECT 1 AS a")
        .unwrap();
    server.kill9();
    assert!(server.sql("SELECT 1").is_err());
    server.restart().unwrap();
    assert_eq!(server.sql("SELECT a FROM `lock`.t").unwrap(), "1");
    server.pause().unwrap();
    server.resume().unwrap();
    assert_eq!(server.sql("SELECT a FROM `lock`.t").unwrap(), "1");
    server.restart_empty().unwrap();
    assert!(server.sql("SELECT a FROM `lock`.t").is_err());
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let primary = MariaDb::builder().replicated().start().unwrap();
    let replica = primary.replica().unwrap();
    primary
        .sql("CREATE TABLE `lock`.t AS SELECT 1 AS a")
        .unwrap();
    replica.follow(&primary).unwrap();
    assert_eq!(replica.sql("SELECT a FROM `lock`.t").unwrap(), "1");
    primary.kill9();
    replica.promote().unwrap();
    assert_eq!(replica.sql("SELECT @@read_only").unwrap(), "0");
    replica.sql("INSERT INTO `lock`.t VALUES (2)").unwrap();
}
