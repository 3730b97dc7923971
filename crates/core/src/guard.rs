//! The guard: a lock that is held. (Long by its examples.)

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::runtime::downgrade;
use crate::runtime::hold::Hold;
use crate::runtime::renewer;
use crate::runtime::share::Share;
use crate::types::{
    BootInstant, ClaimId, Error, LockName, LossReason, Mode, Release, Result, Sequencer, Token,
};

/// The shortest sleep of tokio.
const TICK: Duration = Duration::from_millis(1);

/// A lock that is held. Dropping it releases the lock in the background; [`Guard::release`] returns the result.
///
/// Check [`Guard::is_valid`] before each step that needs the lock, or run the work under
/// [`Acquire::with`](crate::Acquire::with), and hand [`Guard::token`] or [`Guard::sequencer`] to the resource.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report").await?;
/// println!("{} holds {} with token {}", guard.owner(), guard.name(), guard.token());
/// println!("{:?} by claim {}", guard.mode(), guard.claim_id());
/// assert!(guard.is_valid() && !guard.joined());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard(Share);

impl Guard {
    pub(crate) fn new(share: Share) -> Self {
        Self(share)
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.0.hold
    }

    /// The lock.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// assert_eq!(guard.name().as_str(), "report");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hold().claim.name
    }

    /// The fencing token: higher than those of all earlier grants of this name.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let first = client.lock("report").await?;
    /// let token = first.token();
    /// first.release().await?;
    /// assert!(client.lock("report").await?.token() > token);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// How the lock is held.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").shared().await?;
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().mode()
    }

    /// The claim that holds.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// let sequencer = guard.sequencer().await?;
    /// assert_eq!(guard.claim_id(), sequencer.claim);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn claim_id(&self) -> ClaimId {
        self.hold().claim.id
    }

    /// The owner text that the store has.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// let seen = client.look("report").await?;
    /// assert_eq!(seen.holders[0].owner, guard.owner());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.hold().claim.owner
    }

    /// Whether this is a hold of another process that was joined through its owner text.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// assert!(!guard.joined(), "this process took it itself");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn joined(&self) -> bool {
        self.hold().joined
    }

    /// Whether the lock is certainly held at this instant. If the store keeps its promises
    /// ([`Promises::limits`](crate::engine::Promises::limits)), it becomes false before any other client can be granted the
    /// lock. Where a hold depends on a connection, the database may free the lock a moment before. It is also false once this
    /// guard is released.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// for _line in ["a", "b"] {
    ///     if !guard.is_valid() {
    ///         break; // somebody else may write by now
    ///     }
    ///     // … writes the line …
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// How long the lock is certainly held if no renewal succeeds from now on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// if guard.remaining() < Duration::from_secs(1) {
    ///     guard.refresh(Duration::from_secs(30)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The instant at which [`Guard::remaining`] is over.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let before = guard.valid_until();
    /// guard.refresh(DEFAULT_TTL).await?;
    /// assert!(guard.valid_until() > before);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.hold().valid_until()
    }

    /// Waits until the end of the validity has changed, and returns the new one.
    ///
    /// # Cancel safety
    /// May be dropped. A change between two calls is missed; read [`Guard::valid_until`] first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").ttl(Duration::from_millis(60)).await?;
    /// let before = guard.valid_until();
    /// assert!(guard.prolonged().await > before);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn prolonged(&self) -> BootInstant {
        let before = self.hold().valid_until();
        let changed = |hold: &Hold| Some(hold.valid_until()).filter(|now| *now != before);
        self.hold().until(changed).await
    }

    /// Returns the reason when the grant may no longer be trusted. Returns at once if it is already lost, even if this client's
    /// own tasks had no time to run. It returns before any other client can be granted the lock, under the conditions of
    /// [`Guard::is_valid`].
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// tokio::select! {
    ///     reason = guard.lost() => println!("stopped: {reason}"),
    ///     () = async { /* … the work … */ } => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> LossReason {
        let wake_ups = self.wake_ups();
        tokio::pin!(wake_ups);
        // Every poll reads the clock: a notification may be as late as the task that sends it.
        poll_fn(|cx| {
            let _: Poll<Infallible> = wake_ups.as_mut().poll(cx);
            self.why_lost().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// A cancellation token, for work that does not know about locks. It is cancelled when the lock is lost for any reason, and
    /// when [`Guard::downgrade`] begins. It is also cancelled when this guard is released or dropped, before the request to the
    /// store. All calls on one guard return the same token. Keeping the token does not keep the lock.
    ///
    /// A loss cancels it before any other client can be granted the lock, under the same conditions as with [`Guard::lost`],
    /// and one more: [`Guard::lost`] reads the clock itself, but here a task of the client does that. So the tokio runtime in
    /// which the client was made must still exist and have a free thread when the validity ends. If that runtime was stalled or
    /// shut down, or the process was paused, the token is cancelled late or never. Check [`Guard::is_valid`] before a step that
    /// must not be late, and give the resource the fencing token. A release needs no runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock_core::Error> {
    /// # use std::sync::Arc;
    /// # let client = fencelock_core::Client::new(Arc::new(fencelock_core::Memory::new()))?;
    /// let guard = client.lock("index").await?;
    /// let token = guard.cancellation_token();
    /// let work = tokio::spawn(async move {
    ///     // `None` once the token is cancelled.
    ///     token.run_until_cancelled(std::future::pending::<()>()).await
    /// });
    /// guard.release().await?;
    /// assert_eq!(work.await.ok(), Some(None));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        // The clock is read once here: a notification may be as late as the task that sends it.
        let _ = self.why_lost();
        self.0.cancellation_token()
    }

    /// Wakes its task at every notification, and when the validity is over.
    async fn wake_ups(&self) -> Infallible {
        loop {
            let over = async {
                match Handle::try_current() {
                    // At least a tick, so that it yields.
                    Ok(_) => tokio::time::sleep(self.hold().remaining().max(TICK)).await,
                    // Without tokio there are only the notifications.
                    Err(_) => pending().await,
                }
            };
            tokio::select! {
                () = self.hold().news.notified() => {}
                () = over => {}
            }
        }
    }

    /// Only a clone of [`Held`] can see its own guard released.
    fn why_lost(&self) -> Option<LossReason> {
        if self.0.has_left() {
            return Some(LossReason::Released);
        }
        let hold = self.hold();
        if hold.lost().is_none() && !hold.is_valid() {
            renewer::end(&self.0.state, hold);
        }
        hold.lost()
    }

    /// Whether somebody has asked for the lock.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// client.evict("report", guard.token(), Evict::Ask).await?;
    /// guard.asked_to_release().await;
    /// assert!(guard.is_asked_to_release() && guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_asked_to_release(&self) -> bool {
        self.hold().is_asked()
    }

    /// Returns once somebody asks for the lock (`fencelock release --ask`); at once if one already has.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// client.evict("report", guard.token(), Evict::Ask).await?;
    /// tokio::select! {
    ///     () = guard.asked_to_release() => drop(guard.release().await?),
    ///     reason = guard.lost() => println!("lost: {reason}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn asked_to_release(&self) {
        self.hold()
            .until(|hold| hold.is_asked().then_some(()))
            .await;
    }

    /// The grant in printable form, for the resource. When this returns, the store knows the token, so that
    /// [`Client::check`](crate::Client::check) says yes to it while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant is no longer valid; [`Error::Unavailable`] if the store did not know the token yet and did
    /// not answer.
    ///
    /// # Cancel safety
    /// May be dropped: the request continues in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let sequencer = guard.sequencer().await?;
    /// // The resource gets it as text: fl1:x:TOKEN:CLAIM:report.
    /// let text = sequencer.to_string();
    /// assert!(text.starts_with(&format!("fl1:x:{}:", guard.token())));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sequencer(&self) -> Result<Sequencer> {
        if self.hold().sequence() {
            self.renew_now(None).await?;
        }
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        Ok(Sequencer::new(
            self.name().clone(),
            self.mode(),
            self.token(),
            self.claim_id(),
        ))
    }

    /// Renews now, for `ttl` from now on, even if that is shorter than the remaining time. Later renewals keep the client's own
    /// ttl, and do not shorten the lease.
    ///
    /// If a renewal that shortens has no answer, it may still arrive later. So from then on the client believes in no longer
    /// lease of this hold than that renewal asked for; see [`Guard::remaining`]. Over the lock service the client does so even
    /// after an answer, since a proxy may repeat the request.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a ttl that the store does not accept.
    /// - [`Error::Unsupported`] if another process has this hold ([`Guard::joined`]): only that process renews it.
    /// - [`Error::Lost`] if the lock is no longer held.
    /// - [`Error::Unavailable`] if the store does not answer. The remaining validity stays, up to `ttl`.
    ///
    /// # Cancel safety
    /// May be dropped: the request goes on in the background.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// guard.refresh(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refresh(&self, ttl: Duration) -> Result<()> {
        if self.hold().joined {
            let why = "another process has this hold, and only that process renews it";
            return Err(Error::unsupported(&self.0.state.engine, "a refresh", why));
        }
        self.0.state.check_ttl(ttl, self.hold().claim.lock_delay)?;
        self.renew_now(Some(ttl)).await
    }

    async fn renew_now(&self, ttl: Option<Duration>) -> Result<()> {
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        let (state, hold) = (Arc::clone(&self.0.state), Arc::clone(self.hold()));
        let (answer, answered) = oneshot::channel();
        // In the background, because a caller that no longer polls this must not prevent renewals of the hold.
        self.0.state.background.run(async move {
            // Sending fails if the caller is gone.
            let _ = answer.send(renewer::renew_now(&state, &hold, ttl).await);
        });
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// Changes an exclusive lock to a shared one, and no other client can be granted it exclusively in between. The new guard
    /// has a new token. Readers in the queue are granted the lock, too; a writer in the queue comes after them.
    ///
    /// There is no way back: a reader that wants to write releases, and waits in the queue as a writer. A guard that is already
    /// shared is returned unchanged.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the store has no shared mode.
    /// - [`Error::Invalid`] for a permit, for a hold that was joined, for one with
    ///   [`Acquire::at_least`](crate::Acquire::at_least), and for a hold that its owner has entered more than once.
    /// - [`Error::Lost`] if the lock was lost before the store answered. The client repeats the request while the validity
    ///   lasts.
    ///
    /// After an error the lock is released.
    ///
    /// # Cancel safety
    /// If dropped, the lock is released in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let writer = client.lock("catalogue").await?;
    /// let reader = writer.downgrade().await?;
    /// let other = client.lock("catalogue").shared().await?;
    /// assert!(reader.is_valid() && other.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<Self> {
        let refuse = |why: &str| Err(Error::invalid("downgrade of", self.name().as_str(), why));
        match self.mode() {
            Mode::Shared => return Ok(self),
            Mode::Permit { .. } => return refuse("a permit is not exclusive"),
            Mode::Exclusive => {}
        }
        if self.joined() {
            return refuse("another process has this hold, and only that process downgrades it");
        }
        let state = Arc::clone(&self.0.state);
        if !state.promises().shared {
            let why = "it has exclusive locks only";
            return Err(Error::unsupported(&state.engine, "shared mode", why));
        }
        let downgrade = downgrade::downgrade(self.0);
        state.background.carry(downgrade).await.map(Self)
    }

    /// How long the store will keep the lock without renewal, lock-delay included; `None` if this claim does not hold it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped; nothing is changed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// assert!(guard.ttl().await?.is_some_and(|left| left <= DEFAULT_TTL));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ttl(&self) -> Result<Option<Duration>> {
        let view = self.0.state.engine.inspect().look(self.name()).await?;
        let id = Some(self.claim_id());
        let mine = view.holders.into_iter().find(|holder| holder.claim == id);
        Ok(mine.and_then(|holder| holder.ttl_left))
    }

    /// Releases the lock and returns the result. With several guards of one owner only the last one releases. A joined hold
    /// stays with its owner. With [`Acquire::at_least`](crate::Acquire::at_least) others may still have to wait.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not confirm. The release continues in the background, and the lock is free when
    /// its lease ends at the latest.
    ///
    /// # Cancel safety
    /// May be dropped: the release continues in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// assert_eq!(guard.release().await?, Release::Released);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(self) -> Result<Release> {
        self.let_go().await
    }

    pub(crate) async fn let_go(&self) -> Result<Release> {
        self.0.release().await
    }

    /// Notes that the caller of the request has this guard.
    pub(crate) fn deliver(&self) {
        self.hold().deliver();
    }

    pub(crate) fn lost_error(&self) -> Error {
        self.hold().lost_error()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// The guard inside a body of [`Acquire::with`](crate::Acquire::with): everything except its release. Cheap to clone.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let token = client.with("report", |held| async move {
///     assert!(held.is_valid());
///     held.token()
/// });
/// token.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Held(pub(crate) Arc<Guard>);

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
