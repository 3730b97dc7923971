//! A request for a lock: its settings, and the claim that is made from them.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, Span};

use crate::acquiring::Acquiring;
use crate::engine::{Claim, LeaseKind};
use crate::guard::{Guard, Held};
use crate::runtime::acquire::{Request, acquire};
use crate::runtime::attempt::Attempt;
use crate::runtime::caller::Caller;
use crate::runtime::health::Health;
use crate::runtime::hold::Terms;
use crate::runtime::place::Patience;
use crate::runtime::reenter::enter;
use crate::runtime::state::State;
use crate::types::{Error, LockName, Mode, Owner, Result, check_text, in_words};

/// The lease of a request without a ttl.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The pauses between two attempts of an unfair request that sets none.
const DEFAULT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// A request for a lock, made by [`Client::lock`](crate::Client::lock) or [`Client::try_lock`](crate::Client::try_lock).
/// Await it.
///
/// # Cancel safety
/// The future may be dropped at any time: what it began is undone in the background, and neither a lock nor a place in the
/// queue is left.
///
/// Poll it until it is done, or drop it. While it is neither polled nor dropped, other tasks of this client may wait behind it.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report")
///     .timeout(Duration::from_secs(5))
///     .ttl(Duration::from_secs(10))
///     .label("by hand")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct Acquire {
    state: Arc<State>,
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

