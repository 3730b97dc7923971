//! The store's record: a text that is changed by compare-and-set, beside the locks.

use std::sync::Arc;

use fencelock::engine::{Engine, Record, RecordChange};
use fencelock::{Durability, Error};

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, until};

pub(super) const CASES: &[Case] = &[
    case!(one_of_many_changes_the_record).promised(|promises| promises.record),
    case!(a_record_outlives_the_server)
        .promised(|promises| promises.record && promises.durability == Durability::Durable)
        .server(),
];

/// Scopes, one of them with bytes that mean something to some store. A store with a record of the scope without a prefix
/// belongs to a set as it is.
const SCOPES: [&str; 2] = ["shop:", "shop%/ä'{x}:"];

async fn one_of_many_changes_the_record(ctx: Ctx) {
    let engines = [ctx.engine().await, ctx.engine().await, ctx.engine().await];
    for scope in SCOPES {
        assert_eq!(read(&engines[0], scope).await, Record::default());
        let mut now = Record::default();
        for round in 0..4 {
            let changed = race(&engines, scope, now.version, round).await;
            assert_ne!(changed.version, now.version, "a version comes once");
            for engine in &engines {
                assert_eq!(read(engine, scope).await, changed);
            }
            now = changed;
        }
        // From a version that was, and from nothing.
        for from in [now.version.wrapping_add(1), 0] {
            let late = change(&engines[1], scope, from, "late").await;
            assert_eq!(late, now);
        }
        let longest = "ä".repeat(2048);
        let long = change(&engines[2], scope, now.version, &longest).await;
        assert_eq!(long.text, longest);
    }
    let client = ctx.client().await;
    assert!(client.list("").await.unwrap().is_empty());
    let guard = client.lock(&ctx.name()).await.unwrap();
    guard.release().await.unwrap();
    ctx.await_nothing_left().await;
    for engine in engines {
        engine.close().await.unwrap();
    }
    let again = ctx.engine().await;
    for scope in SCOPES {
        assert_eq!(read(&again, scope).await.text, "ä".repeat(2048));
    }
    assert_eq!(read(&again, "").await, Record::default());
    change(&again, "", 0, "of a set").await;
    again.close().await.unwrap();
    refused_by_itself(&ctx).await;
}

async fn a_record_outlives_the_server(ctx: Ctx) {
    let engine = ctx.engine().await;
    let first = change(&engine, "", 0, "first").await;
    ctx.server().kill9();
    ctx.server().restart().unwrap();
    until("the record is read again", async || {
        engine
            .record("", None)
            .await
            .is_ok_and(|read| read == first)
    })
    .await;
    // Replicas may follow the server a little later.
    let second = RecordChange::new(first.version, "second").unwrap();
    until("the record is changed again", async || {
        let changed = engine.record("", Some(&second)).await;
        changed.is_ok_and(|changed| changed.text == "second")
    })
    .await;
    engine.close().await.unwrap();
}

/// Whoever opens a store of a set by its own URL must say that this is meant.
async fn refused_by_itself(ctx: &Ctx) {
    if ctx.promises().engine == "memory" {
        return;
    }
    let url = ctx.store().url();
    let refused = fencelock::open_engine(&url).await.unwrap_err();
    assert!(matches!(&refused, Error::Config { .. }), "{refused:?}");
    assert!(refused.to_string().contains("outside-set=yes"), "{refused}");
    let sign = if url.contains('?') { '&' } else { '?' };
    let meant = format!("{url}{sign}outside-set=yes");
    let engine = fencelock::open_engine(meant).await.unwrap();
    engine.close().await.unwrap();
    // To look at it does no harm.
    let client = fencelock::connect(url).inspect_only().await.unwrap();
    client.close().await.unwrap();
}

/// Each engine changes the record from this version, all at once. One wins, and all hear which.
async fn race(engines: &[Arc<dyn Engine>], scope: &str, from: u64, round: u32) -> Record {
    let texts: Vec<_> = (0..engines.len() * 4)
        .map(|number| format!("{round}: '{number}'"))
        .collect();
    let writers = texts.iter().enumerate().map(|(number, text)| {
        let engine = &engines[number % engines.len()];
        change(engine, scope, from, text)
    });
    let mut seen = futures_util::future::join_all(writers).await;
    seen.dedup();
    assert_eq!(seen.len(), 1, "one wins, and all hear of it: {seen:?}");
    let record = seen.remove(0);
    assert!(texts.contains(&record.text), "{record:?}");
    record
}

async fn change(engine: &Arc<dyn Engine>, scope: &str, from: u64, text: &str) -> Record {
    let change = RecordChange::new(from, text).unwrap();
    let changed = engine.record(scope, Some(&change));
    soon("changing the record", changed).await.unwrap()
}

async fn read(engine: &Arc<dyn Engine>, scope: &str) -> Record {
    let read = engine.record(scope, None);
    soon("reading the record", read).await.unwrap()
}
