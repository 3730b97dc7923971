//! The reference engine: a store in this process's memory. All other engines are compared with it, and programs use it to test
//! their own code.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::engine::{
    Claim, Cursor, Engine, Event, EventSender, EventSource, EventStream, Evict, Floor, Grant,
    HeldClaim, HolderView, Inspect, Leave, LockView, Page, Place, Promises, Record, RecordChange,
    Renewal, Standing, WaiterView, Wake, Withdrawn,
};
use crate::support::Mutex;
use crate::support::admission::admits;
use crate::types::{BootInstant, ClaimId, Clock, Error, LockName, Mode, Result, Token, Tokens};

/// How long the store keeps a grant that its waiter has not confirmed. A waiter that was not placed again stays for twice that
/// time.
const CLAIM_WINDOW: Duration = Duration::from_secs(2);

/// An engine on a store in memory. [`Memory::another`] opens the same store again, as another process would.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let memory = Memory::new();
/// let one = Client::new(Arc::new(memory.another()))?;
/// let other = Client::new(Arc::new(memory))?;
/// let guard = one.lock("report").await?;
/// assert!(other.try_lock("report").await.is_err());
/// # Ok(())
/// # }
/// ```
pub struct Memory {
    state: Arc<Mutex<State>>,
    clock: Clock,
    promises: Promises,
    events: EventSource,
    /// The sender of the events for this client.
    sender: EventSender,
}

#[derive(Debug, Default)]
struct State {
    locks: HashMap<LockName, Lock>,
    last: u64,
    /// The records by their scopes.
    records: HashMap<String, Record>,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Holder {
    claim: Claim,
    tokens: Tokens,
    token: Token,
    since: BootInstant,
    until: BootInstant,
    asked: bool,
    events: EventSender,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    until: BootInstant,
    wake: Arc<Notify>,
    events: EventSender,
}

impl Memory {
    /// A new, empty store.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(Memory::new().is_empty());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::Boot)
    }

    /// A new, empty store on a clock of the caller's choice.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// // In a runtime with paused time, leases end at once.
    /// let store = Memory::with_clock(Clock::Tokio(tokio::time::Instant::now()));
    /// # assert!(store.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self::on(Arc::default(), clock)
    }

    /// The same store again, as another process would open it.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let store = Memory::new();
    /// let [one, other] = [&store, &store].map(|store| Client::new(std::sync::Arc::new(store.another())));
    /// let guard = one?.lock("report").await?;
    /// assert!(other?.try_lock("report").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn another(&self) -> Self {
        Self::on(Arc::clone(&self.state), self.clock)
    }

    /// The number of names about which the store has any data.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let store = Memory::new();
    /// let client = Client::new(std::sync::Arc::new(store.another()))?;
    /// let guard = client.lock("report").await?;
    /// assert_eq!(store.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().locks.len()
    }

    /// Whether the store has no data about any name.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(Memory::new().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn on(state: Arc<Mutex<State>>, clock: Clock) -> Self {
        let (sender, events) = EventSource::channel();
        Self {
            state,
            clock,
            promises: promises(),
            events,
            sender,
        }
    }

    /// Updates one lock to the present time, runs a function on it, and serves its queue afterwards.
    fn on_lock<T>(
        &self,
        name: &LockName,
        work: impl FnOnce(&mut Lock, &mut u64, BootInstant) -> T,
    ) -> T {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let lock = state.locks.entry(name.clone()).or_default();
        lock.advance(&mut state.last, now);
        let result = work(lock, &mut state.last, now);
        lock.advance(&mut state.last, now);
        if lock.holders.is_empty() && lock.queue.is_empty() {
            state.locks.remove(name);
        }
        result
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// Drops what has expired; then grants the first waiters, one after the other, as far as they are admitted.
    fn advance(&mut self, last: &mut u64, now: BootInstant) {
        self.holders.retain(|holder| holder.until > now);
        self.queue.retain(|waiter| waiter.until > now);
        while let Some(head) = self.queue.pop_front() {
            if !self.admits(head.claim.mode) {
                self.queue.push_front(head);
                return;
            }
            // The grant is not confirmed: it lasts for a claim window, until the waiter is placed again.
            let lease = head.claim.ttl.min(CLAIM_WINDOW);
            self.grant(head.claim, head.events, last, now, lease);
            head.wake.notify_one();
        }
    }

    fn admits(&self, mode: Mode) -> bool {
        admits(mode, self.holders.iter().map(|holder| holder.claim.mode))
    }

    fn grant(
        &mut self,
        claim: Claim,
        events: EventSender,
        last: &mut u64,
        now: BootInstant,
        lease: Duration,
    ) {
        let count = match claim.mode {
            Mode::Exclusive => claim.reserve.max(1),
            Mode::Shared | Mode::Permit { .. } => 1,
        };
        let first = Token(*last + 1);
        *last += u64::from(count);
        self.holders.push(Holder {
            until: now + lease,
            claim,
            tokens: Tokens::new(first, count),
            token: first,
            since: now,
            asked: false,
            events,
        });
    }

    fn holder(&mut self, id: ClaimId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.claim.id == id)
    }
}

