//! Series of `/metrics` that were found before. Finding a series in the recorder costs more than counting, and each request
//! counts in six.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::support::Mutex;
use foldhash::fast::RandomState;
use http::StatusCode;
use metrics::{Counter, Histogram};

/// How many labels a series has at most, of those kept here.
const MOST_LABELS: usize = 3;

/// The address and length of a static text. Two places with the same text are two keys of one series.
type Place = (usize, usize);

/// Series whose labels are known at compile time.
pub(crate) struct Series<T>(Mutex<HashMap<[Place; MOST_LABELS + 1], T, RandomState>>);

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Series<T> {
    /// Uses a series. `new` makes it the first time.
    pub(crate) fn with(
        &self,
        name: &'static str,
        labels: &[(&'static str, &'static str)],
        new: impl FnOnce() -> T,
        work: impl FnOnce(&T),
    ) {
        let place = |text: &'static str| (text.as_ptr() as usize, text.len());
        let mut key = [(0, 0); MOST_LABELS + 1];
        // The labels of one name have the same keys in the same order.
        let texts = std::iter::once(name).chain(labels.iter().map(|(_, value)| *value));
        for (at, text) in key.iter_mut().zip(texts) {
            *at = place(text);
        }
        let mut known = self.0.lock();
        work(known.entry(key).or_insert_with(new));
    }
}

/// The series of one route with one method and status.
struct Answers {
    method: &'static str,
    status: StatusCode,
    count: Counter,
    seconds: Histogram,
}

/// The series of the requests, by route.
#[derive(Default)]
pub(crate) struct Requests(Mutex<HashMap<String, Vec<Answers>, RandomState>>);

impl Requests {
    /// Counts an answer. `new` makes the series the first time.
    pub(crate) fn answered(
        &self,
        (route, method, status): (&str, &'static str, StatusCode),
        new: impl FnOnce() -> (Counter, Histogram),
        took: Duration,
    ) {
        let mut routes = self.0.lock();
        let is_it = |known: &&Answers| known.method == method && known.status == status;
        let found = routes.get(route).and_then(|all| all.iter().find(is_it));
        if let Some(found) = found {
            return found.note(took);
        }
        let (count, seconds) = new();
        let answers = Answers {
            method,
            status,
            count,
            seconds,
        };
        answers.note(took);
        routes.entry(route.to_owned()).or_default().push(answers);
    }
}

impl Answers {
    fn note(&self, took: Duration) {
        self.count.increment(1);
        self.seconds.record(took.as_secs_f64());
    }
}
