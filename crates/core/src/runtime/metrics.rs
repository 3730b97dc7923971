//! What a client reports through the `metrics` facade. Without the feature `metrics`, `no_metrics.rs` replaces this file.
//!
//! Keys are made once per series. The recorder is looked up at every report, so that it may be installed at any time.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use metrics::{
    Key, Label, Level, Metadata, Unit, describe_counter, describe_gauge, describe_histogram,
    with_recorder,
};

use crate::engine::StoreChange;
use crate::types::{LossReason, Mode};

static METADATA: Metadata<'static> = Metadata::new("fencelock", Level::INFO, Some(module_path!()));

const WAIT: &str = "fencelock_wait_seconds";
const HOLDS: &str = "fencelock_holds";
const WAITERS: &str = "fencelock_waiters";
const GRANTS: &str = "fencelock_grants_total";
const FAILURES: &str = "fencelock_failures_total";
const LOSSES: &str = "fencelock_losses_total";
const RENEWALS: &str = "fencelock_renewals_total";
const AWAY: &str = "fencelock_store_away";

fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(WAIT, seconds, "From a request to its grant");
    describe_gauge!(HOLDS, Unit::Count, "Grants that this process holds");
    describe_gauge!(WAITERS, Unit::Count, "Requests that wait for their grant");
    describe_counter!(GRANTS, Unit::Count, "Locks that were granted");
    describe_counter!(
        FAILURES,
        Unit::Count,
        "Requests that ended without a grant, by reason"
    );
    describe_counter!(
        LOSSES,
        Unit::Count,
        "Holds that ended before their release, by reason"
    );
    describe_counter!(
        RENEWALS,
        Unit::Count,
        "Renewals of single holds, by outcome"
    );
    describe_gauge!(
        AWAY,
        Unit::Count,
        "1 while requests for locks on this store fail at once, since it does not answer"
    );
}

/// The series of one client.
#[derive(Debug)]
pub(crate) struct Metrics {
    engine: &'static str,
    without_class: [Series; 3],
    by_class: RwLock<HashMap<(usize, Cow<'static, str>), Series, RandomState>>,
}

impl Metrics {
    pub(crate) fn new(engine: &'static str) -> Self {
        describe();
        Self {
            engine,
            without_class: ["exclusive", "shared", "permit"]
                .map(|mode| Series::new(engine, mode, None)),
            by_class: RwLock::default(),
        }
    }

    pub(crate) fn store_changed(&self, store: &str, change: StoreChange) {
        let away = match change {
            StoreChange::Away => 1.0,
            StoreChange::Back => 0.0,
            StoreChange::Phase(_) => return,
        };
        let labels = vec![
            Label::from_static_parts("engine", self.engine),
            Label::new("store", store.to_owned()),
        ];
        let key = Key::from_parts(AWAY, labels);
        with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(away));
    }

    /// The series of a mode and a name class.
    pub(crate) fn series(&self, mode: Mode, class: Option<Cow<'static, str>>) -> Series {
        let index = match mode {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permit { .. } => 2,
        };
        let Some(class) = class else {
            return self.without_class[index].clone();
        };
        let key = (index, class);
        let known = self.by_class.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.get(&key) {
            return series.clone();
        }
        drop(known);
        let mut all = self
            .by_class
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let made = || Series::new(self.engine, mode.as_str(), Some(key.1.clone()));
        all.entry(key.clone()).or_insert_with(made).clone()
    }
}

/// The metrics of one engine, mode and name class. The default reports nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Option<Arc<Keys>>);

#[derive(Debug)]
struct Keys {
    labels: Vec<Label>,
    wait: Key,
    holds: Key,
    waiters: Key,
    granted: Key,
    handed_on: Key,
}

impl Keys {
    fn with(&self, name: &'static str, label: &'static str, value: &'static str) -> Key {
        with(&self.labels, name, label, value)
    }
}

fn with(labels: &[Label], name: &'static str, label: &'static str, value: &'static str) -> Key {
    let mut labels = labels.to_vec();
    labels.push(Label::from_static_parts(label, value));
    Key::from_parts(name, labels)
}

fn count(key: &Key) {
    with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
}

fn change(key: &Key, by: f64) {
    with_recorder(|recorder| recorder.register_gauge(key, &METADATA).increment(by));
}

impl Series {
    fn new(engine: &'static str, mode: &'static str, class: Option<Cow<'static, str>>) -> Self {
        let mut labels = vec![
            Label::from_static_parts("engine", engine),
            Label::from_static_parts("mode", mode),
        ];
        labels.extend(class.map(|class| Label::new("class", class)));
        let key = |name: &'static str| Key::from_parts(name, labels.clone());
        Self(Some(Arc::new(Keys {
            wait: key(WAIT),
            holds: key(HOLDS),
            waiters: key(WAITERS),
            granted: with(&labels, GRANTS, "handed_on", "false"),
            handed_on: with(&labels, GRANTS, "handed_on", "true"),
            labels,
        })))
    }

    pub(crate) fn waits(&self) {
        if let Some(keys) = &self.0 {
            change(&keys.waiters, 1.0);
        }
    }

    /// Reports the end of a request, with a reason if it was not granted.
    pub(crate) fn waits_no_more(&self, failure: Option<&'static str>) {
        let Some(keys) = &self.0 else {
            return;
        };
        change(&keys.waiters, -1.0);
        if let Some(reason) = failure {
            count(&keys.with(FAILURES, "reason", reason));
        }
    }

    /// Reports a grant, with the wait if there was one.
    pub(crate) fn granted(&self, waited: Option<Duration>, handed_on: bool) {
        let Some(keys) = &self.0 else {
            return;
        };
        count(match handed_on {
            true => &keys.handed_on,
            false => &keys.granted,
        });
        if let Some(waited) = waited {
            with_recorder(|recorder| {
                let wait = recorder.register_histogram(&keys.wait, &METADATA);
                wait.record(waited.as_secs_f64());
            });
        }
    }

    pub(crate) fn holds(&self) {
        if let Some(keys) = &self.0 {
            change(&keys.holds, 1.0);
        }
    }

    pub(crate) fn holds_no_more(&self) {
        if let Some(keys) = &self.0 {
            change(&keys.holds, -1.0);
        }
    }

    pub(crate) fn lost(&self, reason: LossReason) {
        if let Some(keys) = &self.0 {
            count(&keys.with(LOSSES, "reason", reason.as_str()));
        }
    }

    /// Reports a renewal, or an attempt.
    pub(crate) fn renewed(&self, outcome: &'static str) {
        if let Some(keys) = &self.0 {
            count(&keys.with(RENEWALS, "outcome", outcome));
        }
    }
}
