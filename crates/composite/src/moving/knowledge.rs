//! What a process knows of the record, since when, and how long it may rely on that.
//!
//! Knowledge is a lease: it counts from before the request to read the record was sent. A process may be paused or cut off
//! during any number of changes. It no longer believes in its holds when a step relies on that.

use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, LockName};
use tokio::sync::watch;

use crate::known::{Known, Route};
use crate::stored::{Stored, is_outdated};

#[derive(Debug)]
pub(crate) struct Knowledge {
    state: Mutex<State>,
    /// The version, for those who wait for a change.
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// The record with the highest version, from any store. A process never goes back to a lower version.
    known: Option<Arc<Known>>,
    /// When the latest read of that version was sent, to any store.
    confirmed: BootInstant,
    /// By member: when the latest read with any answer was sent.
    answered: Vec<BootInstant>,
    /// By member: the version of the record in that answer; 0 if it had none.
    versions: Vec<u64>,
}

/// The knowledge at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    pub(crate) known: Arc<Known>,
    /// The knowledge counts from here.
    pub(crate) confirmed: BootInstant,
}

impl Now {
    /// Until when the knowledge carries a hold.
    pub(crate) fn ends(&self) -> BootInstant {
        self.confirmed + self.known.carries_hold()
    }
}

impl Knowledge {
    pub(crate) fn new(members: usize) -> Self {
        let long_ago = BootInstant::from_nanos(0);
        Self {
            state: Mutex::new(State {
                known: None,
                confirmed: long_ago,
                answered: vec![long_ago; members],
                versions: vec![0; members],
            }),
            version: watch::Sender::new(0),
        }
    }

    /// Notes an answer to a read that was sent at `asked`: a record, or that the store has none. No record, or an old one, only
    /// shows that the store answers.
    pub(crate) fn note(&self, member: usize, asked: BootInstant, stored: Option<&Stored>) {
        let mut state = self.state.lock();
        if asked >= state.answered[member] {
            state.answered[member] = asked;
            state.versions[member] = stored.map_or(0, |stored| stored.version);
        }
        let Some(known) = stored.and_then(Known::of) else {
            return;
        };
        let (highest, phase) = match &state.known {
            Some(known) => (known.version, Some(known.phase)),
            None => (0, None),
        };
        if known.version == highest {
            // No two records have one version. If they had, the second one would be ignored.
            if phase == Some(known.phase) {
                state.confirmed = state.confirmed.max(asked);
            }
        } else if known.version > highest {
            let version = known.version;
            tracing::info!(version, phase = %known.phase, "the record of the set has changed");
            state.known = Some(Arc::new(known));
            state.confirmed = asked;
            self.version.send_replace(version);
        }
    }

    /// A planted bug: a missing record counts as one of the first phase.
    #[cfg(fencelock_planted)]
    pub(crate) fn take_for_old(&self) {
        let mut state = self.state.lock();
        if let Some(known) = &state.known {
            state.known = Some(Arc::new(known.as_old()));
        }
    }

    /// The current knowledge; `None` before the first record was read.
    pub(crate) fn now(&self) -> Option<Now> {
        let state = self.state.lock();
        let confirmed = state.confirmed;
        let known = state.known.clone()?;
        Some(Now { known, confirmed })
    }

    /// Whether knowledge carries a new grant by this route at this moment: the version was confirmed recently, and each store
    /// of the name has answered recently. So a store that returns with old data cannot decide. The store that counts must have
    /// a record that is not much older. Otherwise it may be a different store, or have lost its locks and its tokens with its record.
    pub(crate) fn carries_grant(&self, now: &Now, route: Route, at: BootInstant) -> bool {
        let state = self.state.lock();
        if state.known.as_ref().map(|known| known.version) != Some(now.known.version) {
            return false;
        }
        let has_lost_it = |member: usize| {
            let version = state.versions[member];
            version == 0 || is_outdated(version, now.known.version)
        };
        if route.counts.is_some_and(has_lost_it) {
            return false;
        }
        let answered = route.stores().map(|store| state.answered[store]).min();
        let from = answered.map_or(state.confirmed, |answered| state.confirmed.min(answered));
        at < from + now.known.carries_grant(route)
    }

    /// Whether this store answered without a record.
    pub(crate) fn has_no_record(&self, member: usize) -> bool {
        let state = self.state.lock();
        state.answered[member] > BootInstant::from_nanos(0) && state.versions[member] == 0
    }

    /// When the latest read of this store with an answer was sent.
    pub(crate) fn answered(&self, member: usize) -> BootInstant {
        self.state.lock().answered[member]
    }

    /// The version, as it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Returns when the version is no longer `from`. Cancel safe.
    pub(crate) async fn changed(&self, from: u64) {
        let mut version = self.version.subscribe();
        // This cannot fail: the sender is `self.version`.
        let _ = version.wait_for(|version| *version != from).await;
    }
}

/// The place of an id among the members.
pub(crate) fn place_of(ids: &[String], id: &str, name: &LockName) -> Result<usize, String> {
    let place = ids.iter().position(|known| known == id);
    place.ok_or_else(|| {
        format!("its record says that lock {name} lies on the store {id}, which this program does not name; open the set with all stores of its record")
    })
}
