//! Bad days of `strategy=advisory`: a connection that ends, a record that is refused, a downgrade without an answer.

use super::*;
use crate::shared::{soon, take};

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1";

/// The core does not know the hold yet when its connection ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_connection_ends_while_it_is_recorded_is_not_granted() {
    let server = Postgres::start().unwrap();
    let url = format!("{}?strategy=advisory&response-timeout=10s", server.url());
    let (client, second) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    take(&client, "a").await.release().await.unwrap();
    let table = raw(&server, "table").await;
    let closed = "BEGIN; LOCK TABLE fencelock_bound IN ACCESS EXCLUSIVE MODE";
    table.batch_execute(closed).await.unwrap();
    let request = tokio::spawn(client.lock("a").recorded().into_future());
    until("it has the lock", async || {
        server.psql("lock", LOCKS).unwrap() != "0"
    })
    .await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1";
    assert_eq!(server.psql("lock", end).unwrap(), "1");
    until("the lock is free", async || {
        server.psql("lock", LOCKS).unwrap() == "0"
    })
    .await;
    table.batch_execute("ROLLBACK").await.unwrap();
    let guard = soon("the lock", request).await.unwrap().unwrap();
    assert!(guard.is_valid());
    let held = soon("an answer", second.try_lock("a")).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_record_keeps_neither_lock_nor_connection() {
    let server = Postgres::start().unwrap();
    let url = format!("{}?strategy=advisory&max-connections=2", server.url());
    let client = open(&url).await.unwrap();
    take(&client, "a").await.release().await.unwrap();
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                  RAISE 'not allowed' USING ERRCODE = 'insufficient_privilege'; END $$; \
                  CREATE TRIGGER refuse BEFORE INSERT ON fencelock_bound FOR EACH ROW EXECUTE FUNCTION refuse()";
    server.psql("lock", refuse).unwrap();
    for name in ["b", "c", "d"] {
        let refused = soon("an answer", client.try_lock(name).recorded()).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    until("no lock is left", async || {
        server.psql("lock", LOCKS).unwrap() == "0"
    })
    .await;
    server
        .psql("lock", "DROP TRIGGER refuse ON fencelock_bound")
        .unwrap();
    let (one, two) = (take(&client, "b").await, take(&client, "c").await);
    one.release().await.unwrap();
    two.release().await.unwrap();
}

/// The first attempt takes the shared lock, and has no answer. The second attempt takes it once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_that_is_tried_again_leaves_no_lock() {
    let server = Postgres::start().unwrap();
    let response = Duration::from_secs(1);
    let url = format!("{}?strategy=advisory&response-timeout=1s", server.url());
    let client = open(&url).await.unwrap();
    let second = open(&format!("{}?strategy=advisory", server.url())).await;
    let second = second.unwrap();
    let guard = take(&client, "a").await;
    let tokens = raw(&server, "tokens").await;
    let stall = "BEGIN; ALTER SEQUENCE fencelock_tokens CACHE 1";
    tokens.batch_execute(stall).await.unwrap();
    let downgraded = tokio::spawn(guard.downgrade());
    until("it waits for a token", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%' AND wait_event = 'relation'";
        server.psql("lock", waits).unwrap() == "1"
    })
    .await;
    // The second attempt is not seen at the server before the first one is over.
    tokio::time::sleep(response * 3 / 2).await;
    tokens.batch_execute("ROLLBACK").await.unwrap();
    let shared = soon("the downgrade", downgraded).await.unwrap().unwrap();
    shared.release().await.unwrap();
    soon("the lock", second.try_lock("a"))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(server.psql("lock", LOCKS).unwrap(), "0");
}
