//! The reports about one hold: a span for each grant, and its part in the gauge of holds.

use crate::support::Mutex;
use std::mem;

use tracing::Span;

use super::metrics::Series;
use super::observer::note_outcome;

/// The default reports nothing.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    series: Series,
    /// Whether the gauge counts it.
    counted: bool,
    /// The span of the present grant.
    span: Option<Span>,
}

impl Seen {
    /// Notes that the store granted it.
    pub(crate) fn begin(&self, series: Series) {
        series.holds();
        let mut parts = self.0.lock();
        parts.series = series;
        parts.counted = true;
    }

    /// Notes that a guard has it, after a grant or a hand-off.
    pub(crate) fn open(&self, span: Span) {
        if !span.is_disabled() {
            self.0.lock().span = Some(span);
        }
    }

    /// Notes that the guard no longer has it.
    pub(crate) fn close(&self, outcome: &'static str) {
        let span = self.0.lock().span.take();
        if let Some(span) = span {
            note_outcome(&span, outcome);
        }
    }

    /// Notes that no guard has it any more.
    pub(crate) fn end(&self) {
        let mut parts = self.0.lock();
        if mem::take(&mut parts.counted) {
            parts.series.holds_no_more();
        }
    }

    pub(crate) fn series(&self) -> Series {
        if cfg!(not(feature = "metrics")) {
            return Series::default();
        }
        self.0.lock().series.clone()
    }
}
