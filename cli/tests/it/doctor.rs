//! `doctor`: its report and its exit codes.

use crate::fixture::Fixture;

/// Checks the exit code and parts of the report.
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres"
))]
fn reports(url: &str, code: i32, parts: &[&str]) {
    let report = Fixture::on(url.to_owned()).run(&["doctor"]);
    assert_eq!(report.code, code, "{report:?}");
    for part in parts {
        assert!(report.out.contains(part), "{part:?} is not in {report:?}");
    }
}

/// The same while the clock of the server jumps forward repeatedly.
#[cfg(any(feature = "redis", feature = "mysql", feature = "postgres"))]
fn reports_clock_jumps(url: &str, clock: &fencelock_testbed::ClockShim) {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    let watched = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !watched.load(Ordering::SeqCst) {
                clock.forward(Duration::from_secs(2)).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let report = Fixture::on(url.to_owned()).run(&["doctor"]);
        watched.store(true, Ordering::SeqCst);
        assert_eq!(report.code, 1, "{report:?}");
        assert!(report.out.contains(" jumped forward by "), "{report:?}");
    });
}

#[test]
fn a_local_file_is_fine() {
    let fixture = Fixture::new();
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 0, "{report:?}");
    assert!(
        report.out.contains("first come, first served"),
        "{report:?}"
    );
    assert!(
        report.out.contains("for correctness: nothing"),
        "{report:?}"
    );
    assert!(report.out.contains(" 50ms to 100 years\n"), "{report:?}");
    let json: serde_json::Value =
        serde_json::from_str(&fixture.run(&["doctor", "--json"]).out).unwrap();
    assert_eq!(json["engine"], "sqlite");
    assert_eq!(json["fine"], true);
}

#[test]
fn an_unreachable_store_has_no_report() {
    let fixture = Fixture::new();
    let report = fixture.run(&[
        "doctor",
        "--store",
        "redis://127.0.0.1:1?connect-timeout=300ms",
    ]);
    assert_eq!(report.code, 69, "{report:?}");
    let report = fixture.run(&["doctor", "--store", "gopher:x"]);
    assert_eq!(report.code, 78, "{report:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_that_may_forget() {
    let mut redis = fencelock_testbed::Redis::start().unwrap();
    let fixture = Fixture::on(crate::fixture::patient(&redis));
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 1, "{report:?}");
    assert!(
        report.out.contains("a restart of the server forgets"),
        "{report:?}"
    );
    assert!(
        report.out.contains("change: CONFIG SET appendonly yes"),
        "{report:?}"
    );
    let report = fixture.run(&["doctor", "--purpose", "efficiency"]);
    assert_eq!(report.code, 0, "{report:?}");
    let report = fixture.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!(json["fine"], false);
    assert_eq!(json["findings"][0]["purpose"], "correctness");
    assert_eq!(json["promises"]["durability"], "volatile");

    // A setting that is not stored is lost when the process ends.
    redis
        .command::<()>(&["CONFIG", "SET", "appendonly", "yes"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "appendfsync", "always"])
        .unwrap();
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 1, "{report:?}");
    assert!(report.out.contains("CONFIG SET alone"), "{report:?}");
    assert!(report.out.contains("change: CONFIG REWRITE"), "{report:?}");
    // A stored setting is no finding.
    redis.command::<()>(&["CONFIG", "REWRITE"]).unwrap();
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 0, "{report:?}");
    // The lock survives a restart of the server.
    let mut held = fixture.start(&["hold", "a"]);
    held.json();
    redis.restart().unwrap();
    let report = fixture.run(&["run", "-n", "a", "--", "true"]);
    assert_eq!(report.code, 1, "{report:?}");
    held.end();
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 0, "{report:?}");
    // Eviction of keys makes a finding again.
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "100mb"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    let report = fixture.run(&["doctor"]);
    assert_eq!(report.code, 1, "{report:?}");
    assert!(report.out.contains("noeviction"), "{report:?}");
}

