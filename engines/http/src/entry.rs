//! What this client knows of a claim that waits, that has a request without an answer, or whose lease was shortened. Where
//! claims belong to a replica, each claim has an entry until it is withdrawn. Otherwise other claims have none.

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
    /// Whether the service last said that the claim waits.
    waits: bool,
    /// How many polls are open.
    polls: watch::Sender<usize>,
    polled_at: usize,
    /// A poll whose first line gave the claim's place, and whose second line is not being read.
    told: Option<Reply>,
    /// When the last request was sent that may take effect later.
    doubted: Option<BootInstant>,
    /// The shortest lease that a renewal has set. That renewal may arrive once more, so no later lease is believed for longer.
    shortest: Option<Duration>,
    /// The replica to which it belongs, if claims belong to replicas.
    home: Option<Arc<Home>>,
    holds: bool,
    /// It is over at its replica, and no request for it is sent any more.
    ended: bool,
    /// How many requests in a row its replica could not serve.
    failures: u32,
    /// Set after a release without an answer: until when the release is repeated.
    left_until: Option<BootInstant>,
}

impl Entry {
    fn is_in_use(&self) -> bool {
        self.waits || self.told.is_some() || *self.polls.borrow() > 0
    }

    /// Whether the entry has more information than that the claim waits.
    fn may_hold(&self) -> bool {
        self.holds || self.ended || self.doubted.is_some() || self.shortest.is_some()
    }

    /// Whether the entry can be removed although the claim was never withdrawn.
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
    /// How long after it was sent a request may take effect.
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

    /// Notes that the claim will be requested at this replica, and belongs to it from now on.
    pub(crate) fn lives(&self, claim: &ClaimId, home: &Arc<Home>) {
        self.with(claim, |entry| entry.home = Some(Arc::clone(home)));
    }

    /// Notes that the replica got no request for the claim, or refused it. The claim then belongs to no replica.
    pub(crate) fn lives_nowhere(&self, claim: &ClaimId) {
        self.all.lock().remove(claim);
    }

    /// Notes that the replica refused a request for the claim. If that was the only request, the replica has nothing of it.
    pub(crate) fn was_refused(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get(claim)
            && !(entry.is_in_use() || entry.may_hold())
        {
            all.remove(claim);
        }
    }

    /// The replica to which a claim belongs.
    pub(crate) fn home(&self, claim: &ClaimId) -> Option<Arc<Home>> {
        self.all.lock().get(claim)?.home.clone()
    }

    /// Notes that a renewal of the claim will be sent that sets its lease.
    pub(crate) fn shortens(&self, claim: &ClaimId, lease: Duration) {
        self.with(claim, |entry| {
            let before = entry.shortest.unwrap_or(lease);
            entry.shortest = Some(before.min(lease));
        });
    }

    /// How much of a lease the client may believe in.
    pub(crate) fn sure_of(&self, claim: &ClaimId, lease: Duration) -> Duration {
        let all = self.all.lock();
        let shortest = all.get(claim).and_then(|entry| entry.shortest);
        shortest.map_or(lease, |shortest| shortest.min(lease))
    }

