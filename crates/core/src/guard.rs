//! What a holder has in hand.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::client::Inner;
use crate::downgrade;
use crate::drive;
use crate::engine::{Leave, Renewal, Withdrawn};
use crate::hold::Hold;
use crate::keeper;
use crate::types::BootInstant;
use crate::types::LockName;
use crate::types::{ClaimId, Sequencer, Token};
use crate::types::{Error, Result};
use crate::types::{LossReason, Mode, Release};

/// The least that tokio sleeps.
const TICK: Duration = Duration::from_millis(1);

/// A lock that is held. Dropping it releases the lock behind the caller's back; [`Guard::release`] tells how that went.
///
/// Ask [`Guard::is_valid`] before each step that needs the lock, or run the work under [`Wish::with`](crate::Wish::with),
/// and hand [`Guard::token`] or [`Guard::sequencer`] to the resource.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    hold: Arc<Hold>,
    token: Token,
    left: AtomicBool,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, hold: Arc<Hold>) -> Self {
        hold.add_guard();
        Self::of_counted(inner, hold)
    }

    /// For a hold that has counted this guard already.
    pub(crate) fn of_counted(inner: Arc<Inner>, hold: Arc<Hold>) -> Self {
        let token = hold.token();
        let left = AtomicBool::new(false);
        Self {
            inner,
            hold,
            token,
            left,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Throws the guard away and leaves the hold as it is.
    pub(crate) fn dissolve(self) {
        self.left.store(true, Ordering::SeqCst);
        self.hold.drop_guard();
    }

    /// The lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hold.claim.name
    }

    /// The fencing token: higher than that of every grant of this name before.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// How the lock is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold.mode()
    }

    /// The claim that holds.
    #[must_use]
    pub fn claim_id(&self) -> ClaimId {
        self.hold.claim.id
    }

    /// The owner text that the store has.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.hold.claim.owner
    }

    /// Whether this is a hold of another process that was joined through its owner text.
    #[must_use]
    pub fn joined(&self) -> bool {
        self.hold.joined
    }

    /// Whether the lock is held for certain at this instant. False before anyone else can be granted it, and once this
    /// guard was released.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.has_left() && self.hold.is_valid()
    }

    /// How long the lock is held for certain if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.has_left() {
            true => Duration::ZERO,
            false => self.hold.remaining(),
        }
    }

    fn has_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// The instant at which [`Guard::remaining`] is over.
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.hold.valid_until()
    }

    /// Returns the new end of validity once it has changed.
    ///
    /// # Cancel safety
    /// May be dropped. A change between two calls is missed; read [`Guard::valid_until`] first.
    pub async fn prolonged(&self) -> BootInstant {
        let before = self.hold.valid_until();
        let changed = |hold: &Hold| Some(hold.valid_until()).filter(|now| *now != before);
        self.hold.until(changed).await
    }

    /// Returns the reason once the grant may no longer be trusted; at once if that is so already, also where this
    /// client's own tasks had no time to run.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LossReason {
        let stirs = self.stirs();
        tokio::pin!(stirs);
        // The clock is looked at whenever this is polled, for news may be as late as the tasks that bring it.
        poll_fn(|cx| {
            let _: Poll<Infallible> = stirs.as_mut().poll(cx);
            self.why_lost().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Wakes whoever polls it at every piece of news, and when the validity is over.
    async fn stirs(&self) -> Infallible {
        loop {
            let over = async {
                match Handle::try_current() {
                    // At least a tick, lest this never yield.
                    Ok(_) => tokio::time::sleep(self.hold.remaining().max(TICK)).await,
                    // Without tokio there are only the news.
                    Err(_) => pending().await,
                }
            };
            tokio::select! {
                () = self.hold.news.notified() => {}
                () = over => {}
            }
        }
    }

    /// Only a clone of [`Held`] can see its own guard released.
    fn why_lost(&self) -> Option<LossReason> {
        if self.has_left() {
            return Some(LossReason::Released);
        }
        if self.hold.lost().is_none() && !self.hold.is_valid() {
            keeper::end(&self.inner, &self.hold);
        }
        self.hold.lost()
    }

    /// Whether somebody asked for the lock back.
    #[must_use]
    pub fn is_asked_to_release(&self) -> bool {
        self.hold.is_asked()
    }

    /// Returns once somebody asks for the lock back (`fencelock release --ask`); at once if that is so already.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn asked_to_release(&self) {
        self.hold.until(|hold| hold.is_asked().then_some(())).await;
    }

    /// The grant in printable form, for the resource. The store knows the token when this returns, so that
    /// [`Client::check`](crate::Client::check) says yes to it while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant is no longer valid; [`Error::Unavailable`] if the store had to be told the token and
    /// did not answer.
    ///
    /// # Cancel safety
    /// May be dropped: the request goes on behind.
    pub async fn sequencer(&self) -> Result<Sequencer> {
        if self.hold.sequence() {
            self.renew_now(self.hold.claim.ttl).await?;
        }
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        Ok(Sequencer {
            name: self.name().clone(),
            mode: self.mode(),
            token: self.token,
            claim: self.claim_id(),
        })
    }

    /// Renews now, for `ttl` from now on; later renewals keep the client's own ttl.
    ///
    /// A renewal that had no answer may still arrive. So from then on no renewal of this hold is believed for longer than
    /// that one asked for; [`Guard::remaining`] tells.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a ttl that the store does not take, [`Error::Lost`] if the lock is held no more,
    /// [`Error::Unavailable`] if the store does not answer (what is left of the validity stands, up to `ttl`).
    ///
    /// # Cancel safety
    /// May be dropped: the request goes on behind.
    pub async fn refresh(&self, ttl: Duration) -> Result<()> {
        if self.hold.joined {
            let why = "this hold is another process's; only that renews it";
            return Err(Error::unsupported(&self.inner.engine, "a refresh", why));
        }
        self.inner.check_ttl(ttl, self.hold.claim.lock_delay)?;
        self.renew_now(ttl).await
    }

    async fn renew_now(&self, ttl: Duration) -> Result<()> {
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        let hold = Arc::clone(&self.hold);
        let (tell, told) = oneshot::channel();
        // Behind, because a caller that does not poll this any more must not keep the hold from being renewed.
        self.inner.behind(move |inner| async move {
            // Nobody listens if the caller is gone.
            let _ = tell.send(renew_now(&inner, &hold, ttl).await);
        });
        told.await.unwrap_or(Err(Error::Closed))
    }

    /// From exclusive to shared, without a moment in between in which somebody else could be granted the lock alone. The
    /// new guard has a new token. Readers in line come in; a writer in line comes after them.
    ///
    /// There is no way up: a reader that wants to write releases, and waits in line as a writer. A guard that is shared
    /// already comes back as it is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has no shared mode; [`Error::Invalid`] for a permit, for a hold that was joined,
    /// and for one that its owner has entered more than once; [`Error::Lost`] if the lock was lost before the store had
    /// answered, which is asked again while the validity lasts. After an error the lock is released.
    ///
    /// # Cancel safety
    /// If dropped, the lock is released behind.
    pub async fn downgrade(self) -> Result<Self> {
        let inner = Arc::clone(&self.inner);
        let refuse = |why: &str| Err(Error::invalid("downgrade of", self.name().as_str(), why));
        match self.mode() {
            Mode::Shared => return Ok(self),
            Mode::Permit { .. } => return refuse("a permit is not exclusive"),
            Mode::Exclusive => {}
        }
        if self.joined() {
            return refuse("this hold is another process's; only that downgrades it");
        }
        if !inner.promises.shared {
            let why = "it has exclusive locks only";
            return Err(Error::unsupported(&inner.engine, "shared mode", why));
        }
        inner.carry(downgrade::downgrade(self)).await
    }

    /// How long the store will keep the lock without renewal, lock-delay included; `None` if it is not this claim's.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped; nothing is changed.
    pub async fn ttl(&self) -> Result<Option<Duration>> {
        let view = self.inner.engine.inspect().look(self.name()).await?;
        let id = Some(self.claim_id());
        let mine = view.holders.into_iter().find(|holder| holder.claim == id);
        Ok(mine.and_then(|holder| holder.ttl_left))
    }

    /// Releases the lock and says how that went. With several guards of one owner only the last one releases; a joined
    /// hold is left to its owner.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store did not confirm. The release goes on behind, and the lock is free after its
    /// lease at the latest.
    ///
    /// # Cancel safety
    /// May be dropped: the release goes on behind.
    pub async fn release(self) -> Result<Release> {
        self.let_go().await
    }

    pub(crate) async fn let_go(&self) -> Result<Release> {
        let valid = self.is_valid();
        if !self.is_last() {
            return Ok(if valid {
                Release::Released
            } else {
                Release::AlreadyExpired
            });
        }
        let inner = Arc::clone(&self.inner);
        let (token, hold) = (self.token, Arc::clone(&self.hold));
        if let Some(released) = pass_on(&inner, &hold, token) {
            return Ok(released);
        }
        self.inner.carry(leave(inner, hold, token)).await
    }

    /// Marks this guard as gone; true if it was the last of a hold that is to be given back.
    fn is_last(&self) -> bool {
        if self.left.swap(true, Ordering::SeqCst) {
            return false;
        }
        let last = self.hold.drop_guard();
        self.hold.news.notify_waiters();
        last && !self.hold.joined
    }

    pub(crate) fn lost_error(&self) -> Error {
        lost_error(&self.hold)
    }
}