/// The state of the server: its clock, the rights of the user, its uptime.
#[cfg(feature = "redis")]
#[test]
fn a_redis_with_a_wrong_clock_and_few_rights() {
    use std::time::Duration;

    use fencelock_testbed::{ClockShim, Redis};

    let clock = ClockShim::new().unwrap();
    clock.back(Duration::from_secs(3600)).unwrap();
    let redis = Redis::builder().clock(&clock);
    let redis = redis
        .user("ann", "secret", "+@all -client|kill -config|get ~* &*")
        .start()
        .unwrap();
    let url = format!("redis://ann:secret@127.0.0.1:{}", redis.port());
    reports(
        &url,
        1,
        &[
            "s behind this machine's",
            "may not CLIENT KILL",
            "may not CONFIG GET",
            "and may have forgotten locks",
        ],
    );
    reports_clock_jumps(&url, &clock);
}

#[cfg(feature = "redis")]
#[test]
fn a_master_that_may_be_cut_off_from_its_replicas() {
    let group = fencelock_testbed::RedisSentinel::builder();
    let group = group.append_only("always").start().unwrap();
    let forgets = "after a fail-over to one of them the last grants may be forgotten";
    reports(&group.url(), 1, &[forgets, "min-replicas-to-write is 0"]);
    reports(
        &format!("{}&replicas=2", group.url()),
        0,
        &["for correctness: nothing"],
    );
}

#[cfg(feature = "redis")]
#[test]
fn redlock_nodes_without_a_vote() {
    use fencelock_testbed::{Redis, seen_long_ago};

    let mut nodes: Vec<Redis> = (0..4).map(|_| Redis::start().unwrap()).collect();
    nodes
        .iter()
        .for_each(|node| seen_long_ago(node, 0).unwrap());
    let hosts: Vec<String> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port()))
        .collect();
    let url = format!("redlock://{}?max-ttl=1h", hosts.join(","));
    reports(
        &url,
        1,
        &[
            "4 nodes share 1 machines",
            "4 nodes survive the loss of 1, as 3 would",
        ],
    );
    nodes[3].restart_empty().unwrap();
    reports(&url, 1, &[&format!("{} does not vote", hosts[3])]);
    nodes[3].kill9();
    reports(&url, 1, &[&format!("{} does not vote", hosts[3])]);
}

