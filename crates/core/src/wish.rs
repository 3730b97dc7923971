//! A wish for a lock: what is asked, and the way from there to a guard.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::Instrument;

use crate::client::{Carried, Client, DEFAULT_TTL, Inner};
use crate::drive::{Caller, Heard, Patience, drive};
use crate::engine::{Claim, Grant, HolderView};
use crate::guard::{Guard, Held};
use crate::health::Health;
use crate::hold::{Hold, Terms, valid_until};
use crate::line::{Entered, Seat, Turn};
use crate::types::BootInstant;
use crate::types::LockName;
use crate::types::Mode;
use crate::types::{Error, Result};
use crate::types::{Owner, around, check_text};

/// The pauses between two attempts of an unfair wish, if it names none.
const DEFAULT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// A wish for a lock, made by [`Client::lock`], [`Client::try_lock`] or [`Client::lock_for`]. Await it.
///
/// # Cancel safety
/// The future may be dropped at any time: what it began is undone behind the caller's back, and neither a lock nor a place
/// in line is left.
#[derive(Clone, Debug)]
#[must_use = "a wish does nothing until it is awaited"]
pub struct Wish {
    client: Client,
    name: Result<LockName, Arc<str>>,
    mode: Mode,
    ttl: Duration,
    lock_delay: Duration,
    label: Option<Arc<str>>,
    owner: Option<Owner>,
    record: bool,
    terms: Terms,
    patience: Patience,
    timeout: Option<Duration>,
}

impl Wish {
    pub(crate) fn new(client: &Client, name: &str, waits: bool, timeout: Option<Duration>) -> Self {
        Self {
            client: client.clone(),
            // A bad name is kept for the error, which comes when the wish is awaited.
            name: LockName::new(name).map_err(|_| name.into()),
            mode: Mode::Exclusive,
            ttl: DEFAULT_TTL,
            lock_delay: Duration::ZERO,
            label: None,
            owner: None,
            record: false,
            terms: Terms {
                renews: true,
                max_hold: None,
                healthy: None,
            },
            patience: Patience {
                waits,
                fair: true,
                attempts: None,
                pauses: DEFAULT_PAUSES,
            },
            timeout,
        }
    }

    /// Alone; so it is if nothing is said.
    pub fn exclusive(self) -> Self {
        self.mode(Mode::Exclusive)
    }

