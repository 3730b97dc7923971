//! `migrate offline`, with the commands of docs/operations.md.

use std::process::Command;

use fencelock_testbed::Dir;
#[cfg(all(feature = "redis", feature = "etcd"))]
use fencelock_testbed::{Etcd, Redis};

#[cfg(all(feature = "redis", feature = "etcd"))]
use crate::fixture::run_block;
use crate::fixture::{Fixture, Ran};

fn token(ran: &Ran) -> u64 {
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out.trim().parse().unwrap()
}

/// The next token of a store.
fn next(url: &str) -> u64 {
    let fixture = Fixture::on(url.to_owned());
    token(&fixture.run(&["run", "ledger", "-c", "echo $FENCELOCK_TOKEN"]))
}

fn sqlite(dir: &Dir, name: &str) -> String {
    format!("sqlite:{}", dir.join(name))
}

/// Writes the last token of an SQLite store.
pub(crate) fn set_last(path: &str, token: u64) {
    let script = "import sqlite3, sys
file = sqlite3.connect(sys.argv[1])
file.execute('UPDATE store SET token = ?', (int(sys.argv[2]),))
file.commit()";
    let mut set = Command::new("python3");
    set.args(["-c", script, path, &token.to_string()]);
    assert!(set.status().unwrap().success());
}

#[test]
fn tokens_go_on_in_the_new_store() {
    let dir = Dir::new("migrate").unwrap();
    let (old, new) = (sqlite(&dir, "old"), sqlite(&dir, "new"));
    let fixture = Fixture::on(new.clone());
    let migrate = |from: &str, to: &str| fixture.run(&["migrate", "offline", from, to]);
    // Far ahead of the time, as after a clock that was set back.
    let ahead = next(&old) + 3_600_000_000;
    set_last(&dir.join("old"), ahead);
    assert!(next(&new) < ahead);
    let moved = migrate(&old, &new);
    assert_eq!(moved.code, 0, "{moved:?}");
    assert!(
        moved.out.starts_with("raised the tokens of sqlite:"),
        "{moved:?}"
    );
    let raised = next(&new);
    assert!(raised > ahead, "{raised} after {ahead}");
    // Repeat it. Each time the old store has drawn one more token.
    for _ in 0..2 {
        let again = migrate(&old, &new);
        assert_eq!(again.code, 0, "{again:?}");
        let later = next(&new);
        assert!(later > next(&old) && later < raised + 100, "{later}");
    }
    let back = migrate(&new, &old);
    assert_eq!(back.code, 0, "{back:?}");
    assert!(next(&old) > raised);
}

#[test]
fn a_store_in_use_is_not_moved() {
    let dir = Dir::new("migrate").unwrap();
    let (old, new) = (sqlite(&dir, "old"), sqlite(&dir, "new"));
    for used in [&old, &new] {
        let holder = Fixture::on(used.clone());
        let mut running = holder.start(&["hold", "some-lock"]);
        running.line();
        let refused = holder.run(&["migrate", "offline", &old, &new]);
        assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{refused:?}");
        assert!(refused.err.contains("some-lock"), "{refused:?}");
        assert!(refused.err.contains("end all programs"), "{refused:?}");
        assert_eq!(running.end().code, 0);
    }
    let fixture = Fixture::on(old.clone());
    let same = fixture.run(&["migrate", "offline", &old, &old]);
    assert_eq!((same.code, same.out.as_str()), (1, ""), "{same:?}");
    assert!(same.err.contains("one store"), "{same:?}");
    // Nothing is left.
    assert_eq!(fixture.run(&["ls"]).out, "");
}

#[test]
fn tokens_without_room_above_them_are_refused() {
    let dir = Dir::new("migrate").unwrap();
    let (old, new) = (sqlite(&dir, "old"), sqlite(&dir, "new"));
    let fixture = Fixture::on(new.clone());
    let migrate = |from: &str, to: &str| fixture.run(&["migrate", "offline", from, to]);
    let (limit, before) = (1 << 52, next(&new));
    next(&old);
    set_last(&dir.join("old"), limit);
    let refused = migrate(&old, &new);
    assert_eq!(
        (refused.code, refused.out.as_str()),
        (78, ""),
        "{refused:?}"
    );
    assert!(refused.err.contains(&limit.to_string()), "{refused:?}");
    assert!(next(&new) < before + 3_600_000_000);
    // In the other direction there is nothing to raise.
    assert_eq!(migrate(&new, &old).code, 0);
    // With one token less there is just enough room.
    set_last(&dir.join("old"), limit - 1);
    assert_eq!(migrate(&old, &new).code, 0);
    assert!(next(&new) > limit);
}