async fn renew_now(inner: &Arc<Inner>, hold: &Arc<Hold>, ttl: Duration) -> Result<()> {
    // In turn with the keeper's renewals, so that answers come in the order of the requests.
    let Some(renewing) = inner.keeper.reserve(hold).await else {
        return Err(lost_error(hold));
    };
    let mut held = hold.held_claim();
    held.claim.ttl = ttl;
    inner.keeper.curtail(hold, ttl);
    let renewal = inner.engine.renew(std::slice::from_ref(&held)).await.pop();
    let renewal =
        renewal.unwrap_or_else(|| Renewal::Unknown(inner.internal("a renewal had no answer")));
    inner.keeper.note(inner, hold, &renewal, &held);
    renewing.noted();
    match renewal {
        Renewal::Kept { .. } if hold.is_valid() => Ok(()),
        Renewal::Kept { .. } | Renewal::Lost => Err(lost_error(hold)),
        Renewal::Unknown(error) => Err(error),
    }
}

fn lost_error(hold: &Hold) -> Error {
    Error::Lost {
        name: hold.claim.name.clone(),
        reason: hold.lost().unwrap_or_else(|| hold.why_over().0),
    }
}

/// Gives the hold to the next task of this process, if that may be.
fn pass_on(inner: &Arc<Inner>, hold: &Arc<Hold>, token: Token) -> Option<Release> {
    let passed = inner.lines.leave(inner, hold);
    if passed {
        inner.observe(|observer| observer.released(&hold.claim.name, token));
    }
    passed.then_some(Release::Released)
}

