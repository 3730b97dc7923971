//! What all parts of an open set that moves share: its stores, the knowledge of the record, and its claims.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::{Claim, Event, StoreChange};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, ConfigPart, Error, LockName, Result};
use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, watch};

use crate::known::{Known, Route};
use crate::member::{Common, Member};
use crate::moving::entry::Entry;
use crate::moving::knowledge::{Knowledge, Now, place_of};
use crate::opened_events::Filter;
use crate::phase::Phase;

/// The longest pause after a read of the record that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The shortest pause between two reads.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct State {
    pub(crate) common: Arc<Common>,
    /// In the order of the members.
    pub(crate) ids: Vec<String>,
    pub(crate) members: Vec<Member>,
    pub(crate) knowledge: Knowledge,
    /// By member: a lock, so that only one read runs at a time.
    reading: Vec<AsyncMutex<()>>,
    entries: Mutex<HashMap<ClaimId, Arc<Entry>>>,
    /// The phase that the listener knows. Locked while it is told, so that the last word is true.
    told: Mutex<Option<Phase>>,
    closed: watch::Sender<bool>,
}

impl State {
    pub(crate) fn new(common: Arc<Common>, members: Vec<Member>) -> Arc<Self> {
        let count = members.len();
        let state = Arc::new(Self {
            common,
            ids: members.iter().map(|member| member.id.clone()).collect(),
            members,
            knowledge: Knowledge::new(count),
            reading: (0..count).map(|_| AsyncMutex::default()).collect(),
            entries: Mutex::default(),
            told: Mutex::default(),
            closed: watch::Sender::new(false),
        });
        let known = Arc::downgrade(&state);
        let matters = move |id: &str, event: &Event| {
            known.upgrade().is_none_or(|state| state.matters(id, event))
        };
        // This cannot fail: it is set only here.
        let _ = state.common.joining.filter.set(Filter(Box::new(matters)));
        state
    }

    pub(crate) fn now(&self) -> BootInstant {
        Clock::Boot.now()
    }

    /// What is known of the record.
    pub(crate) fn known(&self) -> Result<Now> {
        let why = "no store that answers has its record; `fencelock migrate status` shows which store has one";
        self.knowledge
            .now()
            .ok_or_else(|| Error::unavailable(self, "reading the record", why))
    }

    pub(crate) fn route(&self, known: &Known, name: &LockName) -> Result<Route> {
        let place = |id: &str| place_of(&self.ids, id, name);
        known
            .route(name, place)
            .map_err(|why| Error::config(self, ConfigPart::Record, why))
    }

    /// The knowledge, and the route of a name, fresh enough for a new grant: the record is read again if it is not. In the hush
    /// nothing is granted, so any knowledge is fresh enough.
    pub(crate) async fn fresh(&self, name: &LockName) -> Result<(Now, Route)> {
        let wanted = self.now();
        let carries = || -> Result<Option<(Now, Route)>> {
            let now = self.known()?;
            let route = self.route(&now.known, name)?;
            let carries = self.knowledge.carries_grant(&now, route, self.now());
            Ok(carries.then_some((now, route)))
        };
        if let Some(found) = carries()? {
            return Ok(found);
        }
        let route = self.route(&self.known()?.known, name)?;
        self.read_all(route.stores(), wanted).await?;
        if let Some(found) = carries()? {
            return Ok(found);
        }
        // The records that were read may name other stores, or be missing.
        let others = 0..self.members.len();
        let asked = self.read_all(others, self.now()).await;
        if let Some(found) = carries()? {
            return Ok(found);
        }
        asked?;
        if let Some(store) = route.counts
            && self.knowledge.has_no_record(store)
        {
            let why = "it is in charge, and has no record: it is another store than the set's, or has lost its data; \
                       `fencelock migrate status` shows which store has one";
            return Err(Error::config(&self.members[store], ConfigPart::Record, why));
        }
        let why = "the answers took too long, or no store that answers has the record";
        Err(Error::unavailable(self, "reading the record", why))
    }

    /// Tells the listener if this process has learned of another phase.
    fn tell_phase(&self) {
        let mut told = self.told.lock();
        let phase = self.knowledge.now().map(|now| now.known.phase);
        let before = std::mem::replace(&mut *told, phase);
        if let (Some(before), Some(phase)) = (before, phase)
            && before != phase
        {
            let change = StoreChange::Phase(phase.as_str());
            self.common.tell(&self.to_string(), change);
        }
    }