    /// Notes that the claim holds.
    pub(crate) fn holds(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim).filter(|entry| entry.home.is_some()) {
            (entry.waits, entry.holds, entry.failures) = (false, true, 0);
            return;
        }
        drop(all);
        self.waits_no_more(claim);
    }

    /// Notes that the claim is over at its replica.
    pub(crate) fn ends(&self, claim: &ClaimId) {
        self.with(claim, |entry| (entry.waits, entry.ended) = (false, true));
    }

    pub(crate) fn has_ended(&self, claim: &ClaimId) -> bool {
        self.all.lock().get(claim).is_some_and(|entry| entry.ended)
    }

    /// Notes that the replica of a claim could not serve a request for it. Returns that replica, and how often in a row this
    /// has happened. `None` if the claim holds, or belongs to no replica.
    pub(crate) fn failed(&self, claim: &ClaimId) -> Option<(Arc<Home>, u32)> {
        let mut all = self.all.lock();
        let entry = all.get_mut(claim).filter(|entry| !entry.holds)?;
        entry.failures += 1;
        Some((Arc::clone(entry.home.as_ref()?), entry.failures))
    }

    /// Notes that the release of a claim had no answer. It may be repeated until then.
    pub(crate) fn leaves(&self, claim: &ClaimId, until: BootInstant) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim) {
            (entry.waits, entry.left_until) = (false, Some(until));
        }
        let (now, late) = (Clock::Boot.now(), self.late);
        all.retain(|_, entry| !entry.is_over(now, late) || entry.is_in_use());
    }

    /// Notes that the service said that the claim waits.
    pub(crate) fn waits(&self, claim: &ClaimId) {
        self.with(claim, |entry| {
            // The answer to a poll may come after the claim's end.
            (entry.waits, entry.failures) = (!entry.ended, 0);
        });
    }

    /// Whether the service last said that the claim waits.
    pub(crate) fn is_waiting(&self, claim: &ClaimId) -> bool {
        self.all.lock().get(claim).is_some_and(|entry| entry.waits)
    }

    /// Notes that the claim does not wait any more.
    pub(crate) fn waits_no_more(&self, claim: &ClaimId) {
        let mut all = self.all.lock();
        if let Some(entry) = all.get_mut(claim) {
            (entry.waits, entry.told) = (false, None);
            if !entry.may_hold() && *entry.polls.borrow() == 0 {
                all.remove(claim);
            }
        }
    }

    /// Notes that a request sent at that time had no answer.
    pub(crate) fn doubt(&self, claim: &ClaimId, sent: BootInstant) {
        self.with(claim, |entry| {
            entry.doubted = Some(entry.doubted.map_or(sent, |before| before.max(sent)));
        });
        // Remove the entries of claims that were never withdrawn.
        let (now, late) = (Clock::Boot.now(), self.late);
        let mut all = self.all.lock();
        all.retain(|_, entry| !entry.is_over(now, late) || entry.is_in_use());
    }

    /// Whether a request that was sent since then had no answer.
    pub(crate) fn is_doubted_since(&self, claim: &ClaimId, begun: BootInstant) -> bool {
        let all = self.all.lock();
        let doubted = all.get(claim).and_then(|entry| entry.doubted);
        doubted.is_some_and(|sent| sent >= begun)
    }

    /// Keeps a poll whose place is known, for a later call. Returns the poll that cannot be kept: this one if the claim no
    /// longer waits, or the one that it replaces.
    pub(crate) fn keep_told(&self, claim: &ClaimId, told: Reply) -> Option<Reply> {
        let mut all = self.all.lock();
        match all.get_mut(claim).filter(|entry| entry.waits) {
            Some(entry) => entry.told.replace(told),
            None => Some(told),
        }
    }

    /// Takes out a poll whose place is known and that is not being read, if there is one.
    pub(crate) fn take_told(&self, claim: &ClaimId) -> Option<Reply> {
        self.all.lock().get_mut(claim)?.told.take()
    }

    /// Notes that a poll begins, at this replica first. From now on a release waits for the end of the poll.
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

    /// The claim's open polls, if there are any, and the replica of the last one. A release must be sent after their end.
    pub(crate) fn open_polls(&self, claim: &ClaimId) -> Option<(watch::Receiver<usize>, usize)> {
        let all = self.all.lock();
        let entry = all.get(claim)?;
        let is_open = *entry.polls.borrow() > 0;
        is_open.then(|| (entry.polls.subscribe(), entry.polled_at))
    }

    /// Whether a release is final that was sent at that time, when no poll was open, and is answered now. If so, the entry is
    /// removed. A claim may come to hold again until `late` after its last request without an answer.
    pub(crate) fn settle(&self, claim: &ClaimId, sent: BootInstant) -> bool {
        let mut all = self.all.lock();
        let Some(entry) = all.get(claim) else {
            return true;
        };
        // Where claims belong to a replica, the replica refuses requests that come after a release.
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
    fn a_release_is_final_when_no_request_can_arrive_later() {
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
    fn a_shortened_lease_is_remembered_until_the_release() {
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
        // If no release has an answer, it is forgotten after a while.
        entries.shortens(&id, seconds(5));
        entries.leaves(&id, BootInstant::from_nanos(0));
        assert_eq!(entries.sure_of(&id, seconds(30)), seconds(30));
    }

    #[test]
    fn entries_are_forgotten_after_a_while() {
        let (entries, ids) = (Entries::new(LATE), ClaimIds::new().unwrap());
        let (old, new) = (ids.next(), ids.next());
        entries.doubt(&old, BootInstant::from_nanos(0));
        entries.waits(&new);
        entries.waits_no_more(&new);
        entries.doubt(&new, Clock::Boot.now());
        assert_eq!(entries.all.lock().len(), 1);
    }
}
