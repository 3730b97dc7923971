//! `migrate` between servers: of many kinds, and from one that is destroyed meanwhile.

use fencelock_testbed::{Dir, Redis};

use crate::fixture::{Fixture, patient};
use crate::migrate_live::{Move, PREPARE, TTL};

/// From each kind of server to the next one, with a hold that lives through all steps.
#[cfg(all(feature = "zookeeper", feature = "postgres", feature = "mysql"))]
#[test]
fn locks_move_between_servers_of_many_kinds() {
    use fencelock_testbed::{MariaDb, Postgres, ZooKeeper};

    let redis = Redis::builder().append_only("always").start().unwrap();
    let zookeeper = ZooKeeper::start().unwrap();
    let (postgres, mariadb) = (Postgres::start().unwrap(), MariaDb::start().unwrap());
    let urls = [
        patient(&redis),
        zookeeper.url(),
        postgres.url(),
        mariadb.url(),
    ];
    move_along(&urls, PREPARE[2], TTL);
}

/// Between stores with several counters of tokens, and to one with one.
#[test]
fn locks_move_from_a_cluster_to_a_group_and_on() {
    use fencelock_testbed::{RedisCluster, Redlock};

    let dir = Dir::new("migrate").unwrap();
    let [to, records] = ["to", "records"].map(|file| format!("sqlite:{}", dir.join(file)));
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    let group = Redlock::start(3).unwrap();
    let records = records.replace(':', "%3A");
    let urls = [
        format!("{}?response-timeout=5s", cluster.url()),
        // Its shortest ttl is 5 s.
        format!("{}?node-timeout=1s&record={records}", group.url()),
        to,
    ];
    move_along(&urls, "7500ms", "5s");
}

/// The group would begin at the time again if all its servers forgot, and its record would not tell.
#[test]
fn a_group_is_refused_where_tokens_are_ahead_of_the_time() {
    let dir = Dir::new("migrate").unwrap();
    let [records, old] = ["records", "old"].map(|file| format!("sqlite:{}", dir.join(file)));
    let group = fencelock_testbed::Redlock::start(3).unwrap();
    let records = records.replace(':', "%3A");
    let group = format!("{}?node-timeout=1s&record={records}", group.url());
    let plain = Fixture::on(old.clone());
    assert_eq!(plain.run(&["run", "x", "--", "true"]).code, 0);
    crate::migrate::set_last(&dir.join("old"), 3_000_000_000_000_000);
    let all = Move::between(dir, &old, &group);
    all.done(&["prepare", "--pace", "7500ms", "--tight", PREPARE[4]]);
    let refused = all.step(&["begin", "--despite-findings"]);
    assert_eq!((refused.code, &*refused.out), (1, ""), "{refused:?}");
    assert!(refused.err.contains("ahead of the time"), "{refused:?}");
}

/// Moves the locks from each store to the next one, with a hold that lives through all steps.
fn move_along(urls: &[String], pace: &str, ttl: &'static str) {
    let mut last = 0;
    for pair in urls.windows(2) {
        let mut all = Move::between(Dir::new("migrate").unwrap(), &pair[0], &pair[1]);
        all.ttl = ttl;
        let mut grows = || {
            let token = all.token();
            assert!(token > last, "{pair:?}: {token} after {last}");
            last = token;
        };
        all.done(&["prepare", "--pace", pace, "--tight", PREPARE[4]]);
        grows();
        all.done(&["begin", "--despite-findings"]);
        let (mut hold, held) = all.hold("held");
        let is_held = || {
            let words = ["run", "-n", "--ttl", ttl, "held", "--", "true"];
            let other = all.programs.run(&words);
            assert_eq!(other.code, 1, "{pair:?}: {other:?}");
        };
        // Each time to the next phase.
        for _ in 0..2 {
            is_held();
            grows();
            all.done(&["finish"]);
        }
        is_held();
        grows();
        assert!(hold.runs(), "{pair:?}");
        assert_eq!(hold.end().code, 0, "{pair:?}");
        let (next, token) = all.hold("held");
        assert!(token > held, "{pair:?}: {token} after {held}");
        assert_eq!(next.end().code, 0);
        let dissolved = all.programs.run(&["set", "dissolve"]);
        assert_eq!(dissolved.code, 0, "{pair:?}: {dissolved:?}");
    }
}

/// The old server is destroyed while it counts, in each phase. Somebody knows the highest mark of the fences.
#[test]
fn a_set_goes_on_without_a_server_that_is_gone_for_good() {
    for phase in 0..3 {
        let redis = Redis::builder().append_only("always").start().unwrap();
        let now: Vec<u64> = redis.command(&["TIME"]).unwrap();
        let ahead = (now[0] + 3600) * 1_000_000;
        let counter = ["SET", "fencelock:counter", &ahead.to_string()];
        let _: String = redis.command(&counter).unwrap();
        let dir = Dir::new("migrate").unwrap();
        let new = format!("sqlite:{}", dir.join("new"));
        let all = Move::between(dir, &redis.url(), &new);
        all.done(&PREPARE);
        if phase > 0 {
            all.done(&["begin", "--despite-findings"]);
        }
        let (hold, held) = all.hold("x");
        assert!(held > ahead, "{held}");
        let words = ["run", "--ttl", TTL, "x", "-c", "echo $FENCELOCK_TOKEN"];
        let waiter = all.programs.start(&words);
        all.programs.await_waiters("x", 1);
        if phase == 2 {
            drop(all.stop_in_the_hush(&redis.url()));
        }
        redis.kill9();
        let gone = ["finish", "--old-is-destroyed", "orders"];
        let refused = all.step(&gone);
        assert_eq!((refused.code, &*refused.out), (64, ""), "{refused:?}");
        assert!(refused.err.contains("--highest-token"), "{refused:?}");
        let highest = (held + 1_000_000).to_string();
        let left = all.step(&[&gone[..], &["--highest-token", &highest]].concat());
        assert_eq!(left.code, 0, "{phase}: {left:?}");
        assert!(left.out.starts_with("phase 4"), "{phase}: {left:?}");
        let next = waiter.end();
        assert_eq!(next.code, 0, "{phase}: {next:?}");
        let next: u64 = next.out.trim().parse().unwrap();
        assert!(next > held + 1_000_000, "{phase}: {next} after {held}");
        // Its lock ended with the server.
        let ended = hold.end();
        assert_eq!(ended.code, 75, "{phase}: {ended:?}");
        assert!(all.token() > next, "{phase}");
        // The token was too low, somebody finds.
        let higher = next + 3_600_000_000;
        let highest = higher.to_string();
        let again = all.step(&[&gone[..], &["--highest-token", &highest]].concat());
        assert_eq!(again.code, 0, "{phase}: {again:?}");
        assert!(all.token() > higher, "{phase}");
        let senseless = [&gone[..], &["--highest-token", "9007199254740991"]].concat();
        let refused = all.step(&senseless);
        assert_eq!((refused.code, &*refused.out), (64, ""), "{refused:?}");
    }
}
