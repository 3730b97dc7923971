//! What this client knows of a claim that waits, or of which a request had no answer. Other claims have no entry.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock};
use tokio::sync::watch;

#[derive(Debug)]
struct Entry {
    /// The service said that it waits.
    waits: bool,
    /// How many polls are open, and where the last one is.
    polls: watch::Sender<usize>,
    polled_at: usize,
    /// When the last request was sent that may take effect later, if there is one.
    doubted: Option<BootInstant>,
}

/// All entries.
#[derive(Debug)]
pub(crate) struct Entries {
    all: Mutex<HashMap<ClaimId, Entry>>,
    /// For how long a request may take effect after it was sent.
    late: Duration,
}

/// An open poll.
#[derive(Debug)]
pub(crate) struct Poll {
    entries: Arc<Entries>,
    claim: ClaimId,
    pub(crate) replica: usize,
}

impl Entries {
    pub(crate) fn new(late: Duration) -> Self {
        let all = Mutex::default();
        Self { all, late }
    }

    fn with<T>(&self, claim: &ClaimId, work: impl FnOnce(&mut Entry) -> T) -> T {
        let mut all = self.all.lock();
        work(all.entry(*claim).or_insert_with(|| Entry {
            waits: false,
            polls: watch::Sender::new(0),
            polled_at: 0,
            doubted: None,
        }))
    }

    /// The service said that the claim waits.
    pub(crate) fn waits(&self, claim: &ClaimId) {
        self.with(claim, |entry| entry.waits = true);
    }

    /// Whether it said so last.
    pub(crate) fn is_waiting(&self, claim: &ClaimId) -> bool {
        self.all.lock().get(claim).is_some_and(|entry| entry.waits)
    }

    /// The claim does not wait here any more.
    pub(crate) fn waits_no_more(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim) {
            entry.waits = false;
            if entry.doubted.is_none() && *entry.polls.borrow() == 0 {
                all.remove(claim);
            }
        }
    }

    /// A request that was sent then had no answer.
    pub(crate) fn doubt(&self, claim: &ClaimId, sent: BootInstant) {
        self.with(claim, |entry| {
            entry.doubted = Some(entry.doubted.map_or(sent, |before| before.max(sent)));
        });
        // Of claims that were never withdrawn for good.
        let (now, late) = (Clock::Boot.now(), self.late);
        self.all.lock().retain(|_, entry| {
            let over = entry.doubted.is_some_and(|sent| now > sent + late * 2);
            !over || entry.waits || *entry.polls.borrow() > 0
        });
    }

    /// A poll begins, at this replica first. From now on a release waits for its end.
    pub(crate) fn poll(self: &Arc<Self>, claim: &ClaimId, replica: usize) -> Poll {
        self.with(claim, |entry| {
            entry.polls.send_modify(|open| *open += 1);
            entry.polled_at = replica;
        });
        Poll {
            entries: Arc::clone(self),
            claim: *claim,
            replica,
        }
    }

    /// The claim's open polls, if there are any, and where the last one is. A release must be sent after their end.
    pub(crate) fn open_polls(&self, claim: &ClaimId) -> Option<(watch::Receiver<usize>, usize)> {
        let all = self.all.lock();
        let entry = all.get(claim)?;
        let is_open = *entry.polls.borrow() > 0;
        is_open.then(|| (entry.polls.subscribe(), entry.polled_at))
    }

    /// Whether a release is final that was sent then, when no poll was open, and is answered now. If so, the entry is over.
    /// Until `late` after its last request without an answer a claim may come to hold again.
    pub(crate) fn settle(&self, claim: &ClaimId, sent: BootInstant) -> bool {
        let mut all = self.all.lock();
        let Some(entry) = all.get(claim) else {
            return true;
        };
        let doubted = entry
            .doubted
            .is_some_and(|doubted| sent < doubted + self.late);
        if !doubted {
            all.remove(claim);
        }
        !doubted
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        if let Some(entry) = self.entries.all.lock().get(&self.claim) {
            entry
                .polls
                .send_modify(|open| *open = open.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::ClaimIds;

    use super::*;

    const LATE: Duration = Duration::from_secs(4);

    #[test]
    fn a_release_is_final_when_nothing_can_come_after_it() {
        let (entries, id) = (Entries::new(LATE), ClaimIds::new().unwrap().next());
        let now = Clock::Boot.now();
        assert!(entries.settle(&id, now));
        entries.doubt(&id, now);
        for (after, settled) in [(LATE / 2, false), (LATE, true), (LATE, true)] {
            assert_eq!(entries.settle(&id, now + after), settled);
        }
    }

    #[test]
    fn polls_are_open_until_their_end() {
        let (entries, id) = (
            Arc::new(Entries::new(LATE)),
            ClaimIds::new().unwrap().next(),
        );
        entries.waits(&id);
        assert!(entries.open_polls(&id).is_none());
        let (one, two) = (entries.poll(&id, 3), entries.poll(&id, 4));
        drop(one);
        let (open, at) = entries.open_polls(&id).unwrap();
        assert_eq!((*open.borrow(), at), (1, 4));
        drop(two);
        assert_eq!(*open.borrow(), 0);
        assert!(entries.open_polls(&id).is_none() && entries.is_waiting(&id));
        assert!(entries.settle(&id, Clock::Boot.now()));
        assert!(!entries.is_waiting(&id));
    }

    #[test]
    fn nothing_is_remembered_for_long() {
        let (entries, ids) = (Entries::new(LATE), ClaimIds::new().unwrap());
        let (old, new) = (ids.next(), ids.next());
        entries.doubt(&old, BootInstant::from_nanos(0));
        entries.waits(&new);
        entries.waits_no_more(&new);
        entries.doubt(&new, Clock::Boot.now());
        assert_eq!(entries.all.lock().len(), 1);
    }
}
