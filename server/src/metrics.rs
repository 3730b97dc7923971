//! The metrics of `/metrics`, in the text format of Prometheus. Every service has a recorder of its own. Labels are few: a lock
//! name appears only as a pattern of the configuration, and a route as it is written in the router.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{LockName, Mode};
use fencelock_wire::Kind;
use http::{Method, StatusCode};
use metrics::{Counter, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::hour::Hour;
use crate::series::{Requests, Series};

static METADATA: Metadata<'static> =
    Metadata::new("fencelock_server", Level::INFO, Some(module_path!()));

/// The upper ends of the buckets of every histogram, in seconds.
const BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// The label of every lock whose name fits no pattern.
const OTHER: &str = "other";

const REQUESTS: &str = "fencelock_http_requests_total";
const REQUEST_SECONDS: &str = "fencelock_http_request_seconds";
const GRANTS: &str = "fencelock_served_grants_total";
const REFUSALS: &str = "fencelock_http_refusals_total";
const RENEWALS: &str = "fencelock_served_renewals_total";
const RELEASES: &str = "fencelock_served_releases_total";
const LOSSES: &str = "fencelock_served_losses_total";
const EVICTIONS: &str = "fencelock_served_evictions_total";
const PAUSES: &str = "fencelock_pauses_total";
const LAG: &str = "fencelock_event_loop_lag_seconds";
const WAIT_SECONDS: &str = "fencelock_served_wait_seconds";
const HOLD_SECONDS: &str = "fencelock_served_hold_seconds";
pub(crate) const HOLDING: &str = "fencelock_store_holding";
pub(crate) const WAITING: &str = "fencelock_store_waiting";
const CALLS: &str = "fencelock_store_calls_total";
const CALL_SECONDS: &str = "fencelock_store_call_seconds";
pub(crate) const POLLS: &str = "fencelock_open_polls";
pub(crate) const STREAMS: &str = "fencelock_event_streams";
pub(crate) const BOUND: &str = "fencelock_bound_claims";
pub(crate) const DRAINING: &str = "fencelock_draining";
pub(crate) const AUDIT_DROPPED: &str = "fencelock_audit_lines_dropped_total";
pub(crate) const BUILD: &str = "fencelock_build_info";

/// The numbers of one service.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    counters: Series<Counter>,
    histograms: Series<Histogram>,
    requests: Requests,
    /// The patterns of lock names that may be labels: a name, or a prefix with `*`.
    names: Vec<Arc<str>>,
    /// For the dashboard.
    pub(crate) hour: Hour,
}

impl Metrics {
    pub(crate) fn new(names: &[String]) -> Arc<Self> {
        let builder = PrometheusBuilder::new();
        // Empty buckets are the only possible error.
        let builder = builder.set_buckets(&BUCKETS);
        let recorder = builder
            .unwrap_or_else(|_| PrometheusBuilder::new())
            .build_recorder();
        let metrics = Self {
            handle: recorder.handle(),
            recorder,
            counters: Series::default(),
            histograms: Series::default(),
            requests: Requests::default(),
            names: names.iter().map(|name| Arc::from(name.as_str())).collect(),
            hour: Hour::new(),
        };
        metrics.describe();
        Arc::new(metrics)
    }