impl Holder {
    /// When a lease with this ttl, counted from now, ends at the store.
    fn end_of(&self, ttl: Duration, now: BootInstant) -> BootInstant {
        now + ttl + self.claim.lock_delay
    }

    /// Prolongs the lease to at least this ttl from now on. Returns the grant, with the lease that its client may believe.
    fn grant(&mut self, ttl: Duration, now: BootInstant) -> Grant {
        self.until = self.until.max(self.end_of(ttl, now));
        Grant::new(self.tokens, now, ttl)
    }
}

fn promises() -> Promises {
    Promises::full("memory", "none: client and store share one clock")
        .record(true)
        .floor(Floor::Store)
        .wake(Wake::Push)
        .min_ttl(Duration::from_millis(10))
        .max_ttl(Duration::from_secs(365 * 86_400))
        .claim_window(CLAIM_WINDOW)
}

#[async_trait]
impl Engine for Memory {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        claim.check_floor(self, &self.promises)?;
        self.on_lock(&claim.name, |lock, last, now| {
            *last = (*last).max(claim.floor.get());
            if let Some(holder) = lock.holder(claim.id) {
                match holder.claim.mode {
                    mode if mode == claim.mode => {}
                    Mode::Exclusive => {
                        holder.claim.mode = claim.mode;
                        *last += 1;
                        holder.tokens = Tokens::one(Token(*last));
                        holder.token = Token(*last);
                    }
                    weaker => return Err(Error::stronger_mode(self, weaker)),
                }
                return Ok(Standing::Held(holder.grant(claim.ttl, now)));
            }
            let waits = lock
                .queue
                .iter()
                .position(|waiter| waiter.claim.id == claim.id);
            if waits.is_none() && lock.queue.is_empty() && lock.admits(claim.mode) {
                let lease = claim.ttl + claim.lock_delay;
                lock.grant(claim.clone(), self.sender.clone(), last, now, lease);
                let granted = lock.holders.last_mut().map(|h| h.grant(claim.ttl, now));
                return Ok(granted.map_or(Standing::Busy, Standing::Held));
            }
            if !claim.wait {
                return Ok(Standing::Busy);
            }
            let until = now + CLAIM_WINDOW * 2;
            let ahead = waits.unwrap_or_else(|| {
                lock.queue.push_back(Waiter {
                    claim: claim.clone(),
                    until,
                    wake: Arc::default(),
                    events: self.sender.clone(),
                });
                lock.queue.len() - 1
            });
            lock.queue[ahead].until = until;
            let over = lock.holders.iter().map(|holder| holder.until).min();
            let window = now + CLAIM_WINDOW / 2;
            let recheck = over.map_or(window, |over| window.min(over)) + Duration::from_millis(1);
            Ok(Standing::Waiting(Place::new(recheck).ahead(ahead as u64)))
        })
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        let wake = self.on_lock(&claim.name, |lock, _, _| {
            let waits = lock.queue.iter().find(|waiter| waiter.claim.id == claim.id);
            waits.map(|waiter| Arc::clone(&waiter.wake))
        });
        if let Some(wake) = wake {
            wake.notified().await;
        }
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let renew = |held: &HeldClaim| {
            self.on_lock(&held.claim.name, |lock, _, now| {
                let is_of = |holder: &&mut Holder| {
                    holder.claim.mode == held.claim.mode && holder.tokens.contains(held.token)
                };
                let Some(holder) = lock.holder(held.claim.id).filter(is_of) else {
                    return Renewal::Lost;
                };
                holder.token = held.token;
                let until = holder.end_of(held.claim.ttl, now);
                holder.until = match held.shorten {
                    true => until,
                    false => until.max(holder.until),
                };
                Renewal::kept(now, held.claim.ttl, holder.asked)
            })
        };
        held.iter().map(renew).collect()
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let withdrawn = self.on_lock(&claim.name, |lock, _, now| {
            if let Some(at) = lock.queue.iter().position(|w| w.claim.id == claim.id) {
                lock.queue.remove(at);
                return Withdrawn::LeftQueue;
            }
            let held = lock.holders.iter().position(|h| h.claim.id == claim.id);
            match (held, how) {
                (None, _) if lock.holders.is_empty() => Withdrawn::Expired,
                (None, _) => Withdrawn::NotOwner,
                (Some(at), Leave::Release) => {
                    lock.holders.swap_remove(at);
                    Withdrawn::Released
                }
                (Some(at), Leave::Abandon) => {
                    let holder = &mut lock.holders[at];
                    holder.until = holder.until.min(now + holder.claim.lock_delay);
                    Withdrawn::Released
                }
            }
        });
        Ok(withdrawn)
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        let mut state = self.state.lock();
        let record = state.records.entry(scope.to_owned()).or_default();
        if let Some(change) = change.filter(|change| change.from == record.version) {
            *record = Record::new(change.from + 1, &change.text);
        }
        Ok(record.clone())
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Inspect for Memory {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        Ok(self.on_lock(name, |lock, _, now| lock.view(name, now)))
    }

