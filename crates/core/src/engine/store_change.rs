//! What an engine reports of its stores.

use std::fmt;
use std::sync::Arc;

/// What changed at a store. [`Observer::store_changed`](crate::Observer::store_changed) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreChange {
    /// It is away: requests for locks fail at once until it answers again. Only a store with a
    /// [`Breaker`](crate::layers::Breaker) reports this.
    Away,
    /// It answers again.
    Back,
    /// The move of a set of stores is in this phase now, as far as this process knows.
    Phase(&'static str),
}

/// A function to which an engine reports what changes at its stores. It must not block. Cheap to clone.
#[derive(Clone)]
pub struct StoreListener(Arc<Report>);

type Report = dyn Fn(&str, StoreChange) + Send + Sync;

impl StoreListener {
    /// A listener that gets the label of the store, as from [`Engine::store_of`](super::Engine::store_of), and the change.
    pub fn new(report: impl Fn(&str, StoreChange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Reports a change of this store.
    pub fn tell(&self, store: &str, change: StoreChange) {
        (self.0)(store, change);
    }
}

impl fmt::Debug for StoreListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreListener")
    }
}