    /// Beside other shared holders.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// In a mode named by value.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The lease: how long the lock is kept if its holder dies. Renewed at a third of it. 30 s if nothing is said.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// For how much longer the store keeps the lock if its holder vanishes (Chubby's lock-delay). None if nothing is said.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = lock_delay;
        self
    }

    /// A note for whoever looks at the lock: at most 255 bytes, no control characters.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Take no place in line, but ask again and again, in no order.
    pub fn unfair(mut self) -> Self {
        self.patience.fair = false;
        self
    }

    /// Ask at most this often, then give up with [`Error::Held`]. Takes no place in line, as [`Wish::unfair`].
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.patience.attempts = Some(attempts.max(1));
        self.unfair()
    }

    /// The shortest and the longest pause between two attempts of an unfair wish; each is drawn at random. From 5 ms to
    /// 500 ms if nothing is said.
    pub fn delays(mut self, shortest: Duration, longest: Duration) -> Self {
        self.patience.pauses = (shortest, longest.max(shortest));
        self
    }

    /// On behalf of an owner, who may have it already and then enters again with the same token.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// The store is to know the token as soon as it is granted, for others to read.
    pub fn recorded(mut self) -> Self {
        self.record = true;
        self
    }

    /// Whether the lease is renewed by itself. If not, it ends after the ttl, or see [`Guard::refresh`].
    pub fn renew(mut self, renew: bool) -> Self {
        self.terms.renews = renew;
        self
    }

    /// The longest time to hold: validity ends then at the latest, and is not renewed beyond. The lock is given back then
    /// (its lock-delay runs), whatever the holder does.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.max_hold = Some(most);
        self
    }

    /// Renew only while `check` says yes. It is asked before each renewal, at a third of the ttl, and after a no again
    /// and again while the validity lasts. A holder that stays unhealthy loses the lock at the end of its validity, is
    /// told so, and the lock is given back (its lock-delay runs) although its guard is still there.
    ///
    /// The check must answer at once: all renewals wait for it. A panic in it counts as a no. See
    /// [`Heartbeat`](crate::Heartbeat) for a check that wants signs of life. It changes nothing for a hold that was joined.
    pub fn healthy(mut self, check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.terms.healthy = Some(Health(Arc::new(check)));
        self
    }

    /// Takes the lock, runs `body` and releases. A body that is not done when the lock is lost is dropped at its next
    /// await. What a body that runs through after the loss comes to is dropped. A panic in it releases the lock, too.
    ///
    /// # Errors
    /// As the wish itself, and [`Error::Lost`] if the lock was lost before the body ended. A release that the store did
    /// not confirm is no error: it goes on behind.
    ///
    /// # Cancel safety
    /// May be dropped: the body is dropped, and the lock is released behind.
    pub async fn with<F, B, T>(self, body: F) -> Result<T>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = T>,
    {
        let held = Held(Arc::new(self.await?));
        let name = held.name().clone();
        let body = body(held.clone());
        let result = tokio::select! {
            biased;
            reason = held.lost() => Err(Error::Lost { name, reason }),
            result = body => match held.is_valid() {
                true => Ok(result),
                // Lost in its last step, or while it kept this thread to itself.
                false => Err(Error::Lost { name, reason: held.lost().await }),
            },
        };
        if let Err(error) = held.0.let_go().await {
            tracing::debug!(name = %held.name(), %error, "the release goes on behind");
        }
        result
    }

    /// Refuses what the store does not take, before anything is sent.
    pub(crate) fn check(&self) -> Result<LockName> {
        let name = match &self.name {
            Ok(name) => name.clone(),
            Err(bad) => return Err(LockName::new(bad).err().unwrap_or(Error::Closed)),
        };
        let inner = &self.client.inner;
        let refuse = |what, why: &str| Err(Error::unsupported(&inner.engine, what, why));
        if inner.is_closed() {
            return Err(Error::Closed);
        }
        inner.check_takes("taking a lock")?;
        let promises = &inner.promises;
        if self.mode == Mode::Shared && !promises.shared {
            return refuse("shared mode", "it has exclusive locks only");
        }
        if matches!(self.mode, Mode::Permit { .. }) && !promises.permits {
            return refuse("permits", "it has no semaphores");
        }
        if !self.lock_delay.is_zero() && !promises.lock_delay {
            return refuse("a lock-delay", "a lock there ends with its connection");
        }
        inner.check_ttl(self.ttl, self.lock_delay)?;
        if let Some(label) = &self.label {
            check_text("label", label)?;
        }
        Ok(name)
    }

    fn claim(&self, name: LockName) -> Claim {
        let inner = &self.client.inner;
        Claim {
            id: inner.ids.next(),
            owner: match &self.owner {
                Some(owner) => Arc::clone(&owner.text),
                None => Arc::clone(&inner.who),
            },
            name,
            mode: self.mode,
            ttl: self.ttl,
            lock_delay: self.lock_delay,
            wait: self.patience.waits && self.patience.fair,
            reserve: 1,
            record: self.record || self.owner.is_some(),
            label: self.label.clone(),
        }
    }

    async fn acquire(self, caller: Arc<Caller>) -> Result<Guard> {
        let name = self.check()?;
        let claim = self.claim(name);
        let span = tracing::debug_span!("lock", name = %claim.name, id = %claim.id);
        match self.owner.clone() {
            None => self.take(claim, &caller).instrument(span).await,
            // Boxed, so that the common case stays small.
            Some(owner) => Box::pin(self.enter(claim, &owner, &caller).instrument(span)).await,
        }
    }

    /// Enters what the owner holds, or takes the lock on its behalf.
    async fn enter(&self, claim: Claim, owner: &Owner, caller: &Arc<Caller>) -> Result<Guard> {
        let inner = Arc::clone(&self.client.inner);
        let slot = inner.owners.slot(&owner.text, &claim.name);
        let mut held = if self.patience.waits {
            tokio::select! {
                held = slot.lock() => held,
                () = caller.gone(&inner) => return Err(Error::Closed),
            }
        } else {
            // Another task of this owner is taking it just now.
            let name = claim.name.clone();
            slot.try_lock().map_err(|_| Error::Held { name })?
        };
        if let Some(hold) = held.upgrade()
            && hold.is_valid()
            && hold.add_guard_if_any()
        {
            let guard = Guard::of_counted(Arc::clone(&inner), hold);
            return fits(&claim, guard.mode()).map(|()| guard);
        }
        if owner.outer
            && let Some(guard) = self.join(&claim).await?
        {
            *held = Arc::downgrade(guard.hold());
            return Ok(guard);
        }
        let guard = self.take(claim, caller).await?;
        *held = Arc::downgrade(guard.hold());
        Ok(guard)
    }

    /// Joins the hold of an outer process, if the store confirms it.
    async fn join(&self, claim: &Claim) -> Result<Option<Guard>> {
        let inner = &self.client.inner;
        let Some((holder, grant)) = find_outer(inner, &claim.name, &claim.owner).await? else {
            return Ok(None);
        };
        fits(claim, holder.mode)?;
        let Some(id) = holder.claim else {
            return Ok(None);
        };
        let joined = Claim {
            id,
            owner: holder.owner.as_str().into(),
            mode: holder.mode,
            lock_delay: holder.lock_delay,
            ..claim.clone()
        };
        let terms = Terms {
            renews: false,
            ..self.terms.clone()
        };
        let mut hold = Hold::new(joined, &grant, inner.clock, terms);
        hold.joined = true;
        let hold = Arc::new(hold);
        let guard = Guard::new(Arc::clone(inner), Arc::clone(&hold));
        let client = Arc::downgrade(inner);
        inner.spawn(crate::join::watch(client, hold, inner.clock));
        Ok(guard.is_valid().then_some(guard))
    }

    /// Takes the lock: in turn within this process if it is to stand in line, then at the store.
    async fn take(&self, claim: Claim, caller: &Arc<Caller>) -> Result<Guard> {
        let inner = &self.client.inner;
        let begun = inner.observes().then(|| inner.clock.now());
        if claim.mode != Mode::Exclusive || !claim.wait {
            if !self.patience.waits && inner.lines.holds(&claim.name) {
                return Err(Error::Held { name: claim.name });
            }
            return self.drive(claim, begun, None, caller).await;
        }
        let plain = self.terms.are_plain() && !claim.record;
        let told = match inner.lines.enter(inner, &claim, plain, caller) {
            Entered::Drive(seat) => return self.drive(claim, begun, Some(seat), caller).await,
            Entered::Wait(told) => told,
        };
        let turn = tokio::select! {
            biased;
            turn = told => turn,
            () = caller.gone(inner) => return Err(Error::Closed),
        };
        match turn {
            Ok(Turn::Drive(seat)) => self.drive(claim, begun, Some(seat), caller).await,
            Ok(Turn::Passed(guard)) if guard.is_valid() => {
                inner.observe_grant(&claim.name, guard.token(), begun, true);
                Ok(guard)
            }
            // This task slept until the hold it was given was over: back to the end of the line.
            Ok(Turn::Passed(guard)) => {
                drop(guard);
                Box::pin(self.take(claim, caller)).await
            }
            Err(_) => Err(inner.internal("the line in this process was dropped")),
        }
    }

    /// Takes the lock at the store, with or without a seat in this process's line.
    async fn drive(
        &self,
        mut claim: Claim,
        begun: Option<BootInstant>,
        seat: Option<Seat>,
        caller: &Arc<Caller>,
    ) -> Result<Guard> {
        let inner = &self.client.inner;
        // Until the hold is in keeping, where a close would find it.
        let _working = inner.working();
        let contended = seat.as_ref().is_some_and(|seat| seat.contended);
        if contended && inner.promises.ranges && !claim.record {
            claim.reserve = inner.batch;
        }
        let grant = drive(inner, &claim, self.patience, caller).await?;
        let guard = self.hold(claim, &grant, begun, seat);
        if inner.is_closed() {
            drop(guard);
            return Err(Error::Closed);
        }
        Ok(guard)
    }

    /// From a grant to a guard: into keeping, and into the line as its holder.
    fn hold(
        &self,
        claim: Claim,
        grant: &Grant,
        begun: Option<BootInstant>,
        seat: Option<Seat>,
    ) -> Guard {
        let inner = &self.client.inner;
        let hold = Hold::new(claim, grant, inner.clock, self.terms.clone());
        let hold = Arc::new(hold);
        let guard = Guard::new(Arc::clone(inner), Arc::clone(&hold));
        inner.keeper.keep(&hold, grant.counted_from, grant.lease);
        if let Some(seat) = seat {
            seat.granted(inner, &hold);
        }
        inner.observe_grant(&hold.claim.name, guard.token(), begun, false);
        guard
    }
}

