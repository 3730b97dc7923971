//! A set of a move before the move begins: what `prepare` refuses, what `doctor` finds, and how a store is given back.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_composite::{How, Migrate, Migration, Phase, Prepare, Stepped};
use fencelock_core::engine::{Cursor, Page, Record, RecordChange};
use fencelock_core::layers::Layer;
use fencelock_core::{Client, Engine, Error, LeaseKind, LockView, Memory, Promises};
use tokio::sync::watch;

use crate::moving::NoRecord;
use crate::two::{LONG_PACE, LONG_TTL, PACE, TIGHT, TTL, Two, token};

fn terms() -> Prepare {
    Prepare::default().pace(PACE).tight(TIGHT)
}

/// Another set on these stores.
fn bills(from: &Memory, to: &Memory) -> Migration {
    let store = |memory: &Memory| Arc::new(memory.another()) as Arc<dyn Engine>;
    let stores = Migrate::between(("from", store(from)), ("to", store(to)));
    stores.set("bills").migration().unwrap()
}

#[tokio::test]
async fn a_lock_delay_that_no_program_can_use_is_refused() {
    let two = Two::new();
    let longest = PACE * 2 / 3;
    for delay in [longest, longest * 2] {
        let wanted = terms().lock_delay(delay);
        let refused = two.migration().prepare(&wanted, "test").await.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
        assert!(refused.to_string().contains("pace"), "{refused}");
    }
    let delay = Duration::from_millis(100);
    let allowed = terms().pace(LONG_PACE).lock_delay(delay);
    two.migration().prepare(&allowed, "test").await.unwrap();
    let client = two.client().await;
    let request = client.lock("x").ttl(LONG_TTL / 2).lock_delay(delay);
    request.await.unwrap().release().await.unwrap();
    let more = client.lock("x").ttl(LONG_TTL / 4).lock_delay(delay * 2);
    let more = more.await;
    let more = more.map(drop).unwrap_err();
    assert!(matches!(more, Error::Unsupported { .. }), "{more:?}");
}

#[tokio::test]
async fn a_lock_delay_that_was_not_allowed_is_refused_with_the_way_to_it() {
    let two = Two::prepared().await;
    let client = two.client().await;
    let request = client.lock("x").ttl(TTL).lock_delay(TTL / 9);
    let refused = request.await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("prepare --lock-delay"), "{refused}");
    assert!(!refused.contains("connection"), "{refused}");
}

/// A store whose locks end with a connection.
#[derive(Debug)]
struct OnConnections {
    below: Memory,
    promises: Promises,
}

impl Layer for OnConnections {
    fn below(&self) -> &dyn Engine {
        &self.below
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }
}

impl fmt::Display for OnConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on-connections:")
    }
}

#[tokio::test]
async fn no_lock_moves_to_where_it_ends_with_a_connection() {
    let below = Memory::new();
    let promises = below.promises().clone().lease(LeaseKind::Connection);
    let to = Arc::new(OnConnections { below, promises });
    let stores = Migrate::between(
        ("from", Arc::new(Memory::new()) as Arc<dyn Engine>),
        ("to", to as Arc<dyn Engine>),
    );
    let set = stores.set("orders").migration().unwrap();
    let refused = set.prepare(&terms(), "test").await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    assert!(refused.to_string().contains("connection"), "{refused}");
}

/// A store that says how often its locks were listed.
#[derive(Debug)]
struct Listed {
    engine: Arc<dyn Engine>,
    listed: watch::Sender<u32>,
}

