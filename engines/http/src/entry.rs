//! What this client knows of a claim that waits, that has a request without an answer, or whose lease was shortened. Other claims
//! have no entry, except where claims belong to a replica: there each has one until it is withdrawn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock};
use tokio::sync::watch;

use crate::home::Home;
use crate::reply::Reply;

#[derive(Debug, Default)]
struct Entry {
    /// The service said that it waits.
    waits: bool,
    /// How many polls are open, and where the last one is.
    polls: watch::Sender<usize>,
    polled_at: usize,
    /// A poll whose first line told the claim's place, while nobody reads its second one.
    told: Option<Reply>,
    /// When the last request was sent that may take effect later, if there is one.
    doubted: Option<BootInstant>,
    /// The shortest lease that a renewal has set. It may arrive once more, so no later one is believed for longer.
    shortest: Option<Duration>,
    /// Where it lives, if claims belong to a replica.
    home: Option<Arc<Home>>,
    holds: bool,
    /// It is over there, and is not asked for again.
    ended: bool,
    /// How many requests in a row its replica could not serve.
    failures: u32,
    /// Its release had no answer, and is not sent any more after that.
    left_until: Option<BootInstant>,
}

impl Entry {
    fn is_in_use(&self) -> bool {
        self.waits || self.told.is_some() || *self.polls.borrow() > 0
    }

    /// Whether there is more to know of it than that it waits.
    fn may_hold(&self) -> bool {
        self.holds || self.ended || self.doubted.is_some() || self.shortest.is_some()
    }

    /// Whether it was left behind: nobody will withdraw it.
    fn is_over(&self, now: BootInstant, late: Duration) -> bool {
        match self.home.is_some() || self.shortest.is_some() {
            true => self.left_until.is_some_and(|until| now > until),
            false => self.doubted.is_some_and(|sent| now > sent + late * 2),
        }
    }
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
        work(all.entry(*claim).or_default())
    }

    /// A claim is about to be asked for at this replica, and belongs to it from now on.
    pub(crate) fn lives(&self, claim: &ClaimId, home: &Arc<Home>) {
        self.with(claim, |entry| entry.home = Some(Arc::clone(home)));
    }

    /// The replica was not asked for it, or refused it: it has none.
    pub(crate) fn lives_nowhere(&self, claim: &ClaimId) {
        self.all.lock().remove(claim);
    }

    /// The replica refused a request for it. If there was no other, the replica has nothing of it.
    pub(crate) fn was_refused(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get(claim)
            && !(entry.is_in_use() || entry.may_hold())
        {
            all.remove(claim);
        }
    }

    /// The replica that a claim belongs to.
    pub(crate) fn home(&self, claim: &ClaimId) -> Option<Arc<Home>> {
        self.all.lock().get(claim)?.home.clone()
    }

    /// A renewal of the claim is about to be sent that sets its lease.
    pub(crate) fn shortens(&self, claim: &ClaimId, lease: Duration) {
        self.with(claim, |entry| {
            let before = entry.shortest.unwrap_or(lease);
            entry.shortest = Some(before.min(lease));
        });
    }

    /// How much of a lease of the claim is sure.
    pub(crate) fn sure_of(&self, claim: &ClaimId, lease: Duration) -> Duration {
        let all = self.all.lock();
        let shortest = all.get(claim).and_then(|entry| entry.shortest);
        shortest.map_or(lease, |shortest| shortest.min(lease))
    }

    /// The claim holds.
    pub(crate) fn holds(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim).filter(|entry| entry.home.is_some()) {
            (entry.waits, entry.holds, entry.failures) = (false, true, 0);
            return;
        }
        drop(all);
        self.waits_no_more(claim);
    }

    /// The claim is over at its replica.
    pub(crate) fn ends(&self, claim: &ClaimId) {
        self.with(claim, |entry| (entry.waits, entry.ended) = (false, true));
    }

    pub(crate) fn has_ended(&self, claim: &ClaimId) -> bool {
        self.all.lock().get(claim).is_some_and(|entry| entry.ended)
    }

    /// The replica of a claim could not serve a request for it. Which one that is, and how often in a row that was so;
    /// nothing if it holds, or belongs to none.
    pub(crate) fn failed(&self, claim: &ClaimId) -> Option<(Arc<Home>, u32)> {
        let mut all = self.all.lock();
        let entry = all.get_mut(claim).filter(|entry| !entry.holds)?;
        entry.failures += 1;
        Some((Arc::clone(entry.home.as_ref()?), entry.failures))
    }

    /// The release of a claim had no answer. It may be sent again until then.
    pub(crate) fn leaves(&self, claim: &ClaimId, until: BootInstant) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim) {
            (entry.waits, entry.left_until) = (false, Some(until));
        }
        let (now, late) = (Clock::Boot.now(), self.late);
        all.retain(|_, entry| !entry.is_over(now, late) || entry.is_in_use());
    }

    /// The service said that the claim waits.
    pub(crate) fn waits(&self, claim: &ClaimId) {
        self.with(claim, |entry| {
            // The answer to a poll may come after the end.
            (entry.waits, entry.failures) = (!entry.ended, 0);
        });
    }

    /// Whether it said so last.
    pub(crate) fn is_waiting(&self, claim: &ClaimId) -> bool {
        self.all.lock().get(claim).is_some_and(|entry| entry.waits)
    }

    /// The claim does not wait here any more.
    pub(crate) fn waits_no_more(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim) {
            (entry.waits, entry.told) = (false, None);
            if !entry.may_hold() && *entry.polls.borrow() == 0 {
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
        let mut all = self.all.lock();
        all.retain(|_, entry| !entry.is_over(now, late) || entry.is_in_use());
    }

    /// What comes of a poll whose place was told is not read now. Returns it if nobody may want it any more.
    pub(crate) fn keep_told(&self, claim: &ClaimId, told: Reply) -> Option<Reply> {
        let mut all = self.all.lock();
        match all.get_mut(claim).filter(|entry| entry.waits) {
            Some(entry) => entry.told.replace(told),
            None => Some(told),
        }
    }

    /// A poll whose place was told and that nobody reads, if there is one.
    pub(crate) fn take_told(&self, claim: &ClaimId) -> Option<Reply> {
        self.all.lock().get_mut(claim)?.told.take()
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
        // Where claims belong to a replica, it refuses what comes after a release.
        let doubted = entry.home.is_none()
            && entry
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
    fn what_was_shortened_is_known_until_the_release() {
        let (entries, ids) = (Entries::new(LATE), ClaimIds::new().unwrap());
        let (id, other) = (ids.next(), ids.next());
        let seconds = Duration::from_secs;
        assert_eq!(entries.sure_of(&id, seconds(30)), seconds(30));
        entries.shortens(&id, seconds(8));
        entries.shortens(&id, seconds(5));
        entries.shortens(&id, seconds(9));
        entries.doubt(&id, BootInstant::from_nanos(0));
        entries.holds(&id);
        entries.doubt(&other, Clock::Boot.now());
        for (lease, sure) in [(30, 5), (5, 5), (4, 4)] {
            assert_eq!(entries.sure_of(&id, seconds(lease)), seconds(sure));
        }
        assert!(entries.settle(&id, Clock::Boot.now()));
        assert_eq!(entries.sure_of(&id, seconds(30)), seconds(30));
        // Nor for long if no release has an answer.
        entries.shortens(&id, seconds(5));
        entries.leaves(&id, BootInstant::from_nanos(0));
        assert_eq!(entries.sure_of(&id, seconds(30)), seconds(30));
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
