//! Stores on which a claim belongs to the process that placed it: what this replica holds for its clients. The holds of a
//! replica share sessions, and any renewal keeps a session alive. So the replica keeps a lease for each claim. If a client does
//! not renew in time, the replica withdraws its claim, and repeats that until the store has confirmed it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, Leave};
use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, ClaimId, Engine, LockName, Token};
use futures_util::FutureExt;
use tokio::sync::{Notify, watch};

use crate::known::Known;

/// How long the id of an ended claim is remembered. No request for it arrives later than that.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The shortest and the longest pause before a withdrawal is repeated.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What this replica holds.
#[derive(Debug)]
pub(crate) struct Bound {
    engine: Arc<dyn Engine>,
    known: Arc<Known>,
    table: Mutex<Table>,
    /// Notified when something is due earlier than before.
    changed: Notify,
    /// How many claims this replica must still end before it may end itself: those in the table that do not stay.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    claims: HashMap<ClaimId, Entry>,
    /// The claims by their deadlines.
    order: BTreeSet<(BootInstant, ClaimId)>,
    ended: HashSet<ClaimId>,
    ended_at: VecDeque<(BootInstant, ClaimId)>,
    /// How many claims stay when this replica ends.
    staying: usize,
    /// Whether a reaper task runs.
    reaped: bool,
}

#[derive(Debug)]
struct Entry {
    /// In the mode in which it holds or waits.
    claim: Claim,
    /// The deadline of the client. After it the claim is withdrawn.
    until: BootInstant,
    /// Until when the client was told to believe. The store and the engine keep the claim at least that long.
    believed: Option<BootInstant>,
    holds: bool,
    /// The tokens of its grants.
    tokens: Vec<Token>,
    /// The claim is being withdrawn.
    ending: bool,
    /// This replica ends while a client may still believe in the hold, and leaves it to the store.
    stays: bool,
}

/// Why a request for a claim is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// The claim has ended, or was never here.
    Ended,
    /// The id is that of a claim for another lock, or the token is of none of its grants. The claim of this id goes on.
    Other,
    /// The claim holds by this token in another mode, and goes on.
    OtherMode,
}

impl Entry {
    /// Whether the client may no longer believe in its hold. A lost hold stays lost.
    fn is_lost(&self, now: BootInstant) -> bool {
        self.holds && self.believed.is_some_and(|until| until <= now)
    }

    /// Whether the client was told a later token than this one.
    fn has_later(&self, token: Token) -> bool {
        self.tokens.iter().any(|told| *told > token)
    }

    /// Whether the client may believe in its hold.
    fn is_believed(&self, now: BootInstant) -> bool {
        self.holds && !self.ending && self.believed.is_some_and(|until| until > now)
    }
}

