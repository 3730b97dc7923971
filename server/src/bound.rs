//! Stores on which a claim belongs to the process that placed it: what this replica holds for its clients. The holds of a
//! replica share sessions, which any renewal keeps alive. So the replica keeps a lease for each claim: it withdraws a claim
//! that its client does not renew in time, again and again until the store has confirmed that.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, Leave};
use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, ClaimId, Engine, LockName, Token};
use tokio::sync::{Notify, watch};

use crate::known::Known;

/// How long an id that has ended is remembered: longer than any request for it may be late.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The shortest and the longest pause before a withdrawal is repeated.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What this replica holds.
#[derive(Debug)]
pub(crate) struct Bound {
    engine: Arc<dyn Engine>,
    known: Arc<Known>,
    table: Mutex<Table>,
    /// Something is due earlier than before.
    changed: Notify,
    /// How many claims are in the table.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    claims: HashMap<ClaimId, Entry>,
    /// By when they end.
    order: BTreeSet<(BootInstant, ClaimId)>,
    ended: HashSet<ClaimId>,
    ended_at: VecDeque<(BootInstant, ClaimId)>,
    /// Whether a task looks after them.
    reaped: bool,
}

#[derive(Debug)]
struct Entry {
    claim: Claim,
    /// The client has the claim until then; after that it is withdrawn.
    until: BootInstant,
    /// Its client was told that it may believe until then. So long the store and the engine keep it for certain.
    believed: Option<BootInstant>,
    holds: bool,
    /// Those of its grants.
    tokens: Vec<Token>,
    /// It is being withdrawn.
    ending: bool,
}

/// Why a claim does not go on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// It has ended, or was never here.
    Ended,
    /// The id is that of a claim for another lock, or the token is of none of its grants. What is here goes on.
    Other,
}

impl Entry {
    /// Its client was told until when it may believe, and that is over: lost stays lost.
    fn is_lost(&self, now: BootInstant) -> bool {
        self.holds && self.believed.is_some_and(|until| until <= now)
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

    /// A claim is about to be placed, and is its client's until then. Its turn has been taken.
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
                };
                table.order.insert((until, claim.id));
                table.claims.insert(claim.id, entry);
            }
        }
        let begin = !std::mem::replace(&mut table.reaped, true);
        self.tell(&table);
        drop(table);
        self.changed.notify_one();
        if begin {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
        Ok(())
    }

    /// The store has nothing of a claim that was placed.
    pub(crate) fn is_not_there(&self, id: ClaimId) {
        let mut table = self.table.lock();
        table.remove(id);
        self.tell(&table);
    }

    /// The claim holds by this token. Until when its client has it; none if it has ended.
    pub(crate) fn holds(&self, id: ClaimId, token: Token) -> Option<BootInstant> {
        let mut table = self.table.lock();
        let entry = table.claims.get_mut(&id).filter(|entry| !entry.ending)?;
        entry.holds = true;
        if !entry.tokens.contains(&token) {
            entry.tokens.push(token);
        }
        Some(entry.until)
    }

    /// The client of a hold now hears that it may believe until then; at least, or at most if that is to `shorten`.
    pub(crate) fn tells(&self, id: ClaimId, until: BootInstant, shorten: bool) {
        let mut table = self.table.lock();
        if let Some(entry) = table.claims.get_mut(&id) {
            let before = entry.believed.filter(|_| !shorten);
            entry.believed = Some(before.map_or(until, |before| until.max(before)));
        }
    }

    /// Until when the client of a hold of this lock may believe; none if it is not here, or is ending.
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

    /// A hold is about to be renewed, and is its client's until then.
    pub(crate) fn renewing(&self, held: &HeldClaim, until: BootInstant) -> Result<(), NotHere> {
        let HeldClaim { claim, token, .. } = held;
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        match table.claims.get(&claim.id) {
            Some(entry) if entry.ending || entry.is_lost(now) => Err(NotHere::Ended),
            Some(entry) if entry.claim.name != claim.name || !entry.tokens.contains(token) => {
                Err(NotHere::Other)
            }
            Some(_) if held.shorten => {
                table.keep_until(claim.id, until);
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

    /// Withdraws the claim: the store says that it does not hold, or its client gives it back.
    pub(crate) fn end(&self, id: ClaimId) {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        if let Some(entry) = table.claims.get_mut(&id) {
            entry.ending = true;
            let before = std::mem::replace(&mut entry.until, now);
            table.order.remove(&(before, id));
            table.order.insert((now, id));
            drop(table);
            self.changed.notify_one();
        }
    }

    /// The store has confirmed that nothing is left of a claim. Its id is not used again.
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
        *self.count.borrow()
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

    /// Ends all of them, and returns how many held.
    pub(crate) fn end_all(&self) -> usize {
        let table = self.table.lock();
        let all: Vec<ClaimId> = table.claims.keys().copied().collect();
        let held = table
            .claims
            .values()
            .filter(|entry| entry.holds && !entry.ending);
        let held = held.count();
        drop(table);
        for id in all {
            self.end(id);
        }
        held
    }

    /// Returns once none is left.
    pub(crate) async fn none_left(&self) {
        let mut count = self.count.subscribe();
        // The sender lives as long as this.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn tell(&self, table: &Table) {
        self.count.send_if_modified(|count| {
            let before = std::mem::replace(count, table.claims.len());
            before != *count
        });
    }

    /// The next claim that is due, or when to look again.
    fn next_due(&self) -> Due {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        match table.order.first().copied() {
            Some((until, id)) if until <= now => {
                // In nobody's order any more: its withdrawal goes on until it is done.
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

    /// What to withdraw, once the turn is taken; none if the client came first.
    fn is_due(&self, id: ClaimId) -> Option<(Claim, Leave)> {
        let now = self.engine.clock().now();
        let mut table = self.table.lock();
        let entry = table.claims.get_mut(&id)?;
        if entry.until > now {
            let until = entry.until;
            table.order.insert((until, id));
            drop(table);
            self.changed.notify_one();
            return None;
        }
        entry.ending = true;
        let how = match entry.holds {
            true => Leave::Abandon,
            false => Leave::Release,
        };
        Some((entry.claim.clone(), how))
    }

    /// Withdraws until the store confirms it. No call of the claim is under way meanwhile.
    async fn withdraw(self: Arc<Self>, id: ClaimId) {
        let mut visit = self.known.enter(id);
        visit.take_turn().await;
        let Some((claim, how)) = self.is_due(id) else {
            return;
        };
        let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
        while let Err(error) = self.engine.withdraw(&claim, how).await {
            tracing::debug!(name = %claim.name, %error, "withdrawing what its client did not renew");
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
            // One that is not there is about to be looked at, and then found to be prolonged.
            if self.order.remove(&(before, id)) {
                self.order.insert((until, id));
            }
        }
    }

    fn remove(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.remove(&id) {
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

/// Withdraws what is due, until nothing is left.
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
