//! How many claims hold and wait, for each pattern of lock names that is a label of metrics. The numbers are read from the
//! store. A replica knows neither the claims at other replicas nor those of clients that use the store directly.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::{LockView, Page};
use fencelock_core::{Engine, LockName, Result};
use metrics::Label;

use crate::metrics::{HOLDING, Metrics, WAITING};

/// How often the store is read.
const PERIOD: Duration = Duration::from_secs(15);

/// How many locks are read with one call.
const PAGE: usize = 500;

/// How many pages of a pattern are read at most.
const MOST_PAGES: usize = 20;

/// Reads the store every [`PERIOD`], until the engine or the metrics are dropped.
pub(crate) fn start(engine: &Arc<dyn Engine>, metrics: &Arc<Metrics>) {
    if !metrics.patterns().is_empty() {
        let (engine, metrics) = (Arc::downgrade(engine), Arc::downgrade(metrics));
        tokio::spawn(repeat(engine, metrics));
    }
}

async fn repeat(engine: Weak<dyn Engine>, metrics: Weak<Metrics>) {
    while let (Some(engine), Some(metrics)) = (engine.upgrade(), metrics.upgrade()) {
        for pattern in metrics.patterns() {
            match count(&engine, &metrics, pattern).await {
                Ok(counted) => {
                    let label = || vec![Label::new("lock", Arc::clone(pattern))];
                    metrics.set(HOLDING, label(), counted.holding as f64);
                    metrics.set(WAITING, label(), counted.waiting as f64);
                }
                // The counters of calls show the failure, too.
                Err(error) => tracing::debug!(%pattern, %error, "the store was not read"),
            }
        }
        drop((engine, metrics));
        tokio::time::sleep(PERIOD).await;
    }
}

/// What was counted for one pattern.
#[derive(Default)]
struct Counted {
    holding: usize,
    waiting: usize,
}

async fn count(engine: &Arc<dyn Engine>, metrics: &Metrics, pattern: &Arc<str>) -> Result<Counted> {
    let mut counted = Counted::default();
    let Some(prefix) = pattern.strip_suffix('*') else {
        let view = engine.inspect().look(&LockName::new(pattern)?).await?;
        counted.add(&view);
        return Ok(counted);
    };
    let mut at = None;
    for _ in 0..MOST_PAGES {
        let Page { items, next, .. } = engine.inspect().list(prefix, at, PAGE).await?;
        // A name counts once, for the first pattern that fits.
        let ours = items
            .iter()
            .filter(|view| metrics.tells(&view.name, pattern));
        ours.for_each(|view| counted.add(view));
        at = next;
        if at.is_none() {
            return Ok(counted);
        }
    }
    tracing::debug!(%pattern, "there are more locks than are counted");
    Ok(counted)
}

impl Counted {
    fn add(&mut self, view: &LockView) {
        self.holding += view.holders.len();
        self.waiting += view.waiters.len();
    }
}
