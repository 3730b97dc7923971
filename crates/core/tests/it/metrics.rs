//! The metrics: a recorder keeps what the client reports, and the test reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fencelock_core::layers::{Breaker, Fault, Trouble};
use fencelock_core::{Client, Evict, Memory};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, set_default_local_recorder,
};
use tokio::time::sleep;

use crate::{World, ms, settle};

type Description = (Option<Unit>, String);

/// The reports, by `name{label=value,...}`.
#[derive(Clone, Debug, Default)]
struct Reports {
    values: Arc<Mutex<BTreeMap<String, Vec<f64>>>>,
    described: Arc<Mutex<BTreeMap<String, Description>>>,
}

/// One series.
struct Series(Reports, String);

impl Series {
    fn add(&self, by: f64) {
        let mut values = self.0.values.lock().unwrap();
        let value = values.entry(self.1.clone()).or_insert(vec![0.0]);
        value[0] += by;
    }
}

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        self.add(by as f64);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Series {
    fn increment(&self, by: f64) {
        self.add(by);
    }

    fn decrement(&self, by: f64) {
        self.add(-by);
    }

    fn set(&self, to: f64) {
        let mut values = self.0.values.lock().unwrap();
        values.insert(self.1.clone(), vec![to]);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        let mut values = self.0.values.lock().unwrap();
        values.entry(self.1.clone()).or_default().push(value);
    }
}

impl Reports {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::new(Series(self.clone(), name))
    }

    fn describe(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        let mut described = self.described.lock().unwrap();
        described.insert(key.as_str().to_owned(), (unit, text.to_string()));
    }

    /// A counter's or gauge's value, or the one value in a histogram.
    fn get(&self, series: &str) -> f64 {
        let values = self.values.lock().unwrap();
        values.get(series).map_or(0.0, |values| values[0])
    }

    fn names(&self) -> BTreeSet<String> {
        let values = self.values.lock().unwrap();
        let name = |series: &String| series.split('{').next().unwrap().to_owned();
        values.keys().map(name).collect()
    }
}