#[cfg(feature = "redis")]
#[test]
fn a_redlock_node_whose_clock_jumps() {
    use fencelock_testbed::Redlock;

    let nodes = Redlock::start_with_clocks(3).unwrap();
    reports_clock_jumps(&nodes.url(), &nodes.clocks()[1]);
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_members_and_versions() {
    let etcd = fencelock_testbed::Etcd::start().unwrap();
    reports(&etcd.url(), 1, &["the cluster has one member"]);
    let etcd = fencelock_testbed::Etcd::cluster(3).start().unwrap();
    let one = etcd.url_at(&[etcd.port(0)]);
    reports(&one, 1, &["the URL names one of 3 members"]);
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_servers_and_sessions() {
    use std::time::Duration;

    let server = fencelock_testbed::ZooKeeper::builder();
    let short = server.sessions(Duration::from_secs(1), Duration::from_secs(9));
    let server = short.start().unwrap();
    reports(&server.url(), 1, &["stands alone", "maxSessionTimeout"]);
}

#[cfg(feature = "mysql")]
#[test]
fn a_mariadb_that_may_forget() {
    use std::time::Duration;

    use fencelock_testbed::{ClockShim, MariaDb};

    let clock = ClockShim::new().unwrap();
    let server = MariaDb::builder()
        .clock(&clock)
        .flag("innodb-flush-log-at-trx-commit=0")
        // Each connection overrides these settings.
        .flag("wait-timeout=20")
        .flag("transaction-isolation=SERIALIZABLE");
    let server = server.start().unwrap();
    let makes = Fixture::on(server.url()).run(&["run", "a", "true"]);
    assert_eq!(makes.code, 0, "{makes:?}");
    server
        .sql(
            "CREATE USER 'poor'@'%'; GRANT SELECT, INSERT ON `lock`.* TO 'poor'@'%'; \
             GRANT UPDATE, DELETE ON `lock`.fencelock_holders TO 'poor'@'%'; \
             GRANT DELETE ON `lock`.fencelock_locks TO 'poor'@'%'; \
             GRANT UPDATE ON `lock`.fencelock_waiters TO 'poor'@'%'; \
             GRANT UPDATE ON `lock`.fencelock_draws TO 'poor'@'%'",
        )
        .unwrap();
    clock.back(Duration::from_secs(3600)).unwrap();
    let poor = format!("mysql://poor@127.0.0.1:{}/lock", server.port());
    reports(
        &poor,
        1,
        &[
            "innodb_flush_log_at_trx_commit is 0",
            "may not UPDATE on `fencelock_locks`",
            "may not DELETE on `fencelock_waiters`",
            "s behind this machine's",
            "waiters are not woken",
            "for efficiency: 3 findings",
        ],
    );
    reports_clock_jumps(&server.url(), &clock);
    for strategy in ["get-lock", "for-update"] {
        reports(
            &format!("{}?strategy={strategy}", server.url()),
            1,
            &["with the connection of its client", "this machine's"],
        );
    }
}

#[cfg(feature = "mysql")]
#[test]
fn a_mariadb_whose_replica_is_not_waited_for() {
    let primary = fencelock_testbed::MariaDb::builder().replicated();
    let primary = primary
        .flag("innodb-flush-log-at-trx-commit=1")
        .flag("sync-binlog=1")
        .start()
        .unwrap();
    let alone = Fixture::on(primary.url()).run(&["doctor"]);
    assert_eq!(alone.code, 0, "{alone:?}");
    let replica = primary.replica().unwrap();
    reports(&primary.url(), 1, &["does not wait for its replica"]);
    replica
        .sql("SET GLOBAL rpl_semi_sync_slave_enabled = ON; STOP SLAVE; START SLAVE")
        .unwrap();
    replica.follow(&primary).unwrap();
    primary
        .sql("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        .unwrap();
    reports(&primary.url(), 1, &["after 10s without a replica's answer"]);
    primary
        .sql("SET GLOBAL rpl_semi_sync_master_timeout = 86400000")
        .unwrap();
    reports(&primary.url(), 0, &["for correctness: nothing"]);
}

#[cfg(feature = "postgres")]
#[test]
fn a_postgres_that_may_forget() {
    use fencelock_testbed::{ClockShim, Postgres};

    let clock = ClockShim::new().unwrap();
    let server = Postgres::builder().clock(&clock).start().unwrap();
    reports(&server.url(), 1, &["fsync is off"]);
    reports_clock_jumps(&server.url(), &clock);
    let kept = Postgres::builder()
        .config("fsync", "on")
        .config("full_page_writes", "on")
        // Each connection overrides these settings.
        .config("idle_session_timeout", "20s")
        .config("default_transaction_isolation", "serializable")
        .start()
        .unwrap();
    reports(&kept.url(), 0, &["for correctness: nothing"]);
    // `doctor` creates no tables; a client that acquires a lock does.
    let ran = Fixture::on(kept.url()).run(&["run", "a", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let of_poor = "\
        CREATE ROLE poor LOGIN; GRANT SELECT, UPDATE ON fencelock_store TO poor; \
        GRANT USAGE, SELECT, UPDATE ON fencelock_tokens TO poor; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_locks, fencelock_holders TO poor; \
        GRANT SELECT, INSERT, UPDATE ON fencelock_waiters TO poor";
    kept.psql("lock", of_poor).unwrap();
    let poor = format!("postgres://poor@127.0.0.1:{}/lock", kept.port());
    reports(&poor, 1, &["has no DELETE on fencelock_waiters"]);
    let of_all = "GRANT DELETE ON fencelock_waiters TO poor; \
        REVOKE EXECUTE ON FUNCTION fencelock_let_go FROM PUBLIC";
    kept.psql("lock", of_all).unwrap();
    reports(&poor, 1, &["has no EXECUTE on fencelock_let_go"]);
    let replica = kept.replica().unwrap();
    reports(
        &kept.url(),
        1,
        &["a replica streams, and the server does not wait for it"],
    );
    drop(replica);
    let standbys = "ALTER SYSTEM SET synchronous_standby_names = 'x'";
    kept.psql("lock", standbys).unwrap();
    kept.psql("lock", "ALTER SYSTEM SET synchronous_commit = 'local'")
        .unwrap();
    kept.psql("lock", "SELECT pg_reload_conf()").unwrap();
    reports(&kept.url(), 1, &["synchronous_commit is local"]);
}