#[async_trait::async_trait]
impl Layer for Listed {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>, Error> {
        let page = self.engine.inspect().list(prefix, at, limit).await;
        self.listed.send_modify(|count| *count += 1);
        page
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}

/// The counts and the names come from one listing.
#[tokio::test]
async fn status_counts_and_names_the_same() {
    let two = Two::prepared().await;
    let forgotten = Client::new(Arc::new(two.old.another())).unwrap();
    let guard = forgotten.lock("x").await.unwrap();
    two.begin().await;
    let (listed, mut lists) = watch::channel(0);
    let engine = Arc::new(two.old.another());
    let old = Arc::new(Listed { engine, listed }) as Arc<dyn Engine>;
    let new = Arc::new(two.new.another()) as Arc<dyn Engine>;
    let stores = Migrate::between(("from", old), ("to", new)).set("orders");
    let status = stores.migration().unwrap();
    let ends = async {
        lists.wait_for(|count| *count > 0).await.unwrap();
        guard.release().await.unwrap();
    };
    let (status, ()) = tokio::join!(status.status(), ends);
    let status = status.unwrap();
    assert!(*lists.borrow() > 1, "it was seen once, but not again");
    assert_eq!((status.held, status.unpaired), (Some((0, 0, 0)), vec![]));
}

#[tokio::test]
async fn doctor_looks_at_the_new_store_before_the_move_begins() {
    let two = Two::prepared().await;
    let findings = |new: Arc<dyn Engine>| {
        let old = Arc::new(two.old.another()) as Arc<dyn Engine>;
        let stores = Migrate::between(("from", old), ("to", new)).set("orders");
        async {
            let engine = Arc::new(stores.breaker(false).open().await.unwrap());
            let found = Client::new(engine).unwrap().diagnose().await.unwrap();
            let found = found.into_iter().map(|finding| finding.what);
            found.collect::<Vec<_>>().join("; ")
        }
    };
    let text = findings(Arc::new(two.new.another())).await;
    let usual = |text: &str| !text.contains("record") && !text.contains("begin");
    assert!(usual(&text), "{text}");
    let text = findings(Arc::new(Memory::new())).await;
    assert!(text.contains("[to] it has no record"), "{text}");
    let cut = || {
        let engine = Arc::new(two.new.another());
        let cut = Arc::new(AtomicBool::new(true));
        Arc::new(NoRecord { engine, cut })
    };
    let text = findings(cut()).await;
    assert!(text.contains("cannot begin"), "{text}");
    two.begin().await;
    let text = findings(cut()).await;
    assert!(text.contains("locks that need this store"), "{text}");
}

#[tokio::test]
async fn abort_gives_back_the_new_store_of_a_set_never_begun() {
    let two = Two::prepared().await;
    let other = Memory::new();
    let next = bills(&two.new, &other);
    let kept = next.prepare(&terms().replace(true), "test").await;
    let kept = kept.unwrap_err();
    assert!(kept.to_string().contains("migrate abort"), "{kept}");
    let stands_alone = async || {
        let record = two.new.record("", None).await.unwrap();
        fencelock_composite::may_stand_alone(&record.text)
    };
    assert!(!stands_alone().await);
    two.abort().await;
    assert!(stands_alone().await);
    // Programs of the set go on, and the set can begin its move.
    token(&two.client().await, "x").await;
    let alone = Client::new(Arc::new(two.new.another())).unwrap();
    let guard = alone.lock("y").await.unwrap();
    let begun = two.migration().begin(&How::new("test")).await.unwrap();
    assert!(
        matches!(&begun, Stepped::NotYet(why) if why.contains('y')),
        "{begun:?}"
    );
    guard.release().await.unwrap();
    two.begin().await;
    assert!(!stands_alone().await);
    two.abort().await;
    assert!(
        !stands_alone().await,
        "a step back does not give the store back"
    );
    two.abort().await;
    let done = next.prepare(&terms().replace(true), "test").await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::Old));
    let again = two.migration().begin(&How::new("test")).await.unwrap_err();
    assert!(again.to_string().contains("bills"), "{again}");
    // Programs of the first set still start: its old store is all that they need.
    token(&two.client().await, "x").await;
}

/// Two preparations of different sets met: each of them reached one of two stores.
#[tokio::test]
async fn replace_ends_a_half_made_preparation() {
    let (one, other) = (Memory::new(), Memory::new());
    let two = Two {
        old: one.another(),
        new: Memory::new(),
    };
    two.migration().prepare(&terms(), "test").await.unwrap();
    let half = bills(&other, &Memory::new());
    half.prepare(&terms(), "test").await.unwrap();
    let two = Two {
        old: one,
        new: other,
    };
    let refused = two.migration().prepare(&terms(), "test").await;
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    let replace = terms().replace(true);
    let replaced = two.migration().prepare(&replace, "test").await.unwrap();
    assert_eq!(replaced, Stepped::Done(Phase::Old));
    two.begin().await;
    token(&two.client().await, "x").await;
}

/// A store that another set is prepared on just before its record is first changed.
#[derive(Debug)]
struct Overtaken {
    engine: Memory,
    by: Mutex<Option<Migration>>,
}

#[async_trait::async_trait]
impl Layer for Overtaken {
    fn below(&self) -> &dyn Engine {
        &self.engine
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record, Error> {
        let by = change.and_then(|_| self.by.lock().unwrap().take());
        if let Some(faster) = by {
            faster.prepare(&terms(), "other").await?;
        }
        self.engine.record(scope, change).await
    }
}

impl fmt::Display for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}

#[tokio::test]
async fn of_two_sets_that_are_prepared_at_once_the_slower_one_gives_its_stores_back() {
    let (from, to, third) = (Memory::new(), Memory::new(), Memory::new());
    let overtaken = |store: &Memory, by| {
        let engine = store.another();
        let by = Mutex::new(Some(by));
        Arc::new(Overtaken { engine, by }) as Arc<dyn Engine>
    };
    let plain = |store: &Memory| Arc::new(store.another()) as Arc<dyn Engine>;
    let orders = |from, to| {
        let stores = Migrate::between(("from", from), ("to", to));
        stores.set("orders").migration().unwrap()
    };
    let text = async |store: &Memory| store.record("", None).await.unwrap().text;
    // Another set gets the new store.
    let late = orders(plain(&from), overtaken(&to, bills(&third, &to)));
    let refused = late.prepare(&terms(), "test").await.unwrap_err();
    assert!(refused.to_string().contains("bills"), "{refused}");
    assert!(text(&to).await.contains("bills"));
    // The old store is as before: another set can be prepared on it.
    let next = bills(&from, &Memory::new());
    let done = next.prepare(&terms(), "test").await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::Old));
    // Another set gets the old store. The new one is not written.
    let (from, to) = (Memory::new(), Memory::new());
    let late = orders(overtaken(&from, bills(&from, &Memory::new())), plain(&to));
    let refused = late.prepare(&terms(), "test").await.unwrap_err();
    assert!(refused.to_string().contains("bills"), "{refused}");
    assert_eq!(text(&to).await, "");
}
