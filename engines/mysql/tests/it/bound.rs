//! The connection-bound strategies.

use std::time::{Duration, Instant};

use fencelock_core::{Client, Error, LossReason, Token};
use fencelock_testbed::{ClockShim, MariaDb};
use mysql_async::prelude::Queryable;
use tokio::time::timeout;

use crate::{TIMEOUTS, bare, number, open, soon, status, take, token_of, until, waiting};

const BOTH: [&str; 2] = ["get-lock", "for-update"];

async fn with(server: &MariaDb, options: &str) -> Client {
    open(&format!("{}?{options}", server.url())).await.unwrap()
}

/// Names next to each other in the index, names that the server would fold or cut, and the same name in another database.
#[tokio::test(flavor = "multi_thread")]
async fn another_name_is_never_blocked() {
    let server = MariaDb::start().unwrap();
    server
        .sql("CREATE DATABASE other; GRANT ALL ON other.* TO 'lock'@'%'")
        .unwrap();
    for strategy in BOTH {
        let options = format!("strategy={strategy}");
        let (one, two) = (with(&server, &options).await, with(&server, &options).await);
        let long = "x".repeat(500);
        let held = [take(&one, "m").await, take(&one, &format!("{long}a")).await];
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { two.lock("m").await }
        });
        until("it waits", || waiting(&server, strategy) == 1).await;
        let long = format!("{long}b");
        // In the first round connections are made, which may conflict when they reserve tokens.
        for counts in [false, true] {
            let before = status(&server, "Innodb_row_lock_waits");
            let begun = Instant::now();
            for name in ["a", "l", "m ", "M", "\u{1e3f}", "ma", "n", &long] {
                let guard = two.try_lock(name).await.unwrap();
                let busy = one.try_lock(name).await.unwrap_err();
                assert!(matches!(busy, Error::Held { .. }), "{name}: {busy}");
                guard.release().await.unwrap();
            }
            assert!(begun.elapsed() < Duration::from_secs(10));
            let waited = status(&server, "Innodb_row_lock_waits") - before;
            assert!(!counts || waited == 0, "{strategy}: {waited} waits");
        }
        let elsewhere = format!("{}?{options}", server.url_at(server.port(), "other"));
        drop(open(&elsewhere).await.unwrap().try_lock("m").await.unwrap());
        for guard in held {
            guard.release().await.unwrap();
        }
        drop(soon("the waiter", waiter).await.unwrap().unwrap());
    }
    // The plan uses the primary key alone: it locks one row and no other.
    let plan = server
        .sql("EXPLAIN SELECT 1 FROM `lock`.fencelock_names WHERE name = 'm' FOR UPDATE")
        .unwrap();
    assert!(!plan.contains("ALL"), "{plan}");
}

/// The loss is reported at once, not when the lease is over. The next holder has a higher token.
#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_ends_the_connections() {
    let server = MariaDb::start().unwrap();
    for strategy in BOTH {
        let options = format!("strategy={strategy}");
        let (one, two) = (with(&server, &options).await, with(&server, &options).await);
        // The first renewal comes after a third of it.
        let ttl = Duration::from_secs(60);
        let guard = one.lock("a").ttl(ttl).await.unwrap();
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { two.lock("a").await }
        });
        until("it waits", || waiting(&server, strategy) == 1).await;
        server.sql("KILL USER 'lock'").unwrap();
        let why = timeout(ttl / 6, guard.lost()).await.unwrap();
        assert_eq!(why, LossReason::ConnectionEnded);
        let next = soon("the waiter", waiter).await.unwrap().unwrap();
        assert!(next.token() > guard.token());
    }
}