impl Bound {
    pub(crate) fn new(engine: Arc<dyn Engine>, known: Arc<Known>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            known,
            table: Mutex::default(),
            changed: Notify::new(),
            count: watch::Sender::new(0),
        })
    }

    /// Notes that a claim is about to be placed, with this deadline. The caller has the claim's turn.
    pub(crate) fn placing(
        self: &Arc<Self>,
        claim: &Claim,
        until: BootInstant,
    ) -> Result<(), NotHere> {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        table.forget_old(now);
        if table.ended.contains(&claim.id) {
            return Err(NotHere::Ended);
        }
        match table.claims.get(&claim.id) {
            Some(entry) if entry.claim.name != claim.name => return Err(NotHere::Other),
            Some(entry) if entry.ending => return Err(NotHere::Ended),
            Some(entry) if entry.is_lost(now) => {
                drop(table);
                self.end(claim.id);
                return Err(NotHere::Ended);
            }
            Some(_) => table.prolong(claim.id, until),
            None => {
                let entry = Entry {
                    claim: claim.clone(),
                    until,
                    believed: None,
                    holds: false,
                    tokens: Vec::new(),
                    ending: false,
                    stays: false,
                };
                table.order.insert((until, claim.id));
                table.claims.insert(claim.id, entry);
            }
        }
        self.tell(&table);
        self.begin_reaping(table);
        Ok(())
    }

    /// Notes that the store has nothing of a claim that was placed.
    pub(crate) fn is_not_there(&self, id: ClaimId) {
        let mut table = self.table.lock();
        table.remove(id);
        self.tell(&table);
    }

    /// Notes that the claim holds by this token, in its mode.
    pub(crate) fn holds(&self, claim: &Claim, token: Token) {
        if let Some(entry) = self.table.lock().note_hold(claim.id, token) {
            entry.claim.mode = claim.mode;
        }
    }

    /// Notes that the client of a hold by this token is about to be told to believe until then. Returns until when it may
    /// believe: not longer than this replica keeps the claim. `None` if the claim has ended. What an earlier answer said is
    /// never moved back, unless it is to `shorten`.
    pub(crate) fn tells(
        &self,
        id: ClaimId,
        token: Token,
        until: BootInstant,
        shorten: bool,
    ) -> Option<BootInstant> {
        let mut table = self.table.lock();
        let entry = table.note_hold(id, token)?;
        let until = until.min(entry.until);
        let before = entry.believed.filter(|_| !shorten);
        entry.believed = Some(before.map_or(until, |before| until.max(before)));
        Some(until)
    }

    /// Until when the client of a hold of this lock may believe. `None` if the hold is not here, or is ending.
    pub(crate) fn believed_until(&self, id: ClaimId, name: &LockName) -> Option<BootInstant> {
        let table = self.table.lock();
        let entry = table.claims.get(&id)?;
        let holds = entry.holds && !entry.ending && entry.claim.name == *name;
        entry.believed.filter(|_| holds)
    }

    /// Whether the id is that of a claim for another lock.
    pub(crate) fn is_for_another(&self, id: ClaimId, name: &LockName) -> bool {
        let table = self.table.lock();
        let entry = table.claims.get(&id);
        entry.is_some_and(|entry| entry.claim.name != *name)
    }

    /// Whether the claim is being withdrawn here. It does not come back.
    pub(crate) fn is_ending(&self, id: ClaimId) -> bool {
        let table = self.table.lock();
        table.claims.get(&id).is_some_and(|entry| entry.ending)
    }

    /// Notes that a hold is about to be renewed, with this deadline.
    pub(crate) fn renewing(&self, held: &HeldClaim, until: BootInstant) -> Result<(), NotHere> {
        let HeldClaim { claim, token, .. } = held;
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        match table.claims.get(&claim.id) {
            Some(entry) if entry.ending || entry.is_lost(now) => Err(NotHere::Ended),
            Some(entry)
                if entry.claim.name != claim.name
                    || !entry.tokens.contains(token)
                    || entry.has_later(*token) =>
            {
                Err(NotHere::Other)
            }
            // The store would say that it is lost, and the claim would be withdrawn.
            Some(entry) if entry.claim.mode != claim.mode => Err(NotHere::OtherMode),
            Some(_) if held.shorten => {
                table.keep_until(claim.id, until);
                // A process that joins the hold must not believe longer, even if the store does not answer.
                if let Some(entry) = table.claims.get_mut(&claim.id) {
                    entry.believed = entry.believed.map(|believed| believed.min(until));
                }
                drop(table);
                self.changed.notify_one();
                Ok(())
            }
            Some(_) => {
                table.prolong(claim.id, until);
                Ok(())
            }
            None => Err(NotHere::Ended),
        }
    }

    /// Begins to withdraw the claim if the store says that it does not hold by this token. If the claim got a later one, it was a
    /// late renewal.
    pub(crate) fn lost(&self, id: ClaimId, token: Token) {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        let entry = table.claims.get(&id);
        if entry.is_some_and(|entry| !entry.has_later(token)) {
            table.end(id, now);
            drop(table);
            self.changed.notify_one();
        }
    }

    /// Begins to withdraw the claim: its client gives it back, or believes no more.
    pub(crate) fn end(&self, id: ClaimId) {
        let now = self.engine.clock().now();
        if self.table.lock().end(id, now) {
            self.changed.notify_one();
        }
    }

    /// Notes that nothing is left of a claim, as the store confirmed. Its id is not used again.
    pub(crate) fn ended(&self, id: ClaimId) {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        table.forget_old(now);
        table.remove(id);
        if table.ended.insert(id) {
            table.ended_at.push_back((now + REMEMBERED, id));
        }
        self.tell(&table);
    }

    /// How many claims are here.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().claims.len()
    }

    /// How many claims hold and are not being withdrawn.
    pub(crate) fn holding(&self) -> usize {
        self.table.lock().holding().count()
    }

    /// How many claims are in each state.
    pub(crate) fn states(&self) -> [(&'static str, usize); 3] {
        let table = self.table.lock();
        let (mut waiting, mut holding, mut ending) = (0, 0, 0);
        for entry in table.claims.values() {
            match (entry.ending, entry.holds) {
                (true, _) => ending += 1,
                (false, true) => holding += 1,
                (false, false) => waiting += 1,
            }
        }
        [
            ("waiting", waiting),
            ("holding", holding),
            ("ending", ending),
        ]
    }

    /// Ends this replica's part in all claims. It begins to withdraw those in which no client believes. A hold in which a client
    /// may still believe stays at the store until its lease is over, as after a crash: nobody may get the lock before. Returns
    /// how many holds that ended or left behind; each counts once.
    pub(crate) fn end_all(&self) -> usize {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        let held = table.holding().filter(|entry| !entry.stays).count();
        let mut over = Vec::new();
        let mut staying = table.staying;
        for (id, entry) in &mut table.claims {
            if entry.is_believed(now) {
                staying += usize::from(!std::mem::replace(&mut entry.stays, true));
            } else {
                over.push(*id);
            }
        }
        table.staying = staying;
        self.tell(&table);
        // In the same lock, so that no client is told to believe in a claim that is about to end.
        for id in over {
            table.end(id, now);
        }
        drop(table);
        self.changed.notify_one();
        held
    }

    /// Returns once no claim is left, except those that stay.
    pub(crate) async fn none_left(&self) {
        let mut count = self.count.subscribe();
        // This cannot fail: `self` owns the sender.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn tell(&self, table: &Table) {
        self.count.send_if_modified(|count| {
            let left = table.claims.len() - table.staying;
            let before = std::mem::replace(count, left);
            before != *count
        });
    }

    /// Tells the task that reaps of a change, or begins one if none runs.
    fn begin_reaping(self: &Arc<Self>, mut table: MutexGuard<'_, Table>) {
        let begin = !std::mem::replace(&mut table.reaped, true);
        drop(table);
        self.changed.notify_one();
        if begin {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
    }

    /// The next claim that is due, or when to look again.
    fn next_due(&self) -> Due {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        match table.order.first().copied() {
            Some((until, id)) if until <= now => {
                // No longer in `order`: one task withdraws it to the end.
                table.order.remove(&(until, id));
                Due::Now(id)
            }
            Some((until, _)) => Due::At(until),
            None => {
                table.reaped = false;
                Due::Never
            }
        }
    }

    /// What to withdraw. The caller has the turn. `None` if the client renewed before.
    fn is_due(self: &Arc<Self>, id: ClaimId) -> Option<(Claim, Leave)> {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        let entry = table.claims.get_mut(&id)?;
        if entry.until > now {
            let until = entry.until;
            table.order.insert((until, id));
            // The task that reaps may have ended when nothing else was in order.
            self.begin_reaping(table);
            return None;
        }
        entry.ending = true;
        let how = match entry.holds {
            true => Leave::Abandon,
            false => Leave::Release,
        };
        Some((entry.claim.clone(), how))
    }

    /// Withdraws the claim until the store confirms it. Meanwhile no other call of the claim is under way.
    async fn withdraw(self: Arc<Self>, id: ClaimId) {
        let mut visit = self.known.enter(id);
        visit.take_turn().await;
        let Some((claim, how)) = self.is_due(id) else {
            return;
        };
        let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
        loop {
            // A panic of the engine is an error like any other: the claim must not stay at the store.
            let withdrawn = AssertUnwindSafe(self.engine.withdraw(&claim, how));
            match withdrawn.catch_unwind().await {
                Ok(Ok(_)) => break,
                Ok(Err(error)) => {
                    tracing::debug!(name = %claim.name, %error, "withdrawing what its client did not renew");
                }
                Err(_) => tracing::error!(name = %claim.name, "withdrawing a claim met a bug"),
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
        visit.waits_no_more();
        self.ended(id);
    }
}

enum Due {
    Now(ClaimId),
    At(BootInstant),
    Never,
}

impl Table {
    fn prolong(&mut self, id: ClaimId, until: BootInstant) {
        if self
            .claims
            .get(&id)
            .is_some_and(|entry| entry.until < until)
        {
            self.keep_until(id, until);
        }
    }

    fn keep_until(&mut self, id: ClaimId, until: BootInstant) {
        if let Some(entry) = self.claims.get_mut(&id) {
            let before = std::mem::replace(&mut entry.until, until);
            // A claim that is not in `order` is about to be checked by `is_due`, which sees the new deadline.
            if self.order.remove(&(before, id)) {
                self.order.insert((until, id));
            }
        }
    }

    /// The claims that hold and are not being withdrawn.
    fn holding(&self) -> impl Iterator<Item = &Entry> {
        let all = self.claims.values();
        all.filter(|entry| entry.holds && !entry.ending)
    }

    /// Notes that the claim holds by this token. `None` if it has ended.
    fn note_hold(&mut self, id: ClaimId, token: Token) -> Option<&mut Entry> {
        let entry = self.claims.get_mut(&id).filter(|entry| !entry.ending)?;
        entry.holds = true;
        if !entry.tokens.contains(&token) {
            entry.tokens.push(token);
        }
        Some(entry)
    }

    /// Makes the claim due now. `false` if it is not here.
    fn end(&mut self, id: ClaimId, now: BootInstant) -> bool {
        let Some(entry) = self.claims.get_mut(&id) else {
            return false;
        };
        entry.ending = true;
        let before = std::mem::replace(&mut entry.until, now);
        self.order.remove(&(before, id));
        self.order.insert((now, id));
        true
    }

    fn remove(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.remove(&id) {
            self.staying -= usize::from(entry.stays);
            self.order.remove(&(entry.until, id));
        }
    }

    fn forget_old(&mut self, now: BootInstant) {
        while let Some((until, id)) = self.ended_at.front().copied()
            && until <= now
        {
            self.ended_at.pop_front();
            self.ended.remove(&id);
        }
    }
}

/// Withdraws the claims that are due, until no claim is left.
async fn reap(bound: Weak<Bound>) {
    loop {
        let Some(now) = bound.upgrade() else { return };
        match now.next_due() {
            Due::Now(id) => drop(tokio::spawn(now.withdraw(id))),
            Due::Never => return,
            Due::At(until) => {
                let clock = now.engine.clock();
                tokio::select! {
                    () = clock.sleep_until(until) => {}
                    () = now.changed.notified() => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::engine::Standing;
    use fencelock_core::{ClaimIds, Memory};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn bound() -> (Arc<Bound>, Arc<Memory>, Claim) {
        let store = Arc::new(Memory::new());
        let known = Known::new(store.clone(), Duration::from_secs(2));
        let id = ClaimIds::new().unwrap().next();
        let claim = Claim::new(id, "me", LockName::new("a").unwrap());
        (Bound::new(store.clone(), known), store, claim)
    }

    async fn place(store: &Memory, claim: &Claim) -> Token {
        match store.place(claim).await.unwrap() {
            Standing::Held(grant) => grant.tokens.first,
            standing => panic!("{standing:?}"),
        }
    }

    /// The reaper ends while the only claim is due and a request has its turn. That request keeps it longer.
    #[tokio::test]
    async fn a_claim_that_was_prolonged_at_the_last_moment_is_withdrawn_later() {
        let (bound, store, claim) = bound();
        let now = || store.clock().now();
        let mut visit = bound.known.enter(claim.id);
        visit.take_turn().await;
        assert!(bound.placing(&claim, now() + SHORT).is_ok());
        place(&store, &claim).await;
        let idle = async {
            while bound.table.lock().reaped {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let idle = tokio::time::timeout(Duration::from_secs(20), idle);
        idle.await.expect("the reaper runs still");
        assert!(bound.placing(&claim, now() + SHORT * 4).is_ok());
        drop(visit);
        let none = tokio::time::timeout(Duration::from_secs(20), bound.none_left());
        none.await.expect("the claim is kept");
        let view = store.inspect().look(&claim.name).await.unwrap();
        assert_eq!(view.holders.len(), 0);
    }

    #[tokio::test]
    async fn nobody_believes_longer_than_a_shortened_lease() {
        let (bound, store, claim) = bound();
        let now = store.clock().now();
        assert!(bound.placing(&claim, now + SHORT * 100).is_ok());
        let token = place(&store, &claim).await;
        bound.tells(claim.id, token, now + SHORT * 100, false);
        let shorter = HeldClaim::new(claim.clone(), token).shorten(true);
        assert!(bound.renewing(&shorter, now + SHORT * 10).is_ok());
        let until = bound.believed_until(claim.id, &claim.name);
        assert_eq!(until, Some(now + SHORT * 10));
    }
}
