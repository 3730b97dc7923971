//! `doctor`: what it says, and its exit codes.

use crate::bed::Bed;

/// What `doctor` says of a store, and with which exit code.
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres"
))]
fn says(url: &str, code: i32, told: &[&str]) {
    let said = Bed::on(url.to_owned()).run(&["doctor"]);
    assert_eq!(said.code, code, "{said:?}");
    for told in told {
        assert!(said.out.contains(told), "{told:?} is not in {said:?}");
    }
}

/// The same while the server's clock jumps forward again and again.
#[cfg(any(feature = "redis", feature = "mysql", feature = "postgres"))]
fn says_that_it_jumps(url: &str, clock: &fencelock_testbed::ClockShim) {
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
        let said = Bed::on(url.to_owned()).run(&["doctor"]);
        watched.store(true, Ordering::SeqCst);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.out.contains(" jumped forward by "), "{said:?}");
    });
}

#[test]
fn a_file_of_this_machine_is_fit() {
    let bed = Bed::new();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.out.contains("first come, first served"), "{told:?}");
    assert!(told.out.contains("for correctness: nothing"), "{told:?}");
    assert!(told.out.contains(" 50ms to 100 years\n"), "{told:?}");
    let json: serde_json::Value =
        serde_json::from_str(&bed.run(&["doctor", "--json"]).out).unwrap();
    assert_eq!(json["engine"], "sqlite");
    assert_eq!(json["fine"], true);
}

#[test]
fn a_store_that_cannot_be_asked_is_no_diagnosis() {
    let bed = Bed::new();
    let told = bed.run(&[
        "doctor",
        "--store",
        "redis://127.0.0.1:1?connect-timeout=300ms",
    ]);
    assert_eq!(told.code, 69, "{told:?}");
    let told = bed.run(&["doctor", "--store", "gopher:x"]);
    assert_eq!(told.code, 78, "{told:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_that_may_forget_is_told_so() {
    let mut redis = fencelock_testbed::Redis::start().unwrap();
    let bed = Bed::on(redis.url());
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(
        told.out.contains("a restart of the server forgets"),
        "{told:?}"
    );
    assert!(
        told.out.contains("change: CONFIG SET appendonly yes"),
        "{told:?}"
    );
    // For what only costs money it is good enough.
    let told = bed.run(&["doctor", "--purpose", "efficiency"]);
    assert_eq!(told.code, 0, "{told:?}");
    let told = bed.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(json["fine"], false);
    assert_eq!(json["findings"][0]["purpose"], "correctness");
    assert_eq!(json["promises"]["durability"], "volatile");

    // What is set ends with the process.
    redis
        .command::<()>(&["CONFIG", "SET", "appendonly", "yes"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "appendfsync", "always"])
        .unwrap();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.out.contains("until its next start"), "{told:?}");
    assert!(told.out.contains("change: CONFIG REWRITE"), "{told:?}");
    // Somebody who mended it hears so: the server is asked as it is, not as it was.
    redis.command::<()>(&["CONFIG", "REWRITE"]).unwrap();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 0, "{told:?}");
    // And it is so: the lock outlives the server.
    let mut held = bed.start(&["hold", "a"]);
    held.json();
    redis.restart().unwrap();
    let told = bed.run(&["run", "-n", "a", "--", "true"]);
    assert_eq!(told.code, 1, "{told:?}");
    held.end();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 0, "{told:?}");
    // What evicts keys is in the way again.
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "100mb"])
        .unwrap();
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    let told = bed.run(&["doctor"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.out.contains("noeviction"), "{told:?}");
}

/// The state of a server as it is: its clock, its rights, how long it has run.
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
    says(
        &url,
        1,
        &[
            "s behind this machine's",
            "may not CLIENT KILL",
            "may not CONFIG GET",
            "and may have forgotten locks",
        ],
    );
    says_that_it_jumps(&url, &clock);
}