/// The server ends idle connections and long statements early.
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_server_end_neither_a_hold_nor_a_wait() {
    let server = MariaDb::start().unwrap();
    for limit in [
        "wait_timeout",
        "innodb_lock_wait_timeout",
        "lock_wait_timeout",
        "max_statement_time",
        "idle_transaction_timeout",
        "idle_write_transaction_timeout",
        "idle_readonly_transaction_timeout",
    ] {
        server.sql(&format!("SET GLOBAL {limit} = 1")).unwrap();
    }
    for strategy in BOTH {
        let options = format!("strategy={strategy}");
        let (one, two) = (with(&server, &options).await, with(&server, &options).await);
        let other = with(&server, &options).await;
        let guard = take(&one, "a").await;
        let waiter = tokio::spawn(two.lock("a").into_future());
        let lost = timeout(Duration::from_secs(4), guard.lost()).await;
        assert!(lost.is_err(), "{strategy}: {lost:?}");
        // The waits did not end and start again either.
        assert_eq!(number(&server, TIMEOUTS), 0, "{strategy}");
        let ended = status(&server, "Max_statement_time_exceeded");
        assert_eq!(ended, 0, "{strategy}");
        assert!(guard.is_valid() && !waiter.is_finished(), "{strategy}");
        let busy = other.try_lock("a").await.unwrap_err();
        assert!(matches!(busy, Error::Held { .. }), "{strategy}: {busy}");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = soon("the waiter", waiter).await.unwrap().unwrap();
        assert!(next.token() > token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_frees_all_locks_and_tokens_increase() {
    for strategy in BOTH {
        let mut server = MariaDb::start().unwrap();
        let client = with(&server, &format!("strategy={strategy}")).await;
        let mut last = Token(0);
        for _ in 0..3 {
            for _ in 0..20 {
                let token = token_of(&client, "a").await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
            let guard = take(&client, "a").await;
            last = guard.token();
            server.kill9();
            server.restart().unwrap();
            let why = soon("the loss", guard.lost()).await;
            assert_eq!(why, LossReason::ConnectionEnded);
        }
        let token = token_of(&client, "a").await;
        assert!(token > last, "{token} after {last}");
    }
}

/// A clean-up has locked the row of a free lock, and is about to delete it.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_refuses_no_claim() {
    let server = MariaDb::start().unwrap();
    let client = with(&server, "strategy=for-update").await;
    let before = token_of(&client, "a").await;
    let mut cleaner = bare(&server).await;
    let key = "CONCAT('fencelock-s', LEFT(SHA2(CONCAT(DATABASE(), CHAR(0), 'fencelock', CHAR(0)), 256), 48))";
    for sql in [
        &format!("DO GET_LOCK({key}, 10)"),
        "INSERT IGNORE INTO fencelock_names (name) VALUES ('a')",
        "START TRANSACTION",
        "SELECT name FROM fencelock_names FOR UPDATE",
    ] {
        cleaner.query_drop(sql).await.unwrap();
    }
    let tried = tokio::spawn(async move { client.try_lock("a").await });
    let waits = || waiting(&server, "get-lock") == 1;
    until("it waits for the end of the clean-up", waits).await;
    for sql in [
        "DELETE FROM fencelock_names WHERE name = 'a'",
        "COMMIT",
        &format!("DO RELEASE_LOCK({key})"),
    ] {
        cleaner.query_drop(sql).await.unwrap();
    }
    let guard = soon("the lock", tried).await.unwrap().unwrap();
    assert!(guard.token() > before);
}

/// A waiter has just locked its row, and draws a token whose row is locked by a client that wants the waiter's row.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let server = MariaDb::start().unwrap();
    let client = with(&server, "strategy=for-update").await;
    let before = token_of(&client, "a").await;
    let (mut holder, mut other) = (bare(&server).await, bare(&server).await);
    let lock = "SELECT 1 FROM fencelock_names WHERE name = 'a' FOR UPDATE";
    // A clean-up may have deleted the row, or may be about to.
    let make = "INSERT INTO fencelock_names (name) VALUES ('a') ON DUPLICATE KEY UPDATE name = 'a'";
    for sql in ["START TRANSACTION", make] {
        holder.query_drop(sql).await.unwrap();
    }
    // The server rolls back the client that has changed fewer rows.
    for sql in [
        "CREATE TABLE heavy (a INT)",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION",
        "INSERT INTO heavy SELECT seq FROM seq_1_to_500",
    ] {
        other.query_drop(sql).await.unwrap();
    }
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.lock("a").await }
    });
    // A statement that takes this long is waiting.
    let waiting = |statement: &str| {
        let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE time_ms > 100";
        number(&server, &format!("{running} AND info LIKE '{statement}%'")) > 0
    };
    until("it waits for the row", || {
        waiting("SELECT 1 FROM `fencelock_names`")
    })
    .await;
    // The counter was lifted before that.
    let tokens = "SELECT id FROM fencelock_tokens FOR UPDATE";
    other.query_drop(tokens).await.unwrap();
    holder.query_drop("COMMIT").await.unwrap();
    until("it waits for a token", || {
        waiting("INSERT INTO `fencelock_tokens` (id) VALUES (NULL)")
    })
    .await;
    let deadlocks = status(&server, "Innodb_deadlocks");
    soon("the deadlock", other.query_drop(lock)).await.unwrap();
    assert!(status(&server, "Innodb_deadlocks") > deadlocks);
    assert!(!waits.is_finished());
    other.query_drop("ROLLBACK").await.unwrap();
    let guard = soon("the lock", waits).await.unwrap().unwrap();
    assert!(guard.token() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_even_if_the_clock_jumps() {
    for strategy in BOTH {
        let clock = ClockShim::new().unwrap();
        let server = MariaDb::builder().clock(&clock).start().unwrap();
        let options = format!("strategy={strategy}");
        let (one, two) = (with(&server, &options).await, with(&server, &options).await);
        let guard = one.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
        clock.forward(Duration::from_secs(3600)).unwrap();
        // The lock is bound to a connection, not to the clock.
        for _ in 0..2 {
            soon("a renewal", guard.prolonged()).await;
            assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
        }
        let mut last = guard.token();
        guard.release().await.unwrap();
        let mut above = |token: Token| {
            assert!(token > last, "{token} after {last}");
            last = token;
        };
        above(token_of(&with(&server, &options).await, "a").await);
        clock.back(Duration::from_secs(7200)).unwrap();
        above(token_of(&two, "a").await);
        above(token_of(&with(&server, &options).await, "a").await);
    }
}

/// A hold whose beginning is in the future, because the clock was set back, is shown as held for no time.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_began_in_the_future_is_shown() {
    let server = MariaDb::start().unwrap();
    for strategy in BOTH {
        let client = with(&server, &format!("strategy={strategy}")).await;
        let guard = take(&client, strategy).await;
        // The record is written after the grant.
        let row = format!("`lock`.fencelock_bound WHERE name = '{strategy}'");
        until("it is written down", || {
            number(&server, &format!("SELECT COUNT(*) FROM {row}")) == 1
        })
        .await;
        let later = row.replace("WHERE", "SET since = since + 3600000000 WHERE");
        server.sql(&format!("UPDATE {later}")).unwrap();
        let seen = client.look(strategy).await.unwrap();
        let held: Vec<_> = seen.holders.iter().map(|holder| holder.held).collect();
        assert_eq!(held, [Some(Duration::ZERO)], "{strategy}");
        guard.release().await.unwrap();
    }
}

