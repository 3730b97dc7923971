//! What this client knows of a claim that waits, or of which a request had no answer. Other claims have no entry.

use std::collections::HashMap;
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
    polled_at: Option<usize>,
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

/// What must be over before a release of a claim is final.
#[derive(Debug)]
pub(crate) enum Unsettled {
    /// Polls are open.
    Polls(watch::Receiver<usize>),
    /// A request may still take effect.
    Doubt,
}

/// An open poll.
pub(crate) struct Poll<'a> {
    entries: &'a Entries,
    claim: ClaimId,
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
            polled_at: None,
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

    /// A poll begins.
    pub(crate) fn poll(&self, claim: &ClaimId) -> Poll<'_> {
        self.with(claim, |entry| entry.polls.send_modify(|open| *open += 1));
        Poll {
            entries: self,
            claim: *claim,
        }
    }

    /// Where the claim's last poll is or was.
    pub(crate) fn polled_at(&self, claim: &ClaimId) -> Option<usize> {
        self.all.lock().get(claim)?.polled_at
    }

    /// What is unsettled about a release that was sent then and is answered now. If nothing is, the entry is over.
    pub(crate) fn settle(&self, claim: &ClaimId, sent: BootInstant) -> Option<Unsettled> {
        let mut all = self.all.lock();
        let entry = all.get(claim)?;
        if entry
            .doubted
            .is_some_and(|doubted| sent < doubted + self.late)
        {
            return Some(Unsettled::Doubt);
        }
        if *entry.polls.borrow() > 0 {
            return Some(Unsettled::Polls(entry.polls.subscribe()));
        }
        all.remove(claim);
        None
    }
}

impl Poll<'_> {
    /// The poll is sent to this replica.
    pub(crate) fn is_at(&self, replica: usize) {
        self.entries
            .with(&self.claim, |entry| entry.polled_at = Some(replica));
    }
}

impl Drop for Poll<'_> {
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
        assert!(entries.settle(&id, now).is_none());
        entries.doubt(&id, now);
        for (after, settled) in [(LATE / 2, false), (LATE, true), (LATE, true)] {
            assert_eq!(entries.settle(&id, now + after).is_none(), settled);
        }
    }

    #[test]
    fn a_release_is_not_final_while_a_poll_is_open() {
        let (entries, id) = (Entries::new(LATE), ClaimIds::new().unwrap().next());
        entries.waits(&id);
        let poll = entries.poll(&id);
        poll.is_at(3);
        assert_eq!(entries.polled_at(&id), Some(3));
        let now = Clock::Boot.now();
        assert!(matches!(
            entries.settle(&id, now),
            Some(Unsettled::Polls(_))
        ));
        drop(poll);
        assert!(entries.is_waiting(&id));
        assert!(entries.settle(&id, now).is_none());
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