impl Acquire {
    pub(crate) fn new(state: &Arc<State>, name: &str, waits: bool) -> Self {
        Self {
            state: Arc::clone(state),
            // A bad name is kept for the error, which the request returns when it is awaited.
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
                at_least: None,
                healthy: None,
            },
            patience: Patience {
                waits,
                fair: true,
                attempts: None,
                pauses: DEFAULT_PAUSES,
            },
            timeout: None,
        }
    }

    /// Exclusive mode (the default).
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").exclusive().await?;
    /// assert_eq!(guard.mode(), Mode::Exclusive);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exclusive(self) -> Self {
        self.mode(Mode::Exclusive)
    }

    /// Shared mode: other shared holders may hold the lock at the same time.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let one = client.lock("catalogue").shared().await?;
    /// let two = client.lock("catalogue").shared().await?;
    /// assert!(client.try_lock("catalogue").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// A mode given as a value.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let writes = false;
    /// let mode = if writes { Mode::Exclusive } else { Mode::Shared };
    /// let guard = client.lock("catalogue").mode(mode).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Waits at most this long: then [`Error::TimedOut`] if another still holds the lock, or [`Error::Unavailable`] if the
    /// store did not answer the last request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let second = client.lock("report").timeout(Duration::from_millis(20)).await;
    /// assert!(matches!(second, Err(Error::TimedOut { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The lease: how long the store keeps the lock if its holder dies. It is renewed at a third of that. 30 s by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").ttl(Duration::from_secs(5)).await?;
    /// assert!(guard.remaining() <= Duration::from_secs(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How much longer the store keeps the lock if its holder vanishes (Chubby's lock-delay). None by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let delay = Duration::from_secs(2);
    /// let guard = client.lock("report").lock_delay(delay).await?;
    /// assert_eq!(client.look("report").await?.holders[0].lock_delay, delay);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = lock_delay;
        self
    }

    /// A note for people who look at the lock: at most 255 bytes, no control characters.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").label("nightly, run 7").await?;
    /// let holder = &client.look("report").await?.holders[0];
    /// assert_eq!(holder.label.as_deref(), Some("nightly, run 7"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Does not join the queue, but tries again and again, in no order.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").unfair().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unfair(mut self) -> Self {
        self.patience.fair = false;
        self
    }

    /// Tries at most this many times, then gives up with [`Error::Held`]. Does not join the queue, as with [`Acquire::unfair`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let second = client.lock("report").attempts(2).await;
    /// assert!(matches!(second, Err(Error::Held { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.patience.attempts = Some(attempts.max(1));
        self.unfair()
    }

    /// The shortest and the longest pause between two attempts of an unfair request; each is drawn at random. 5 ms and
    /// 500 ms by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let (shortest, longest) = (Duration::from_millis(1), Duration::from_millis(10));
    /// let second = client.lock("report").attempts(3).delays(shortest, longest).await;
    /// assert!(second.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn delays(mut self, shortest: Duration, longest: Duration) -> Self {
        self.patience.pauses = (shortest, longest.max(shortest));
        self
    }

    /// Takes the lock on behalf of an owner. If the owner holds the lock already, it enters it again, with the same token.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let owner = client.owner();
    /// let outer = client.lock("report").owner(&owner).await?;
    /// let inner = client.lock("report").owner(&owner).await?;
    /// assert_eq!(inner.token(), outer.token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Writes the token to the store together with the grant, so that others can read it at once.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").recorded().await?;
    /// assert_eq!(client.look("report").await?.token(), Some(guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn recorded(mut self) -> Self {
        self.record = true;
        self
    }

    /// Whether the client renews the lease by itself (the default). If not, the lease ends after the ttl. The time of waiting
    /// is not part of it. See also [`Guard::refresh`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let request = client.lock("report").ttl(Duration::from_millis(50));
    /// let guard = request.renew(false).await?;
    /// assert_eq!(guard.lost().await, LossReason::NotRenewed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn renew(mut self, renew: bool) -> Self {
        self.terms.renews = renew;
        self
    }

    /// The longest time to hold: the validity ends then at the latest. The lock is then given back (its lock-delay runs), even
    /// if the guard still exists.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").max_hold(Duration::from_millis(50)).await?;
    /// assert_eq!(guard.lost().await, LossReason::MaxHold);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.max_hold = Some(most);
        self
    }

    /// Keeps the lock held for this time after its grant, even if it is released earlier. This is for a job that many machines
    /// start at about the same time and that must run once per period. Choose a time longer than the difference of their
    /// clocks, and shorter than the period.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::{Client, Error, Memory};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let memory = Memory::new();
    /// # let client = Client::new(Arc::new(memory.another()))?;
    /// # let another_machine = Client::new(Arc::new(memory))?;
    /// let period = Duration::from_secs(3600);
    /// let guard = client.try_lock("report").at_least(period).await?;
    /// // The report is written in a moment …
    /// guard.release().await?;
    ///
    /// // … and a machine that comes later finds the lock taken.
    /// let second = another_machine.try_lock("report").at_least(period).await;
    /// assert!(matches!(second, Err(Error::Held { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// No process has to stay for that: the store keeps the lock by its lease, even if the holder is killed. A release or drop
    /// before the time is over ends the guard and leaves a lease for the rest of the time. Until then the lock is still shown
    /// with its holder, [`Client::check`](crate::Client::check) says yes to its sequencer, and
    /// [`Client::evict`](crate::Client::evict) frees it. The lock is handed neither to another task of this process nor to its
    /// owner: a later request waits like any other. If an owner enters a lock again, the time of its first request applies.
    ///
    /// A request that is dropped or times out before it returns its guard is undone at once. A lock that was force-released is
    /// free at once.
    ///
    /// # Errors
    /// The request ends with [`Error::Unsupported`] on a store where a lock ends with its session or connection
    /// ([`Promises::lease`](crate::engine::Promises::lease)). It ends with [`Error::Invalid`] if
    /// [`max_hold`](Acquire::max_hold) is shorter, or if the store takes no lease of that length. [`Guard::downgrade`] is
    /// refused.
    pub fn at_least(mut self, least: Duration) -> Self {
        self.terms.at_least = Some(least).filter(|least| !least.is_zero());
        self
    }

    /// Renews only while `check` returns true. The client calls it before each renewal, at a third of the ttl. After a `false` it
    /// calls it again and again while the validity lasts. A holder that stays unhealthy loses the lock at the end of its
    /// validity. Its guard reports the loss, and the client gives the lock back (then its lock-delay runs) although the guard
    /// still exists.
    ///
    /// The check must return at once: all renewals wait for it. A panic in it counts as `false`. See
    /// [`Heartbeat`](crate::Heartbeat) for a check that needs signs of life. The check has no effect on a hold that was joined.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let heart = Heartbeat::every(Duration::from_millis(10));
    /// let request = client.lock("import").ttl(Duration::from_millis(60));
    /// let guard = request.healthy(heart.check()).await?;
    /// // Nothing calls `heart.beat()`.
    /// assert_eq!(guard.lost().await, LossReason::Unhealthy);
    /// # Ok(())
    /// # }
    /// ```
    pub fn healthy(mut self, check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.terms.healthy = Some(Health(Arc::new(check)));
        self
    }

    /// Takes the lock, runs `body` and releases. If the lock is lost before the body has ended, the client drops the body at its
    /// next await. If there is no further await, the client drops its result. A panic in the body releases the lock, too.
    ///
    /// # Errors
    /// Those of the request, and [`Error::Lost`] if the lock was lost before the body ended. A release that the store did not
    /// confirm is no error: it goes on in the background.
    ///
    /// # Cancel safety
    /// May be dropped: the body is dropped, and the lock is released in the background.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let request = client.lock("report").timeout(Duration::from_secs(5));
    /// match request.with(|held| async move { held.token() }).await {
    ///     Ok(token) => println!("done, with token {token}"),
    ///     Err(Error::Lost { reason, .. }) => println!("stopped halfway: {reason}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
                // The lock was lost in the body's last step, or while the body blocked this thread.
                false => Err(Error::Lost { name, reason: held.lost().await }),
            },
        };
        if let Err(error) = held.0.let_go().await {
            tracing::debug!(name = %held.name(), %error, "the release goes on in the background");
        }
        result
    }

    /// Refuses what the store does not support, before anything is sent.
    pub(crate) fn check(&self) -> Result<LockName> {
        let name = match &self.name {
            Ok(name) => name.clone(),
            Err(bad) => return Err(LockName::new(bad).err().unwrap_or(Error::Closed)),
        };
        let state = &self.state;
        let refuse = |what, why: &str| Err(Error::unsupported(&state.engine, what, why));
        if state.is_closed() {
            return Err(Error::Closed);
        }
        state.check_takes("taking a lock")?;
        let promises = state.promises();
        if self.mode == Mode::Shared && !promises.shared {
            return refuse("shared mode", "it has exclusive locks only");
        }
        if matches!(self.mode, Mode::Permit { .. }) && !promises.permits {
            return refuse("permits", "it has no semaphores");
        }
        if !self.lock_delay.is_zero() && !promises.lock_delay {
            let why = match promises.lease {
                LeaseKind::Lease => {
                    "the set was prepared without one (see `fencelock migrate prepare --lock-delay`)"
                }
                LeaseKind::Session => "a lock there ends with the session of its client",
                LeaseKind::Connection => "a lock there ends with its connection",
            };
            return refuse("a lock-delay", why);
        }
        state.check_ttl(self.ttl, self.lock_delay)?;
        self.check_at_least()?;
        if let Some(label) = &self.label {
            check_text("label", label)?;
        }
        Ok(name)
    }

    fn check_at_least(&self) -> Result<()> {
        let Some(at_least) = self.terms.at_least else {
            return Ok(());
        };
        let state = &self.state;
        let ends_with = match state.promises().lease {
            LeaseKind::Lease => None,
            LeaseKind::Session => Some("a lock there ends with the session of its client"),
            LeaseKind::Connection => Some("a lock there ends with its connection"),
        };
        if let Some(why) = ends_with {
            return Err(Error::unsupported(&state.engine, "at_least", why));
        }
        if let Some(most) = self.terms.max_hold.filter(|most| *most < at_least) {
            let why = format!("it is longer than the max_hold of {}", in_words(most));
            return Err(Error::invalid("at_least", in_words(at_least), why));
        }
        state.check_length("at_least", at_least, self.lock_delay)
    }

    fn claim(&self, name: LockName) -> Claim {
        let owner = match &self.owner {
            Some(owner) => &owner.text,
            None => &self.state.settings.who,
        };
        Claim {
            mode: self.mode,
            ttl: self.ttl,
            lock_delay: self.lock_delay,
            wait: self.patience.waits && self.patience.fair,
            record: self.record || self.owner.is_some(),
            label: self.label.clone(),
            ..Claim::new(self.state.ids.next(), Arc::clone(owner), name)
        }
    }

    /// Inner futures borrow the request, so that the future is small: it contains the request once, and not this builder.
    fn acquire(
        self,
        caller: Arc<Caller>,
        span: Span,
    ) -> impl Future<Output = Result<Guard>> + Send + 'static {
        let claim = self.check().map(|name| self.claim(name));
        let Self {
            state,
            terms,
            patience,
            owner,
            ..
        } = self;
        let mut request = claim.map(|claim| Request {
            claim,
            terms,
            patience,
        });
        async move {
            if caller.is_gone() {
                // The caller dropped this future before it polled it.
                return Err(Error::Closed);
            }
            let request = match &mut request {
                Ok(request) => request,
                Err(error) => return Err(std::mem::replace(error, Error::Closed)),
            };
            let (name, id) = (&request.claim.name, request.claim.id);
            span.in_scope(|| tracing::debug!(%name, %id, "requesting a lock"));
            let share = match owner {
                None => acquire(&state, request, &caller).instrument(span).await,
                // Boxed, so that the common case stays small.
                Some(owner) => {
                    let entered = enter(&state, request, &owner, &caller);
                    Box::pin(entered.instrument(span)).await
                }
            };
            share.map(Guard::new)
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        let (state, timeout) = (Arc::clone(&self.state), self.timeout);
        let caller = Arc::new(Caller::default());
        // A bad name is refused at once.
        let name = self.name.as_ref().ok();
        let attempt = name.map(|name| Attempt::begin(&state, name, self.mode));
        let span = attempt.as_ref().map_or_else(Span::none, |a| a.span.clone());
        let acquire = self.acquire(Arc::clone(&caller), span);
        Acquiring::begin(state, caller, attempt, timeout, acquire)
    }
}
