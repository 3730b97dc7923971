//! What a program may observe: an observer of its own, metrics (with the feature `metrics`) and spans. Logs go through
//! `tracing`, too.
//!
//! The fields of spans and the labels of metrics must have few values. So they have the class that the program gives a
//! lock, and not its name.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Span, debug_span};

use super::metrics::{Metrics, Series};
use crate::engine::StoreChange;
use crate::types::{LockName, LossReason, Mode, Token};

/// The target of all spans, so that a filter can select them without the events, which contain lock names.
const SPANS: &str = "fencelock::spans";

/// An observer of a client's locks. Every method has an empty default; none may block. A panic in a method is logged and has no
/// other effect.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// #[derive(Debug)]
/// struct Alarm;
///
/// impl Observer for Alarm {
///     fn lost(&self, name: &LockName, _: Token, reason: LossReason) {
///         eprintln!("{name} was lost: {reason}");
///     }
/// }
///
/// let builder = Client::builder(Arc::new(Memory::new()));
/// let client = builder.observer(Arc::new(Alarm)).build()?;
/// # Ok(())
/// # }
/// ```
pub trait Observer: Debug + Send + Sync + 'static {
    /// A lock was granted after `waited`; `handed_on` if that happened within this process, without a round trip.
    fn granted(&self, name: &LockName, token: Token, waited: Duration, handed_on: bool) {
        let _ = (name, token, waited, handed_on);
    }

    /// A request ended without a grant. `reason` is the word of its error ([`Error::as_str`](crate::Error::as_str)), or
    /// `cancelled` if its future was dropped.
    fn failed(&self, name: &LockName, reason: &'static str) {
        let _ = (name, reason);
    }

    /// A lock was released.
    fn released(&self, name: &LockName, token: Token) {
        let _ = (name, token);
    }

    /// A grant was lost.
    fn lost(&self, name: &LockName, token: Token, reason: LossReason) {
        let _ = (name, token, reason);
    }

    /// A batch of renewals was answered.
    fn renewed(&self, kept: usize, lost: usize, unknown: usize) {
        let _ = (kept, lost, unknown);
    }

    /// A store is away or back, or the move of a set has reached another phase. `store` is the label of
    /// [`Client::store_of`](crate::Client::store_of), or names the set.
    ///
    /// ```
    /// use fencelock_core::{Observer, StoreChange};
    ///
    /// #[derive(Debug)]
    /// struct Pager;
    ///
    /// impl Observer for Pager {
    ///     fn store_changed(&self, store: &str, change: StoreChange) {
    ///         match change {
    ///             StoreChange::Away => eprintln!("{store} does not answer"),
    ///             StoreChange::Back => eprintln!("{store} answers again"),
    ///             _ => {}
    ///         }
    ///     }
    /// }
    /// ```
    fn store_changed(&self, store: &str, change: StoreChange) {
        let _ = (store, change);
    }
}

type Classify = dyn Fn(&LockName) -> Cow<'static, str> + Send + Sync;

/// A function of the program that gives the class of a lock name.
#[derive(Clone)]
pub(crate) struct NameClass(pub(crate) Arc<Classify>);

impl Debug for NameClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameClass")
    }
}

/// Notes in its span how something ended.
pub(crate) fn note_outcome(span: &Span, outcome: &'static str) {
    // Looking up the field costs time, even in a span that is not recorded.
    if !span.is_disabled() {
        span.record("outcome", outcome);
    }
}

/// Everything that observes a client.
#[derive(Debug)]
pub(crate) struct Observed {
    engine: &'static str,
    observer: Option<Arc<dyn Observer>>,
    name_class: Option<NameClass>,
    metrics: Metrics,
}

impl Observed {
    pub(crate) fn new(
        engine: &'static str,
        observer: Option<Arc<dyn Observer>>,
        name_class: Option<NameClass>,
    ) -> Self {
        Self {
            engine,
            observer,
            name_class,
            metrics: Metrics::new(engine),
        }
    }

    /// Whether the time that a request waited is reported anywhere.
    pub(crate) fn times_waits(&self) -> bool {
        cfg!(feature = "metrics") || self.observer.is_some()
    }

    /// Calls the observer. A panic in it must not end the task that renews or that reports losses.
    pub(crate) fn tell(&self, tell: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.observer else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| tell(&**observer))).is_err() {
            tracing::error!("an observer panicked");
        }
    }

    pub(crate) fn store_changed(&self, store: &str, change: StoreChange) {
        self.metrics.store_changed(store, change);
        self.tell(|observer| observer.store_changed(store, change));
    }

    /// The class of a name, if the program has classes. A panic counts as no class.
    fn class(&self, name: &LockName) -> Option<Cow<'static, str>> {
        let NameClass(class) = self.name_class.as_ref()?;
        let class = catch_unwind(AssertUnwindSafe(|| class(name)));
        if class.is_err() {
            tracing::error!("the function for name classes panicked");
        }
        class.ok()
    }

    pub(crate) fn series(&self, name: &LockName, mode: Mode) -> Series {
        match cfg!(feature = "metrics") {
            true => self.metrics.series(mode, self.class(name)),
            false => Series::default(),
        }
    }

    /// Sets the field that depends on the name.
    fn classed(&self, span: Span, name: &LockName) -> Span {
        if !span.is_disabled()
            && let Some(class) = self.class(name)
        {
            span.record("class", &*class);
        }
        span
    }

    /// The span from a request to its end.
    pub(crate) fn acquire_span(&self, name: &LockName, mode: Mode) -> Span {
        let (engine, mode) = (self.engine, mode.as_str());
        let span = debug_span!(target: SPANS, "fencelock.acquire", engine, mode, class = Empty, outcome = Empty);
        self.classed(span, name)
    }

    /// The span from a grant to its release or loss. It is a root, so that it keeps no span of its caller open. It follows from
    /// the current span.
    pub(crate) fn hold_span(&self, name: &LockName, mode: Mode) -> Span {
        let (engine, mode) = (self.engine, mode.as_str());
        let span = debug_span!(target: SPANS, parent: None, "fencelock.hold", engine, mode, class = Empty, outcome = Empty);
        if !span.is_disabled() {
            span.follows_from(Span::current());
        }
        self.classed(span, name)
    }

    pub(crate) fn release_span(&self, name: &LockName, mode: Mode) -> Span {
        let (engine, mode) = (self.engine, mode.as_str());
        let span = debug_span!(target: SPANS, "fencelock.release", engine, mode, class = Empty, outcome = Empty);
        self.classed(span, name)
    }

    pub(crate) fn renew_span(&self) -> Span {
        let engine = self.engine;
        debug_span!(target: SPANS, "fencelock.renew", engine, outcome = Empty)
    }
}