    /// Looking is cheap here, so the pauses do not grow.
    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        loop {
            let view = self.look(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let asked = self.clock.now();
        Ok(self.look(name).await?.attest(owner, asked))
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        _limit: usize,
    ) -> Result<Page<LockView>> {
        if let Some(at) = at {
            // There is one page only.
            return Err(at.refused());
        }
        let now = self.clock.now();
        let mut state = self.state.lock();
        let State { locks, last, .. } = &mut *state;
        let mut items = Vec::new();
        for (name, lock) in locks.iter_mut() {
            lock.advance(last, now);
            if name.as_str().starts_with(prefix) && !lock.holders.is_empty() {
                items.push(lock.view(name, now));
            }
        }
        Ok(Page::new(items, None))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let evicted = self.on_lock(name, |lock, _, _| {
            let found = lock.holders.iter().position(|h| h.tokens.contains(token));
            let Some(at) = found else { return false };
            let holder = &mut lock.holders[at];
            let event = match how {
                Evict::Release => Event::Lost(holder.claim.id),
                Evict::Ask => Event::Asked(holder.claim.id),
            };
            holder.events.tell(event);
            match how {
                Evict::Release => {
                    lock.holders.swap_remove(at);
                }
                Evict::Ask => holder.asked = true,
            }
            true
        });
        Ok(evicted)
    }
}

impl Lock {
    fn view(&self, name: &LockName, now: BootInstant) -> LockView {
        let holders = self.holders.iter().map(|holder| {
            HolderView::new(holder.claim.owner.to_string(), holder.claim.mode)
                .claim(holder.claim.id)
                .token(holder.token)
                .ttl_left(holder.until.since(now))
                .lock_delay(holder.claim.lock_delay)
                .held(now.since(holder.since))
                .label(holder.claim.label.as_deref().map(str::to_owned))
        });
        let waiters = self.queue.iter().map(|waiter| {
            WaiterView::new(waiter.claim.owner.to_string(), waiter.claim.mode)
                .label(waiter.claim.label.as_deref().map(str::to_owned))
        });
        LockView::new(name.clone(), holders.collect(), waiters.collect())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} names)", self.len())
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}