    fn describe(&self) {
        let counters = [
            (REQUESTS, "Requests, by route, method and status"),
            (GRANTS, "Claims that came to hold, at once or after a wait"),
            (
                REFUSALS,
                "Requests that were answered with a problem, by its kind",
            ),
            (RENEWALS, "Renewals of single holds, by outcome"),
            (RELEASES, "Releases, by what they found"),
            (
                LOSSES,
                "Holds that ended before their release, as far as this replica saw it",
            ),
            (
                EVICTIONS,
                "Requests to take a lock from its holder, or to ask that holder for it",
            ),
            (
                PAUSES,
                "Times that this process stood still for longer than half a claim window",
            ),
            (CALLS, "Calls of the store, by call and outcome"),
            (AUDIT_DROPPED, "Lines that the audit log has lost"),
        ];
        for (name, what) in counters {
            let what = what.into();
            self.recorder
                .describe_counter(name.into(), Some(Unit::Count), what);
        }
        let gauges = [
            (
                POLLS,
                "Requests that wait for a lock or for a change of one",
            ),
            (STREAMS, "Open streams of events"),
            (BOUND, "Claims that belong to this replica, by state"),
            (
                HOLDING,
                "Claims that hold at any replica, as the store was read last",
            ),
            (
                WAITING,
                "Claims that wait at any replica, as the store was read last",
            ),
            (DRAINING, "1 once this replica refuses new claims"),
            (BUILD, "Always 1; the labels say what runs"),
        ];
        for (name, what) in gauges {
            let what = what.into();
            self.recorder
                .describe_gauge(name.into(), Some(Unit::Count), what);
        }
        let histograms = [
            (
                REQUEST_SECONDS,
                "How long a request took until its answer began, with its wait for a lock unless a first line told the place",
            ),
            (CALL_SECONDS, "How long a call of the store took"),
            (
                WAIT_SECONDS,
                "How long granted claims had waited here; 0 if at once",
            ),
            (
                HOLD_SECONDS,
                "How long a hold that was granted and released here lasted",
            ),
            (LAG, "How late the event loop was, each 100 ms"),
        ];
        for (name, what) in histograms {
            let what = what.into();
            self.recorder
                .describe_histogram(name.into(), Some(Unit::Seconds), what);
        }
    }

    /// The pattern that a name fits.
    fn pattern(&self, name: &LockName) -> Option<&Arc<str>> {
        let fits = |pattern: &&Arc<str>| match pattern.strip_suffix('*') {
            Some(prefix) => name.as_str().starts_with(prefix),
            None => name.as_str() == &***pattern,
        };
        self.names.iter().find(fits)
    }

    /// The label of a lock whose name fits a pattern.
    fn label(&self, name: &LockName) -> Option<Label> {
        let pattern = self.pattern(name)?;
        Some(Label::new("lock", Arc::clone(pattern)))
    }

    /// Increments a counter.
    fn count(&self, name: &'static str, labels: &[(&'static str, &'static str)]) {
        let new = || self.counter(name, all_static(labels));
        self.counters
            .with(name, labels, new, |counter| counter.increment(1));
    }

    fn time(&self, name: &'static str, labels: &[(&'static str, &'static str)], took: Duration) {
        let new = || self.histogram(name, all_static(labels));
        let record = |histogram: &Histogram| histogram.record(took.as_secs_f64());
        self.histograms.with(name, labels, new, record);
    }

    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        let key = Key::from_parts(name, labels);
        self.recorder.register_counter(&key, &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: Vec<Label>) -> Histogram {
        let key = Key::from_parts(name, labels);
        self.recorder.register_histogram(&key, &METADATA)
    }

    pub(crate) fn set(&self, name: &'static str, labels: Vec<Label>, value: f64) {
        let key = Key::from_parts(name, labels);
        self.recorder.register_gauge(&key, &METADATA).set(value);
    }

    /// Counts and times an answer to this route.
    pub(crate) fn request(
        &self,
        route: Option<&str>,
        method: &Method,
        status: StatusCode,
        took: Duration,
    ) {
        let (route, method) = (route.unwrap_or(OTHER), method_word(method));
        let new = || {
            let route = Label::new("route", route.to_owned());
            let timed = vec![route, text("method", method)];
            let status = Label::new("status", status.as_str().to_owned());
            let counted = [timed.clone(), vec![status]].concat();
            (
                self.counter(REQUESTS, counted),
                self.histogram(REQUEST_SECONDS, timed),
            )
        };
        self.requests.answered((route, method, status), new, took);
    }