/// The replica has missed the last grants.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_over_the_promotion_of_a_replica() {
    let primary = MariaDb::builder().replicated().start().unwrap();
    let replica = primary.replica().unwrap();
    let url = |strategy: &str| {
        format!(
            "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
            replica.port(),
            primary.port()
        )
    };
    let clients = [
        open(&url(BOTH[0])).await.unwrap(),
        open(&url(BOTH[1])).await.unwrap(),
    ];
    let mut last = [Token(0); 2];
    for (client, last) in clients.iter().zip(&mut last) {
        let said = format!("{:?}", client.promises().limits);
        assert!(said.contains("switch-over"), "{said}");
        *last = token_of(client, "a").await;
    }
    replica.follow(&primary).unwrap();
    replica.cut_off().unwrap();
    for (client, last) in clients.iter().zip(&mut last) {
        for _ in 0..50 {
            *last = token_of(client, "a").await;
        }
    }
    // A switch-over: the old primary takes no more writes, its connections stay, and one of them waits for a lock
    // there. (A statement that waits for a row would block the switch-over.)
    let guard = take(&clients[0], "a").await;
    last[0] = guard.token();
    let other = open(&url(BOTH[0])).await.unwrap();
    let waiter = tokio::spawn(async move { other.lock("a").await });
    let there = || waiting(&primary, BOTH[0]);
    until("it waits", || there() == 1).await;
    primary.demote().unwrap();
    // The record of the hold cannot be deleted now, so the release is not confirmed.
    drop(guard);
    until("nobody waits there", || there() == 0).await;
    for client in &clients {
        let error = client.try_lock("b").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    assert!(!waiter.is_finished());
    replica.promote().unwrap();
    let next = soon("the waiter", waiter).await.unwrap().unwrap();
    assert!(next.token() > last[0], "{} after {}", next.token(), last[0]);
    last[0] = next.token();
    next.release().await.unwrap();
    for (client, last) in clients.iter().zip(last) {
        let token = token_of(client, "a").await;
        assert!(token > last, "{token} after {last}");
    }
    assert_eq!(number(&primary, "SELECT @@read_only"), 1);
}

/// The server would scan a small table, and lock what it reads, instead of using the index.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_waits_for_no_holder() {
    let server = MariaDb::start().unwrap();
    let client = with(&server, "strategy=for-update").await;
    let held = take(&client, "held").await;
    for other in 0..10 {
        let guard = take(&client, &other.to_string()).await;
        guard.release().await.unwrap();
    }
    until("what nobody locks is deleted", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_names") == 1
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_names_leave_no_row() {
    let server = MariaDb::start().unwrap();
    // When the client closes, it has this long to delete what is left.
    let client = with(&server, "strategy=for-update&response-timeout=30s").await;
    let mut tasks = Vec::new();
    for task in 0..16 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for i in 0..625 {
                token_of(&client, &format!("{task}/{i}")).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let held = take(&client, "held").await;
    client.close().await.unwrap();
    drop(held);
    until("the rows are gone", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_names") <= 1
    })
    .await;
    assert_eq!(
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_bound"),
        0
    );
}

/// A lock on one node of a Galera cluster is free on another.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_refused() {
    let server = MariaDb::builder()
        .flag("wsrep-on=ON")
        .flag("wsrep-provider=none")
        .flag("binlog-format=ROW")
        .start()
        .unwrap();
    for strategy in BOTH {
        let refused = open(&format!("{}?strategy={strategy}", server.url())).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Config { .. }), "{refused:?}");
        assert!(refused.to_string().contains("Galera"), "{refused}");
    }
    token_of(&open(&server.url()).await.unwrap(), "a").await;
}
