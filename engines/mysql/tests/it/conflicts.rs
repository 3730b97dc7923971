//! Row locks: conflicts are retried, and one lock never blocks another.

use super::*;
use crate::shared::hand_over_within;

/// A client keeps the rows of one lock locked, as if it had been stopped inside a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn another_name_is_never_blocked() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = take(&one, "m").await;
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { two.lock("m").await }
    });
    until("it waits", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
    })
    .await;
    let mut stopped = bare(&server).await;
    for statement in [
        "START TRANSACTION",
        "SELECT * FROM fencelock_locks WHERE name = 'm' FOR UPDATE",
        "SELECT * FROM fencelock_holders WHERE name = 'm' FOR UPDATE",
        "SELECT * FROM fencelock_waiters WHERE name = 'm' FOR UPDATE",
    ] {
        stopped.query_drop(statement).await.unwrap();
    }
    // Names before, after and next to it in the index.
    let names = ["a", "l", "m ", "M", "m0", "ma", "n", "z", "\u{10ffff}"];
    // A statement that waits for a row does so for a second.
    let limit = Duration::from_secs(1);
    for name in names {
        let next = hand_over_within(limit, name, async || {
            let begun = Instant::now();
            let guard = two.try_lock(name).await.unwrap();
            let busy = one.try_lock(name).await.unwrap_err();
            assert!(matches!(busy, Error::Held { .. }), "{name}: {busy}");
            let next = tokio::spawn({
                let (one, name) = (one.clone(), name.to_owned());
                async move { one.lock(&name).await }
            });
            sleep(Duration::from_millis(30)).await;
            guard.refresh(Duration::from_secs(30)).await.unwrap();
            guard.release().await.unwrap();
            let next = soon("the next one", next).await.unwrap().unwrap();
            (begun.elapsed(), next)
        })
        .await;
        next.release().await.unwrap();
    }
    stopped.query_drop("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
    drop(soon("the waiter", waiter).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_tried_again() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let ttl = Duration::from_secs(3);
    let first = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
    let second = soon("the lock", one.lock("b").ttl(ttl)).await.unwrap();
    soon("a renewal of both", second.prolonged()).await;
    let mut other = bare(&server).await;
    // The server rolls back the client that has changed fewer rows.
    other
        .query_drop("CREATE TABLE heavy (a INT)")
        .await
        .unwrap();
    other.query_drop("START TRANSACTION").await.unwrap();
    let heavy = "INSERT INTO heavy SELECT seq FROM seq_1_to_500";
    other.query_drop(heavy).await.unwrap();
    let lock = |name| format!("SELECT 1 FROM fencelock_locks WHERE name = '{name}' FOR UPDATE");
    other.query_drop(lock("b")).await.unwrap();
    let before = status(&server, "Innodb_deadlocks");
    // The next renewal has locked a, and waits for b.
    until("it waits", || {
        status(&server, "Innodb_row_lock_current_waits") > 0
    })
    .await;
    soon("the deadlock", other.query_drop(lock("a")))
        .await
        .unwrap();
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(status(&server, "Innodb_deadlocks") > before);
    soon("a renewal", first.prolonged()).await;
    soon("a renewal", second.prolonged()).await;
    assert!(first.is_valid() && second.is_valid());
}

/// All names share the counter of ids.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_waits_for_a_row_blocks_no_other_name() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let patient = open(&format!("{}?response-timeout=20s", server.url())).await;
    let held = take(&one, "m").await;
    let mut stopped = bare(&server).await;
    stopped.query_drop("START TRANSACTION").await.unwrap();
    let stop = "SELECT 1 FROM fencelock_locks WHERE name = 'm' FOR UPDATE";
    stopped.query_drop(stop).await.unwrap();
    let reader = tokio::spawn(patient.unwrap().lock("m").shared().into_future());
    until("the reader waits for the row", || {
        status(&server, "Innodb_row_lock_current_waits") == 1
    })
    .await;
    for name in ["a", "n"] {
        one.try_lock(name).await.unwrap().release().await.unwrap();
        let read = one.try_lock(name).shared().await.unwrap();
        read.release().await.unwrap();
    }
    assert_eq!(status(&server, "Innodb_row_lock_current_waits"), 1);
    stopped.query_drop("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
    drop(soon("the reader", reader).await.unwrap().unwrap());
}

/// A statement that waits for a row gives up before its client does.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_row_that_took_too_long_is_tried_again() {
    let server = MariaDb::start().unwrap();
    waits_too_long(&server, || number(&server, TIMEOUTS)).await;
    // The server may also have a limit for the whole statement.
    let hasty = MariaDb::builder().flag("max-statement-time=0.5");
    let hasty = hasty.start().unwrap();
    waits_too_long(&hasty, || status(&hasty, "Max_statement_time_exceeded")).await;
}

async fn waits_too_long(server: &MariaDb, timeouts: impl Fn() -> u64) {
    let client = open(&format!("{}?response-timeout=1900ms", server.url())).await;
    let client = client.unwrap();
    let mut stopped = bare(server).await;
    let mut held = Some(take(&client, "m").await);
    for what in ["a release", "a take"] {
        let before = timeouts();
        stopped.query_drop("START TRANSACTION").await.unwrap();
        let stop = match what {
            "a release" => "SELECT 1 FROM fencelock_locks WHERE name = 'm' FOR UPDATE",
            _ => {
                "INSERT INTO fencelock_locks SELECT 'n', 1, 1, 'none', '', 0, 0, 0, 0, 0, '', NULL"
            }
        };
        stopped.query_drop(stop).await.unwrap();
        let asked = tokio::spawn({
            let (client, held) = (client.clone(), held.take());
            async move {
                match held {
                    Some(held) => held.release().await,
                    None => client.lock("n").await?.release().await,
                }
            }
        });
        until("the server gave up", || timeouts() > before).await;
        stopped.query_drop("ROLLBACK").await.unwrap();
        soon(what, asked).await.unwrap().unwrap();
    }
    let left = "SELECT COUNT(*) FROM `lock`.fencelock_locks";
    assert_eq!(number(server, left), 0);
}