    async fn read_all(
        &self,
        stores: impl Iterator<Item = usize>,
        wanted: BootInstant,
    ) -> Result<()> {
        let reads = join_all(stores.map(|store| self.read_since(store, wanted))).await;
        reads.into_iter().collect()
    }

    /// Reads the record in a store, unless a read since `wanted` was answered.
    async fn read_since(&self, store: usize, wanted: BootInstant) -> Result<()> {
        let turn = self.reading[store].lock().await;
        if self.knowledge.answered(store) >= wanted {
            return Ok(());
        }
        let read = self.read_now(store).await;
        drop(turn);
        read
    }

    /// Reads the record in a store.
    pub(crate) async fn read(&self, store: usize) -> Result<()> {
        let _turn = self.reading[store].lock().await;
        self.read_now(store).await
    }

    async fn read_now(&self, store: usize) -> Result<()> {
        let member = &self.members[store];
        let engine = member.engine().await?;
        // Knowledge counts from before the request is sent.
        let asked = self.now();
        let record = engine.record("", None).await;
        let record = record.map_err(|error| member.named(error))?;
        #[cfg(fencelock_planted)]
        let asked = match fencelock_core::planted::is("knowledge-from-answer") {
            true => self.now(),
            false => asked,
        };
        #[cfg(fencelock_planted)]
        if record.text.is_empty() && fencelock_core::planted::is("missing-record-is-old") {
            self.knowledge.take_for_old();
            return Ok(());
        }
        let stored = match record.text.is_empty() {
            true => None,
            false => Some(member.read(&record.text)?),
        };
        self.knowledge.note(store, asked, stored.as_ref());
        self.tell_phase();
        Ok(())
    }

    pub(crate) fn entry(&self, id: &ClaimId) -> Option<Arc<Entry>> {
        self.entries.lock().get(id).cloned()
    }

    pub(crate) fn entry_of(&self, claim: &Claim) -> Arc<Entry> {
        let mut entries = self.entries.lock();
        let new = || Arc::new(Entry::new(claim.name.clone(), self.members.len()));
        Arc::clone(entries.entry(claim.id).or_insert_with(new))
    }

    pub(crate) fn remove(&self, id: &ClaimId) {
        self.entries.lock().remove(id);
    }

    /// Removes an entry if no store has anything of its claim and no other call uses it.
    pub(crate) async fn remove_if_done(&self, id: &ClaimId, entry: &Arc<Entry>) {
        if entry.is_asked().await {
            return;
        }
        let mut entries = self.entries.lock();
        let same = entries
            .get(id)
            .is_some_and(|known| Arc::ptr_eq(known, entry));
        // A call takes its reference under this lock: the two are that of the map and that of the caller.
        if same && Arc::strong_count(entry) == 2 {
            entries.remove(id);
        }
    }

    /// Whether an event of a store is an event of the set. A loss at a store that no hold needs is not.
    fn matters(&self, id: &str, event: &Event) -> bool {
        let (Event::Lost(claim) | Event::Ended(claim, _)) = event else {
            return true;
        };
        let (Some(entry), Ok(now)) = (self.entry(claim), self.known()) else {
            return true;
        };
        let store = self.ids.iter().position(|known| known == id);
        let route = self.route(&now.known, &entry.name);
        match (store, route) {
            (Some(store), Ok(route)) => route.needs(store),
            _ => true,
        }
    }

    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
        self.common.joining.close();
    }
}

/// Reads the record in a store again and again, until the set is closed or dropped.
pub(crate) async fn keep_reading(state: Weak<State>, store: usize) {
    loop {
        let Some(open) = state.upgrade() else { return };
        let mut closed = open.closed.subscribe();
        let mut version = open.knowledge.watch();
        version.mark_unchanged();
        let read = open.read(store).await;
        let known = open.knowledge.now().map(|now| now.known);
        let used = known
            .as_ref()
            .is_none_or(|known| known.is_used(&open.ids[store]));
        drop(open);
        let mut pause = known.map_or(AFTER_ERROR, |known| known.read_every());
        if let Err(error) = read {
            tracing::debug!(%error, "reading the record");
            // A store that no hold needs may be gone for good.
            pause = if used { pause.min(AFTER_ERROR) } else { pause };
        }
        tokio::select! {
            () = tokio::time::sleep(pause.max(LEAST_PAUSE)) => {}
            // Another store has a new version.
            _ = version.changed() => {}
            _ = closed.wait_for(|closed| *closed) => return,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.common.scheme, self.common.set)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({self}: {})", self.ids.join(", "))
    }
}
