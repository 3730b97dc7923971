//! The spans of `tracing`: their names and fields, and that none contains the name of a lock.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fencelock_core::layers::{Fault, Trouble};
use fencelock_core::{Client, Clock, Engine, Error, Evict, Memory};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Metadata, Subscriber};

use crate::{World, ms, settle};

#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    handles: usize,
    entered: usize,
    is_root: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// Keeps all spans of fencelock.
#[derive(Clone, Default)]
struct Spans {
    next: Arc<AtomicU64>,
    all: Arc<Mutex<BTreeMap<u64, Seen>>>,
}

impl Spans {
    /// Keeps the spans of this thread from now on. If another test is the first one to use a span, `tracing` may miss a
    /// subscriber that is installed at that moment. So each span is tried until it is seen.
    async fn install() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let installed = set_default(spans.clone());
        let client = Client::new(Arc::new(Memory::new())).unwrap();
        loop {
            let guard = client.lock("tried").await.unwrap();
            guard.refresh(ms(1000)).await.unwrap();
            guard.release().await.unwrap();
            settle().await;
            let all = ["acquire", "hold", "renew", "release"];
            let seen = |name| !spans.outcomes(&format!("fencelock.{name}")).is_empty();
            if all.into_iter().all(seen) {
                break;
            }
            tracing::callsite::rebuild_interest_cache();
        }
        drop(client);
        settle().await;
        spans.all.lock().unwrap().clear();
        (spans, installed)
    }

    fn with(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(self.all.lock().unwrap().get_mut(&id.into_u64()).unwrap());
    }

    /// The ended spans of a name, and their outcomes.
    fn outcomes(&self, name: &str) -> Vec<String> {
        let all = self.all.lock().unwrap();
        let ended = all.values().filter(|s| s.name == name && s.handles == 0);
        ended.map(|s| s.fields["outcome"].clone()).collect()
    }

    fn open(&self) -> Vec<Seen> {
        let all = self.all.lock().unwrap();
        all.values().filter(|s| s.handles > 0).cloned().collect()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "fencelock::spans"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::SeqCst) + 1;
        let mut seen = Seen {
            name: attributes.metadata().name(),
            handles: 1,
            is_root: attributes.is_root(),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        self.all.lock().unwrap().insert(id, seen);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.with(id, |seen| values.record(seen));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        panic!("an event with the target of spans: {event:?}");
    }

    fn enter(&self, id: &Id) {
        self.with(id, |seen| {
            seen.entered += 1;
            assert_eq!(seen.entered, 1, "{seen:?} is entered already");
        });
    }

    fn exit(&self, id: &Id) {
        self.with(id, |seen| seen.entered -= 1);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.with(id, |seen| seen.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.with(&id, |seen| seen.handles -= 1);
        false
    }
}

fn classed(engine: impl Engine) -> Client {
    let builder = Client::builder(Arc::new(engine));
    let class = builder.name_class(|name| {
        let (class, _) = name.as_str().split_once(':').unwrap_or_default();
        class.to_owned()
    });
    class.build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_three_spans_with_few_valued_fields() {
    let (spans, _installed) = Spans::install().await;
    let client = classed(Memory::new());
    let guard = client.lock("order:4711").await.unwrap();
    assert_eq!(spans.outcomes("fencelock.acquire"), ["granted"]);
    let open = spans.open();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].name, "fencelock.hold");
    assert!(open[0].is_root, "it keeps the span of its caller open");
    guard.release().await.unwrap();
    assert_eq!(spans.outcomes("fencelock.hold"), ["released"]);
    assert_eq!(spans.outcomes("fencelock.release"), ["released"]);
    assert!(spans.open().is_empty());
    for seen in spans.all.lock().unwrap().values() {
        assert_eq!(seen.entered, 0);
        let fields: Vec<_> = seen.fields.iter().collect();
        let of = |field| seen.fields[field].as_str();
        assert_eq!(fields.len(), 4, "{seen:?}");
        assert_eq!(
            [of("engine"), of("mode"), of("class")],
            ["memory", "exclusive", "order"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_function_there_is_no_class() {
    let (spans, _installed) = Spans::install().await;
    let client = Client::new(Arc::new(Memory::new())).unwrap();
    client.lock("a").await.unwrap().release().await.unwrap();
    let all = spans.all.lock().unwrap();
    assert_eq!(all.len(), 3);
    assert!(all.values().all(|seen| !seen.fields.contains_key("class")));
}

#[tokio::test(start_paused = true)]
async fn failed_requests_have_the_reason_in_their_span() {
    let (spans, _installed) = Spans::install().await;
    let client = classed(Memory::new());
    let _held = client.lock("a").await.unwrap();
    assert!(client.try_lock("a").await.is_err());
    assert!(client.lock("a").timeout(ms(100)).await.is_err());
    drop(tokio::time::timeout(ms(100), client.lock("a")).await);
    settle().await;
    let outcomes = spans.outcomes("fencelock.acquire");
    assert_eq!(outcomes, ["granted", "held", "timed_out", "cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_a_hand_off_and_a_downgrade_end_the_span_of_a_hold() {
    let (spans, _installed) = Spans::install().await;
    let world = World::new();
    let client = world.client();
    // The first request comes alone, so only the second one has tokens to hand on.
    let first = client.lock("a").await.unwrap();
    let tasks = [(), ()].map(|()| tokio::spawn(client.lock("a").into_future()));
    settle().await;
    drop(first);
    let [second, third] = tasks;
    let second = second.await.unwrap().unwrap();
    second.release().await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert_eq!(spans.outcomes("fencelock.release")[1], "handed_on");
    let shared = third.downgrade().await.unwrap();
    let evicted = client.evict("a", shared.token(), Evict::Release).await;
    assert!(evicted.unwrap());
    shared.lost().await;
    let ended = spans.outcomes("fencelock.hold");
    assert_eq!(ended, ["released", "released", "downgraded", "taken_away"]);
    assert!(spans.open().is_empty());
    drop(shared);
}

#[tokio::test(start_paused = true)]
async fn renewals_have_spans_and_no_span_has_a_name() {
    let (spans, _installed) = Spans::install().await;
    let clock = Clock::Tokio(tokio::time::Instant::now());
    let (fault, faults) = Fault::new(Arc::new(Memory::with_clock(clock)));
    let client = classed(fault);
    let guard = client.lock("secret:name").ttl(ms(3000)).await.unwrap();
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(spans.outcomes("fencelock.renew"), ["kept"]);
    faults.by_chance(|_| Trouble::LoseRequest);
    guard.lost().await;
    assert!(
        spans
            .outcomes("fencelock.renew")
            .contains(&"unknown".to_owned())
    );
    assert!(matches!(
        guard.release().await,
        Err(Error::Unavailable { .. })
    ));
    assert_eq!(spans.outcomes("fencelock.hold"), ["expired"]);
    assert_eq!(spans.outcomes("fencelock.release"), ["unavailable"]);
    for seen in spans.all.lock().unwrap().values() {
        assert!(!format!("{seen:?}").contains("name\""), "{seen:?}");
        assert!(!seen.fields.values().any(|v| v.contains(":name")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_function_for_classes_is_no_class() {
    let (spans, _installed) = Spans::install().await;
    let builder = Client::builder(Arc::new(Memory::new()));
    let class = |_: &fencelock_core::LockName| -> &'static str { panic!("a bug of the program") };
    let client = builder.name_class(class).build().unwrap();
    drop(client.lock("a").await.unwrap());
    settle().await;
    assert_eq!(spans.outcomes("fencelock.hold"), ["released"]);
}
