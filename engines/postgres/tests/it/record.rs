//! The record of a database, of each strategy.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_core::{Engine, StoreUrl};

use super::*;

async fn opened(server: &Postgres, strategy: &str) -> std::sync::Arc<dyn Engine> {
    let url = format!("{}?strategy={strategy}", server.url());
    engine::connect(StoreUrl::parse(&url).unwrap())
        .await
        .unwrap()
}

async fn write(engine: &dyn Engine, text: &str) -> Record {
    let change = RecordChange::new(0, text).unwrap();
    let written = engine.record("shop:", Some(&change)).await.unwrap();
    assert_eq!(written.text, text);
    written
}

/// Locks of one strategy do not exclude those of another, so they are different stores, of different sets perhaps.
#[tokio::test(flavor = "multi_thread")]
async fn each_strategy_has_its_own() {
    let server = Postgres::start().unwrap();
    let [leases, advisory] = [
        opened(&server, "lease").await,
        opened(&server, "advisory").await,
    ];
    // As a version left it that had no such table.
    server
        .psql("lock", "DROP TABLE fencelock_bound_record")
        .unwrap();
    let none = advisory.record("shop:", None).await.unwrap();
    assert_eq!(none, Record::default());
    let first = write(&*leases, "of leases").await;
    write(&*advisory, "of connections").await;
    assert_eq!(leases.record("shop:", None).await.unwrap(), first);
    let other = advisory.record("shop:", None).await.unwrap();
    assert_eq!(other.text, "of connections");
}

/// What else these connections commit may be lost with the server.
#[tokio::test(flavor = "multi_thread")]
async fn that_of_connections_outlives_the_server() {
    let mut server = Postgres::builder()
        .config("wal_writer_delay", "10s")
        .start()
        .unwrap();
    let advisory = opened(&server, "advisory").await;
    let written = write(&*advisory, "first").await;
    server.kill9();
    server.restart().unwrap();
    let mut read = None;
    until("the record is read again", async || {
        read = advisory.record("shop:", None).await.ok();
        read.is_some()
    })
    .await;
    assert_eq!(read, Some(written.clone()));
    let change = RecordChange::new(written.version, "second").unwrap();
    let changed = advisory.record("shop:", Some(&change)).await.unwrap();
    server.kill9();
    server.restart().unwrap();
    until("the record is read again", async || {
        read = advisory.record("shop:", None).await.ok();
        read.is_some()
    })
    .await;
    assert_eq!(read, Some(changed));
}
