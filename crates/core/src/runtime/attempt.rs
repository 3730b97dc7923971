//! The reports about one request, from its beginning to its end.

use tracing::Span;

use super::metrics::Series;
use super::observer::note_outcome;
use super::state::State;
use crate::types::{Error, LockName, Mode, Result};

/// A request under way.
pub(crate) struct Attempt {
    pub(crate) name: LockName,
    pub(crate) span: Span,
    series: Series,
    ended: bool,
}

impl Attempt {
    pub(crate) fn begin(state: &State, name: &LockName, mode: Mode) -> Self {
        let observed = &state.observed;
        let series = observed.series(name, mode);
        series.waits();
        Self {
            name: name.clone(),
            span: observed.acquire_span(name, mode),
            series,
            ended: false,
        }
    }

    /// Reports its result, once.
    pub(crate) fn end<T>(&mut self, state: &State, result: &Result<T>) {
        self.report(state, result.as_ref().err().map(Error::as_str));
    }

    /// Reports that it was dropped, unless it has ended.
    pub(crate) fn cancel(&mut self, state: &State) {
        self.report(state, Some("cancelled"));
    }

    fn report(&mut self, state: &State, failure: Option<&'static str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        note_outcome(&self.span, failure.unwrap_or("granted"));
        self.series.waits_no_more(failure);
        if let Some(reason) = failure {
            state
                .observed
                .tell(|observer| observer.failed(&self.name, reason));
        }
    }
}