    pub(crate) fn refused(&self, kind: Kind) {
        self.count(REFUSALS, &[("reason", kind.as_str())]);
        if kind == Kind::Held {
            self.hour.note(|minute| minute.refused += 1);
        }
    }

    /// Counts a grant: without a wait, or after a wait of this long.
    pub(crate) fn granted(&self, name: &LockName, mode: Mode, wait: Option<Duration>) {
        let mode = match mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            _ => "permit",
        };
        let how = match wait {
            Some(_) => "waited",
            None => "at_once",
        };
        let waited = wait.unwrap_or_default();
        match self.label(name) {
            None => {
                self.time(WAIT_SECONDS, &[("lock", OTHER)], waited);
                self.count(GRANTS, &[("lock", OTHER), ("mode", mode), ("how", how)]);
            }
            Some(lock) => {
                self.histogram(WAIT_SECONDS, vec![lock.clone()])
                    .record(waited.as_secs_f64());
                self.counter(GRANTS, vec![lock, text("mode", mode), text("how", how)])
                    .increment(1);
            }
        }
        self.hour.note(|minute| match wait {
            Some(_) => minute.waited += 1,
            None => minute.at_once += 1,
        });
    }

    /// Counts a release, after a hold of this long.
    pub(crate) fn held(&self, name: &LockName, time: Duration) {
        match self.label(name) {
            None => self.time(HOLD_SECONDS, &[("lock", OTHER)], time),
            Some(lock) => self
                .histogram(HOLD_SECONDS, vec![lock])
                .record(time.as_secs_f64()),
        }
    }

    /// The patterns of lock names that are labels.
    pub(crate) fn patterns(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Whether this pattern is the label of a name.
    pub(crate) fn tells(&self, name: &LockName, pattern: &Arc<str>) -> bool {
        self.pattern(name) == Some(pattern)
    }

    pub(crate) fn renewed(&self, outcome: &'static str) {
        self.count(RENEWALS, &[("outcome", outcome)]);
    }

    pub(crate) fn released(&self, outcome: &'static str) {
        self.count(RELEASES, &[("outcome", outcome)]);
    }

    pub(crate) fn lost(&self, reason: &'static str) {
        self.count(LOSSES, &[("reason", reason)]);
        self.hour.note(|minute| minute.lost += 1);
    }

    pub(crate) fn evicted(&self, how: &'static str, outcome: &'static str) {
        self.count(EVICTIONS, &[("how", how), ("outcome", outcome)]);
    }

    pub(crate) fn paused(&self) {
        self.count(PAUSES, &[]);
    }

    pub(crate) fn lag(&self, lag: Duration) {
        self.time(LAG, &[], lag);
    }

    pub(crate) fn store_call(
        &self,
        engine: &'static str,
        call: &'static str,
        outcome: &'static str,
        took: Option<Duration>,
    ) {
        let labels = [("engine", engine), ("call", call), ("outcome", outcome)];
        if let Some(took) = took {
            self.time(CALL_SECONDS, &labels[..2], took);
        }
        self.count(CALLS, &labels);
    }

    /// Sets a counter that another part of the service keeps.
    pub(crate) fn counted(&self, name: &'static str, count: u64) {
        let key = Key::from_name(name);
        self.recorder
            .register_counter(&key, &METADATA)
            .absolute(count);
    }

    /// All metrics, as text.
    pub(crate) fn text(&self) -> String {
        self.handle.render()
    }

    /// Sorts the measured times into buckets, so that they do not pile up while nobody scrapes.
    pub(crate) fn tidy(&self) {
        self.handle.run_upkeep();
    }
}

fn all_static(labels: &[(&'static str, &'static str)]) -> Vec<Label> {
    labels.iter().map(|(key, value)| text(key, value)).collect()
}

pub(crate) fn text(key: &'static str, value: &'static str) -> Label {
    Label::from_static_parts(key, value)
}

/// Clients can send any word as a method, and labels must be few.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => OTHER,
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