#[test]
fn tokens_move_from_and_to_a_set_of_shards() {
    let dir = Dir::new("migrate").unwrap();
    let (one, two) = (dir.join("1"), dir.join("2"));
    let set = format!("shards:?a=sqlite%3A{one}&b=sqlite%3A{two}");
    let fixture = Fixture::on(set.clone());
    assert_eq!(fixture.run(&["shards", "init"]).code, 0);
    let other = sqlite(&dir, "other");
    let ahead = next(&other) + 3_600_000_000;
    set_last(&dir.join("other"), ahead);
    for (from, to) in [(&other, &set), (&set, &other)] {
        let moved = fixture.run(&["migrate", "offline", from, to]);
        assert_eq!(moved.code, 0, "{moved:?}");
    }
    // Names of both shards.
    for name in 0..8 {
        let ran = fixture.run(&["run", &name.to_string(), "-c", "echo $FENCELOCK_TOKEN"]);
        let token: u64 = ran.out.trim().parse().unwrap();
        assert!(token > ahead, "{token} after {ahead}");
    }
    // The set's tokens are higher now, so this raises.
    let back = fixture.run(&["migrate", "offline", &set, &other]);
    assert_eq!(back.code, 0, "{back:?}");
    assert!(back.out.contains("raised"), "{back:?}");
    let unclear = fixture.run(&["migrate", "offline", "--store", &other, &other, &set]);
    assert_eq!(unclear.code, 64, "{unclear:?}");
}

/// Each of these stores has several counters.
#[cfg(feature = "redis")]
#[test]
fn tokens_move_to_a_cluster_and_to_a_group() {
    use fencelock_testbed::{RedisCluster, Redlock};

    let dir = Dir::new("migrate").unwrap();
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    let group = Redlock::start(3).unwrap();
    let urls = [
        sqlite(&dir, "old"),
        format!("{}?response-timeout=5s", cluster.url()),
        format!("{}?node-timeout=2s", group.url()),
        sqlite(&dir, "new"),
    ];
    next(&urls[0]);
    let ahead = 3_000_000_000_000_000;
    set_last(&dir.join("old"), ahead);
    for pair in urls.windows(2) {
        let fixture = Fixture::on(pair[1].clone());
        let moved = fixture.run(&["migrate", "offline", &pair[0], &pair[1]]);
        assert_eq!(moved.code, 0, "{pair:?}: {moved:?}");
        assert!(moved.out.contains("raised the tokens"), "{moved:?}");
        for name in 0..4 {
            let words = [
                "run",
                "--ttl",
                "20s",
                &name.to_string(),
                "-c",
                "echo $FENCELOCK_TOKEN",
            ];
            let token: u64 = fixture.run(&words).out.trim().parse().unwrap();
            assert!(token > ahead, "{pair:?}: {token} after {ahead}");
        }
    }
}

#[cfg(all(feature = "redis", feature = "etcd"))]
#[test]
fn the_commands_of_the_page_on_operations_run() {
    const PAGE: &str = include_str!("../../../docs/operations.md");
    let redis = Redis::start().unwrap();
    let etcd = Etcd::start().unwrap();
    let ahead = next(&redis.url()) + 3_600_000_000;
    let _: String = redis
        .command(&["SET", "fencelock:counter", &ahead.to_string()])
        .unwrap();
    assert!(next(&etcd.url()) < ahead);
    let block = PAGE.split("```sh\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    let own = |line: &str, url: &str| {
        assert!(block.contains(line), "{line}");
        format!("{}={url}", line.split('=').next().unwrap())
    };
    let [from, to] = ["old=redis://127.0.0.1:6379", "new=etcd://127.0.0.1:2379"];
    let script = block
        .replace(from, &own(from, &crate::fixture::patient(&redis)))
        .replace(to, &own(to, &etcd.url()));
    let ran = run_block(&script, None);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("raised the tokens of etcd://"), "{ran:?}");
    assert!(next(&etcd.url()) > ahead);
}

/// The tokens of a new ensemble are far below those of all other stores.
#[cfg(all(feature = "redis", feature = "zookeeper"))]
#[test]
fn zookeeper_takes_over_from_redis() {
    let redis = Redis::start().unwrap();
    let zookeeper = fencelock_testbed::ZooKeeper::start().unwrap();
    let url = format!("zookeeper://127.0.0.1:{}/locks", zookeeper.port());
    let low = next(&url);
    let old = next(&redis.url());
    assert!(low < old);
    let fixture = Fixture::on(url.clone());
    let moved = fixture.run(&["migrate", "offline", &crate::fixture::patient(&redis), &url]);
    assert_eq!(moved.code, 0, "{moved:?}");
    let new = next(&url);
    assert!(new > old && new < old + (1 << 40), "{new} after {old}");
}