#[cfg(feature = "redis")]
#[test]
fn a_master_that_may_be_cut_off_from_its_replicas() {
    let group = fencelock_testbed::RedisSentinel::builder();
    let group = group.append_only("always").start().unwrap();
    let forgets = "after a fail-over to one of them the last grants may be forgotten";
    says(&group.url(), 1, &[forgets, "min-replicas-to-write is 0"]);
    says(
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
    says(
        &url,
        1,
        &[
            "4 nodes share 1 machines",
            "4 nodes survive the loss of 1, as 3 would",
        ],
    );
    nodes[3].restart_empty().unwrap();
    says(&url, 1, &[&format!("{} does not vote", hosts[3])]);
    nodes[3].kill9();
    says(&url, 1, &[&format!("{} does not vote", hosts[3])]);
}

#[cfg(feature = "redis")]
#[test]
fn a_redlock_node_whose_clock_jumps() {
    use fencelock_testbed::Redlock;

    let nodes = Redlock::start_with_clocks(3).unwrap();
    says_that_it_jumps(&nodes.url(), &nodes.clocks()[1]);
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_members_and_versions() {
    let etcd = fencelock_testbed::Etcd::start().unwrap();
    says(&etcd.url(), 1, &["the cluster has one member"]);
    let etcd = fencelock_testbed::Etcd::cluster(3).start().unwrap();
    let one = etcd.url_at(&[etcd.port(0)]);
    says(&one, 1, &["the URL names one of 3 members"]);
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_servers_and_sessions() {
    use std::time::Duration;

    let server = fencelock_testbed::ZooKeeper::builder();
    let short = server.sessions(Duration::from_secs(1), Duration::from_secs(9));
    let server = short.start().unwrap();
    says(&server.url(), 1, &["stands alone", "maxSessionTimeout"]);
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
        // Connections set these for themselves.
        .flag("wait-timeout=20")
        .flag("transaction-isolation=SERIALIZABLE");
    let server = server.start().unwrap();
    let makes = Bed::on(server.url()).run(&["run", "a", "true"]);
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
    says(
        &poor,
        1,
        &[
            "innodb_flush_log_at_trx_commit is 0",
            "may not UPDATE on `fencelock_locks`",
            "may not DELETE on `fencelock_waiters`",
            "s behind this machine's",
            "for efficiency: 2 in the way",
        ],
    );
    says_that_it_jumps(&server.url(), &clock);
    for strategy in ["get-lock", "for-update"] {
        says(
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
    let alone = Bed::on(primary.url()).run(&["doctor"]);
    assert_eq!(alone.code, 0, "{alone:?}");
    let replica = primary.replica().unwrap();
    says(&primary.url(), 1, &["does not wait for its replica"]);
    replica
        .sql("SET GLOBAL rpl_semi_sync_slave_enabled = ON; STOP SLAVE; START SLAVE")
        .unwrap();
    replica.follow(&primary).unwrap();
    primary
        .sql("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        .unwrap();
    says(&primary.url(), 1, &["after 10s without a replica's answer"]);
    primary
        .sql("SET GLOBAL rpl_semi_sync_master_timeout = 86400000")
        .unwrap();
    says(&primary.url(), 0, &["for correctness: nothing"]);
}

#[cfg(feature = "postgres")]
#[test]
fn a_postgres_that_may_forget() {
    use fencelock_testbed::{ClockShim, Postgres};

    let clock = ClockShim::new().unwrap();
    let server = Postgres::builder().clock(&clock).start().unwrap();
    says(&server.url(), 1, &["fsync is off"]);
    says_that_it_jumps(&server.url(), &clock);
    let kept = Postgres::builder()
        .config("fsync", "on")
        .config("full_page_writes", "on")
        // Connections set these for themselves.
        .config("idle_session_timeout", "20s")
        .config("default_transaction_isolation", "serializable")
        .start()
        .unwrap();
    says(&kept.url(), 0, &["for correctness: nothing"]);
    // The doctor made no tables; who takes a lock does.
    let ran = Bed::on(kept.url()).run(&["run", "a", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let of_poor = "\
        CREATE ROLE poor LOGIN; GRANT SELECT, UPDATE ON fencelock_store TO poor; \
        GRANT USAGE, SELECT, UPDATE ON fencelock_tokens TO poor; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_locks, fencelock_holders TO poor; \
        GRANT SELECT, INSERT, UPDATE ON fencelock_waiters TO poor";
    kept.psql("lock", of_poor).unwrap();
    let poor = format!("postgres://poor@127.0.0.1:{}/lock", kept.port());
    says(&poor, 1, &["has no DELETE on fencelock_waiters"]);
    let of_all = "GRANT DELETE ON fencelock_waiters TO poor; \
        REVOKE EXECUTE ON FUNCTION fencelock_let_go FROM PUBLIC";
    kept.psql("lock", of_all).unwrap();
    says(&poor, 1, &["has no EXECUTE on fencelock_let_go"]);
    let replica = kept.replica().unwrap();
    says(&kept.url(), 1, &["a replica streams, and the server does not wait for it"]);
    drop(replica);
    let standbys = "ALTER SYSTEM SET synchronous_standby_names = 'x'";
    kept.psql("lock", standbys).unwrap();
    kept.psql("lock", "ALTER SYSTEM SET synchronous_commit = 'local'")
        .unwrap();
    kept.psql("lock", "SELECT pg_reload_conf()").unwrap();
    says(&kept.url(), 1, &["synchronous_commit is local"]);
}