impl Recorder for Reports {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

const EXCLUSIVE: &str = "engine=memory,mode=exclusive";

#[tokio::test(start_paused = true)]
async fn waits_holds_grants_and_hand_offs() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let client = World::new().client();
    let of = |name: &str| reports.get(&format!("fencelock_{name}{{{EXCLUSIVE}}}"));
    let granted = |handed_on| {
        reports.get(&format!(
            "fencelock_grants_total{{{EXCLUSIVE},handed_on={handed_on}}}"
        ))
    };
    let first = client.lock("a").await.unwrap();
    assert_eq!(
        (of("holds"), of("waiters"), granted(false)),
        (1.0, 0.0, 1.0)
    );
    let tasks = [(), ()].map(|()| tokio::spawn(client.lock("a").into_future()));
    settle().await;
    assert_eq!(of("waiters"), 2.0);
    sleep(ms(2000)).await;
    first.release().await.unwrap();
    for task in tasks {
        let guard = task.await.unwrap().unwrap();
        assert_eq!(of("holds"), 1.0);
        guard.release().await.unwrap();
    }
    assert_eq!((of("holds"), of("waiters")), (0.0, 0.0));
    assert_eq!((granted(false), granted(true)), (2.0, 1.0));
    let waits =
        reports.values.lock().unwrap()[&format!("fencelock_wait_seconds{{{EXCLUSIVE}}}")].clone();
    assert_eq!(waits.len(), 3);
    assert!(
        waits[0] < 0.1 && waits[1] >= 2.0 && waits[2] < 2.1,
        "{waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_by_reason() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let (client, faults) = World::new().faulty();
    let held = client.lock("a").await.unwrap();
    assert!(client.try_lock("a").await.is_err());
    assert!(client.lock("a").timeout(ms(10)).await.is_err());
    drop(tokio::time::timeout(ms(10), client.lock("a")).await);
    faults.by_chance(|_| Trouble::LoseRequest);
    assert!(client.try_lock("b").await.is_err());
    for reason in ["held", "timed_out", "cancelled", "unavailable"] {
        let series = format!("fencelock_failures_total{{{EXCLUSIVE},reason={reason}}}");
        assert_eq!(reports.get(&series), 1.0, "{reason}");
    }
    assert_eq!(
        reports.get(&format!("fencelock_waiters{{{EXCLUSIVE}}}")),
        0.0
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let (fault, faults) = Fault::new(Arc::new(Memory::new()));
    let client = Client::new(Arc::new(Breaker::new(Arc::new(fault)))).unwrap();
    let away = || reports.get("fencelock_store_away{engine=memory,store=memory}");
    for (trouble, expected) in [(Trouble::LoseRequest, 1.0), (Trouble::None, 0.0)] {
        faults.by_chance(move |_| trouble);
        for _ in 0..10 {
            drop(client.try_lock("a").await);
            sleep(ms(500)).await;
        }
        assert_eq!(away(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn losses_renewals_and_a_downgrade() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let (client, faults) = World::new().faulty();
    let guard = client.lock("a").ttl(ms(3000)).await.unwrap();
    sleep(ms(1500)).await;
    let renewed = |outcome: &str| {
        reports.get(&format!(
            "fencelock_renewals_total{{{EXCLUSIVE},outcome={outcome}}}"
        ))
    };
    assert_eq!(renewed("kept"), 1.0);
    guard.refresh(ms(3000)).await.unwrap();
    assert_eq!(renewed("kept"), 2.0);
    let shared = guard.downgrade().await.unwrap();
    let holds = |mode: &str| reports.get(&format!("fencelock_holds{{engine=memory,mode={mode}}}"));
    assert_eq!((holds("exclusive"), holds("shared")), (0.0, 1.0));
    faults.by_chance(|_| Trouble::LoseRequest);
    shared.lost().await;
    assert_eq!((holds("exclusive"), holds("shared")), (0.0, 0.0));
    let of_shared = "engine=memory,mode=shared";
    assert!(
        reports.get(&format!(
            "fencelock_renewals_total{{{of_shared},outcome=unknown}}"
        )) > 0.0
    );
    let lost = format!("fencelock_losses_total{{{of_shared},reason=expired}}");
    assert_eq!(reports.get(&lost), 1.0);
    faults.calm();
    drop(shared);
    settle().await;
    let other = client.lock("a").await.unwrap();
    assert!(
        client
            .evict("a", other.token(), Evict::Release)
            .await
            .unwrap()
    );
    other.lost().await;
    let lost = format!("fencelock_losses_total{{{EXCLUSIVE},reason=taken_away}}");
    assert_eq!((reports.get(&lost), holds("exclusive")), (1.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn store_calls_by_call_and_outcome() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let (client, faults) = World::new().faulty();
    faults.next([Trouble::LoseRequest, Trouble::DelayReply(ms(500))]);
    let guard = client.lock("a").ttl(ms(3000)).await.unwrap();
    let waiting = client.lock("a").timeout(ms(1500)).into_future().await;
    assert!(waiting.is_err());
    client.look("a").await.unwrap();
    client.list("").await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    let calls = |call: &str, outcome: &str| {
        reports.get(&format!(
            "fencelock_store_calls_total{{engine=memory,call={call},outcome={outcome}}}"
        ))
    };
    assert_eq!(calls("place", "unavailable"), 1.0);
    assert!(calls("place", "ok") >= 2.0);
    assert_eq!(calls("wait", "cancelled"), 1.0);
    assert!(calls("renew", "ok") >= 1.0);
    assert_eq!((calls("look", "ok"), calls("list", "ok")), (1.0, 1.0));
    assert_eq!(calls("withdraw", "ok"), 2.0);
    let values = reports.values.lock().unwrap();
    let seconds = |call: &str| {
        values.get(&format!(
            "fencelock_store_call_seconds{{engine=memory,call={call}}}"
        ))
    };
    assert_eq!(seconds("withdraw").map(Vec::len), Some(2));
    // This call waits for an event.
    assert_eq!(seconds("wait"), None);
}

/// Names become labels only through the program's own function.
#[tokio::test(start_paused = true)]
async fn classes_are_labels_and_names_are_not() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let client = Client::builder(Arc::new(Memory::new()))
        .name_class(|name| match name.as_str().starts_with("order:") {
            true => "order",
            false => "other",
        })
        .build()
        .unwrap();
    for name in ["order:4711", "order:4712", "secret"] {
        drop(client.lock(name).await.unwrap());
    }
    settle().await;
    let granted = |class: &str| {
        reports.get(&format!(
            "fencelock_grants_total{{{EXCLUSIVE},class={class},handed_on=false}}"
        ))
    };
    assert_eq!((granted("order"), granted("other")), (2.0, 1.0));
    let values = reports.values.lock().unwrap();
    assert!(
        !values
            .keys()
            .any(|series| series.contains("47") || series.contains("secret"))
    );
}

/// The metrics of docs/metrics.md, those described and those reported are the same.
#[tokio::test(start_paused = true)]
async fn every_metric_is_described_and_documented() {
    let reports = Reports::default();
    let _installed = set_default_local_recorder(&reports);
    let (fault, faults) = Fault::new(Arc::new(Memory::new()));
    let client = Client::new(Arc::new(Breaker::new(Arc::new(fault)))).unwrap();
    let guard = client.lock("a").ttl(ms(3000)).await.unwrap();
    assert!(client.try_lock("a").await.is_err());
    faults.by_chance(|_| Trouble::LoseRequest);
    guard.lost().await;
    for _ in 0..5 {
        client.try_lock("a").await.unwrap_err();
    }
    let described = reports.described.lock().unwrap();
    let names: BTreeSet<_> = described.keys().cloned().collect();
    assert_eq!(reports.names(), names);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (name, (unit, text)) in &*described {
        let unit = unit.unwrap().as_str();
        let row = page
            .lines()
            .find(|line| line.contains(&format!("| `{name}`")));
        assert!(row.is_some_and(|row| row.contains(unit)), "{name} ({unit})");
        assert!(!text.is_empty());
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` |"));
    let listed = rows.filter(|(name, _)| name.starts_with("fencelock_") && !name.contains(' '));
    assert_eq!(listed.count(), names.len());
}