/// Ends a hold: renewals first, then the claim itself. What the store does not confirm goes on behind.
async fn leave(inner: Arc<Inner>, hold: Arc<Hold>, token: Token) -> Result<Release> {
    inner.keeper.let_go(&hold).await;
    // Whatever the store says: a lease that was over was lost to time, not taken away.
    let timely = inner.clock.now() < hold.valid_until();
    let valid = timely && hold.lost().is_none();
    let withdrawn = give_back(&inner, &hold, valid).await;
    inner.observe(|observer| observer.released(&hold.claim.name, token));
    match withdrawn? {
        Withdrawn::NotOwner if timely => Ok(Release::NotOwner),
        Withdrawn::Released | Withdrawn::LeftQueue if valid => Ok(Release::Released),
        _ => Ok(Release::AlreadyExpired),
    }
}

/// Withdraws the claim of a hold that is not renewed any more, unless that was done already.
async fn give_back(inner: &Arc<Inner>, hold: &Hold, valid: bool) -> Result<Withdrawn> {
    if !hold.may_give_back() {
        return Ok(Withdrawn::Expired);
    }
    let how = match valid {
        true => Leave::Release,
        false => Leave::Abandon,
    };
    let claim = hold.held_claim().claim;
    let withdrawn = inner.engine.withdraw(&claim, how).await;
    if withdrawn.is_err() {
        let kept_until = hold.kept_until();
        inner.behind(move |inner| async move {
            drive::insist(&inner, &claim, how, kept_until).await;
        });
    }
    withdrawn
}

/// Gives back a hold that this client has ended although its guards are still there.
pub(crate) async fn abandon(inner: Arc<Inner>, hold: Arc<Hold>) {
    inner.keeper.let_go(&hold).await;
    if let Err(error) = give_back(&inner, &hold, false).await {
        tracing::debug!(name = %hold.claim.name, %error, "giving back what was lost");
    }
}

/// Tells the guards of a hold that it is lost, and then gives it back: the client is being closed.
pub(crate) async fn close(inner: Arc<Inner>, hold: Arc<Hold>) {
    let valid = hold.is_valid();
    inner.lose(&hold, LossReason::ClientClosed);
    inner.keeper.let_go(&hold).await;
    if let Err(error) = give_back(&inner, &hold, valid).await {
        tracing::debug!(name = %hold.claim.name, %error, "releasing at close");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_last() || pass_on(&self.inner, &self.hold, self.token).is_some() {
            return;
        }
        let (hold, token) = (Arc::clone(&self.hold), self.token);
        self.inner.behind(|inner| async move {
            let name = hold.claim.name.clone();
            if let Err(error) = leave(inner, hold, token).await {
                tracing::debug!(%name, %error, "releasing a dropped guard");
            }
        });
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// The guard inside a body of [`Wish::with`](crate::Wish::with): everything but its release. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Held(pub(crate) Arc<Guard>);

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
