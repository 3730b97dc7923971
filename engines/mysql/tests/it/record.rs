//! The record of a database, of each strategy.

use fencelock_core::StoreUrl;
use fencelock_core::engine::{Record, RecordChange};

use super::*;

/// Locks of one strategy do not exclude those of another, so they are different stores, of different sets perhaps.
#[tokio::test(flavor = "multi_thread")]
async fn each_strategy_has_its_own() {
    let server = MariaDb::start().unwrap();
    let mut engines = Vec::new();
    for strategy in ["lease", "get-lock", "for-update"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let url = StoreUrl::parse(&url).unwrap();
        engines.push((strategy, engine::connect(url).await.unwrap()));
    }
    for (strategy, engine) in &engines {
        let none = engine.record("shop:", None).await.unwrap();
        assert_eq!(none, Record::default(), "{strategy}");
    }
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'fencelock_bound_record'";
    assert_eq!(
        number(&server, tables),
        0,
        "it is made with the first record"
    );
    for (strategy, engine) in &engines {
        let change = RecordChange::new(0, *strategy).unwrap();
        let written = engine.record("shop:", Some(&change)).await.unwrap();
        assert_eq!(written.text, *strategy);
    }
    for (strategy, engine) in &engines {
        let read = engine.record("shop:", None).await.unwrap();
        assert_eq!(read.text, *strategy);
    }
}

/// Nobody needs the table who is in no set. So a client that does not find it keeps its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_costs_no_connection() {
    let server = MariaDb::start().unwrap();
    let url = format!("{}?strategy=get-lock", server.url());
    let engine = engine::connect(StoreUrl::parse(&url).unwrap())
        .await
        .unwrap();
    let connections = || status(&server, "Connections");
    let read = async || engine.record("", None).await.unwrap();
    read().await;
    let before = connections();
    read().await;
    read().await;
    // The question itself is asked on another one each time.
    assert_eq!(connections() - before, 1);
}