/// Whether an owner's claim may enter what it holds.
fn fits(claim: &Claim, held: Mode) -> Result<()> {
    if claim.mode == held || held == Mode::Exclusive {
        return Ok(());
    }
    let why = format!(
        "its owner holds {} in {} mode already, and waiting for itself would never end; release that first",
        claim.name,
        held.as_str()
    );
    Err(Error::invalid("mode", claim.mode.as_str(), why))
}

/// The hold of an owner around this one, in another process, with what may be believed of it.
async fn find_outer(
    inner: &Inner,
    name: &LockName,
    owner: &str,
) -> Result<Option<(HolderView, Grant)>> {
    for owner in around(owner) {
        if let Some(found) = vouched(inner, name, owner).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What this very owner holds.
pub(crate) async fn vouched(
    inner: &Inner,
    name: &LockName,
    owner: &str,
) -> Result<Option<(HolderView, Grant)>> {
    let vouched = inner.engine.inspect().attest(name, owner).await?;
    Ok(vouched
        .filter(|(_, grant)| inner.clock.now() < valid_until(grant.counted_from, grant.lease)))
}

impl IntoFuture for Wish {
    type Output = Result<Guard>;
    type IntoFuture = Locking;

    fn into_future(self) -> Locking {
        let inner = Arc::clone(&self.client.inner);
        let caller = Arc::new(Caller::default());
        let clock = inner.clock;
        let timeout = self.timeout.map(|patience| {
            let ends = clock.now() + patience;
            Timeout {
                alarm: Box::pin(async move { clock.sleep_until(ends).await }),
                waited: patience,
                name: self.name.clone().ok(),
            }
        });
        let mut carried = inner.carry(self.acquire(Arc::clone(&caller)));
        carried.caller = Some(caller);
        let carried = Some(carried);
        Locking { carried, timeout }
    }
}

/// The future of a [`Wish`].
///
/// # Cancel safety
/// May be dropped at any time: what it began is undone behind, and neither a lock nor a place in line is left.
#[must_use = "futures do nothing unless awaited"]
pub struct Locking {
    carried: Option<Carried<Result<Guard>>>,
    timeout: Option<Timeout>,
}

struct Timeout {
    alarm: Pin<Box<dyn Future<Output = ()> + Send>>,
    waited: Duration,
    name: Option<LockName>,
}

impl Future for Locking {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(carried) = this.carried.as_mut() else {
            return Poll::Pending;
        };
        if let Poll::Ready(result) = Pin::new(&mut *carried).poll(cx) {
            return Poll::Ready(result);
        }
        let Some(timeout) = this.timeout.as_mut() else {
            return Poll::Pending;
        };
        std::task::ready!(timeout.alarm.as_mut().poll(cx));
        let waited = timeout.waited;
        let Some(name) = timeout.name.take() else {
            return Poll::Ready(Err(Error::Closed));
        };
        let error = carried.gave_up(name, waited);
        // What is under way goes on behind, and is undone there.
        this.carried = None;
        Poll::Ready(Err(error))
    }
}

impl Carried<Result<Guard>> {
    /// Why a wish has not come true in time.
    fn gave_up(&self, name: LockName, waited: Duration) -> Error {
        let mut heard = self.caller.as_ref().map_or(Heard::Nothing, |c| c.heard());
        if matches!(heard, Heard::Nothing) {
            // It stands behind others of this process, who know more.
            heard = self.inner.lines.heard(&name);
        }
        let cause = match heard {
            Heard::Held => return Error::TimedOut { name, waited },
            Heard::Failed(cause) => cause,
            Heard::Nothing => format!("no answer within {waited:?}"),
        };
        Error::unavailable(&self.inner.engine, format!("taking lock {name}"), cause)
    }
}

impl std::fmt::Debug for Locking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locking").finish_non_exhaustive()
    }
}
