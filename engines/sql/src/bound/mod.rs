//! Connection-bound locks: a hold is something that the database keeps for one connection and frees when that ends. The
//! engine here is generic; a [`Dialect`] knows the statements.
//!
//! * A claim that holds or waits in the database has a connection of its own, of at most `max-connections`. Further
//!   claims that wait queue in this process.
//! * The server ends a connection that is silent for the claim's ttl: the dialect sets that as the connection's idle
//!   timeout. A renewal is a sign of life. So the lease is the server's, as with any other engine, but the lock is also
//!   free at once when the connection ends, and the holder is told at once when it finds the connection dead.
//! * A claim that waits does so in a statement that blocks in the server. Whoever is granted in that way must give a sign
//!   of life within [`CLAIM_WINDOW`], so that a waiter that died or was stopped does not hold up the others.
//! * The token is drawn on the same connection, after the lock was had. Who holds is written to a table on another
//!   connection, the control connection, a moment later, so that short holds cost nothing more. Its rows mean something
//!   only while the connection that they name lives.
//! * A request whose outcome is unknown is undone by ending its connection from the control connection.

mod control;
mod dialect;
mod pool;
mod seat;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, EventSource, EventStream, Evict, Grant, HeldClaim, Inspect, Leave, LockView,
    Page, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{
    BootInstant, ClaimId, Clock, Engine, Error, Finding, LockName, Mode, Promises, Result, Token,
    Tokens,
};
use futures_util::future::join_all;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use control::{Control, timed};
pub use dialect::{Dialect, Record, SessionId, Settings, Tie};
use pool::{Leased, Pool};
use seat::{Holding, Outcome, Seat, Task, Waiting};

/// For how long a lock that a waiter got waits for its sign of life.
pub const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A hold that lasts longer than this is written down.
const BRIEF: Duration = Duration::from_millis(20);
/// How often a look asks whether all who hold are written down; then it takes what there is.
const LOOKS: u32 = 20;
/// How often an engine in use clears up what dead connections left.
const SWEEP: Duration = Duration::from_secs(5);
/// How often a claim that waits asks whether its connection still does.
const RECHECK: Duration = Duration::from_secs(5);
/// The first and the longest pause of a look that waits for a change.
const NAPS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

type Stand<D> = Arc<tokio::sync::Mutex<Seat<D>>>;

/// The engine on a dialect.
pub struct Bound<D: Dialect> {
    shared: Arc<Shared<D>>,
    events: EventSource,
    behind: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<D: Dialect> {
    dialect: Arc<D>,
    promises: Promises,
    settings: Settings,
    pool: Pool<D>,
    control: Control<D>,
    stands: Mutex<HashMap<ClaimId, Stand<D>>>,
    /// To the task that writes down who holds.
    unwritten: mpsc::UnboundedSender<ClaimId>,
    used: AtomicBool,
    closed: AtomicBool,
}

impl<D: Dialect> Bound<D> {
    /// Opens the store: the control connection must come about.
    pub async fn open(dialect: D) -> Result<Self> {
        let dialect = Arc::new(dialect);
        let settings = dialect.settings();
        let (tell, events) = EventSource::channel();
        let (unwritten, to_write) = mpsc::unbounded_channel();
        let control = Control::new(Arc::clone(&dialect), settings);
        let promises = control.open().await?;
        let shared = Arc::new(Shared {
            pool: Pool::new(Arc::clone(&dialect), settings, tell),
            dialect,
            promises,
            settings,
            control,
            stands: Mutex::default(),
            unwritten,
            used: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        });
        let mut behind = Vec::new();
        // Whoever only looks writes nothing, also not to clear up.
        if !shared.dialect.inspects() {
            behind.push(tokio::spawn(write_down(Arc::downgrade(&shared), to_write)));
            behind.push(tokio::spawn(keep_clean(Arc::downgrade(&shared))));
        }
        if !shared.dialect.inspects()
            && let Some(every) = shared.dialect.watch()
        {
            behind.push(tokio::spawn(watch(Arc::downgrade(&shared), every)));
        }
        Ok(Self {
            shared,
            events,
            behind: Mutex::new(behind),
        })
    }
}

impl<D: Dialect> Shared<D> {
    fn stands(&self) -> MutexGuard<'_, HashMap<ClaimId, Stand<D>>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand(&self, claim: ClaimId) -> Option<Stand<D>> {
        self.stands().get(&claim).cloned()
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Refuses what cannot be done by looking.
    fn check_writes(&self, what: &'static str) -> Result<()> {
        match self.dialect.inspects() {
            true => Err(Error::unsupported(
                &*self.dialect,
                what,
                crate::server::LOOKS_ONLY,
            )),
            false => Ok(()),
        }
    }

    /// What comes of a call, or that it did not come in time.
    async fn within<T>(&self, action: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        timed(&*self.dialect, self.settings.response_timeout, action, call).await
    }

    /// Takes a lock, or a place in the database's line.
    async fn first(self: &Arc<Self>, claim: &Claim, seat: &mut Seat<D>) -> Result<Standing> {
        let action = format!("take lock {}", claim.name);
        let mut leased = match self.pool.lease_now().await? {
            Some(leased) => leased,
            None if claim.wait => {
                *seat = self.wait(claim, None);
                return Ok(self.waiting());
            }
            None => match timeout(self.settings.response_timeout, self.pool.lease()).await {
                Ok(leased) => leased?,
                Err(_) => return Err(self.too_many(&action)),
            },
        };
        loop {
            let asked_at = Clock::Boot.now();
            let session = &mut leased.session;
            let taken = self.dialect.try_take(session, claim, claim.ttl);
            match self.within(&action, taken).await {
                Ok(Some(tokens)) => {
                    let mut holding = Holding::new(leased, claim, tokens);
                    // The lease counts from the last request at the latest, and a slow network has cost some of it.
                    let asked_at = match Clock::Boot.now().since(asked_at) < claim.ttl / 8 {
                        true => asked_at,
                        false => self.keep(&mut holding, claim).await.unwrap_or(asked_at),
                    };
                    return self.hold(claim, seat, holding, asked_at).await;
                }
                Ok(None) if claim.wait => {
                    *seat = self.wait(claim, Some(leased));
                    return Ok(self.waiting());
                }
                Ok(None) => {
                    self.pool.give_back(leased);
                    return Ok(Standing::Busy);
                }
                // It died in the pool, most likely; or just now, and the server may not have noticed.
                Err(Error::Unavailable { .. }) if leased.used_before && leased.tie.is_cut() => {
                    *seat = Seat::ghost(self.dialect.id(&leased.session), claim, false);
                    self.bury(seat).await?;
                    leased = self.pool.renew(leased).await?;
                }
                Err(error) => {
                    *seat = Seat::ghost(self.dialect.id(&leased.session), claim, false);
                    return Err(error);
                }
            }
        }
    }

    fn too_many(&self, action: &str) -> Error {
        let most = self.settings.max_connections;
        let why = format!(
            "all {most} connections of this process hold or wait; raise max-connections in the store's URL"
        );
        Error::unavailable(&*self.dialect, action, why)
    }

    /// Waits in the server, behind; without a connection first for one.
    fn wait(self: &Arc<Self>, claim: &Claim, leased: Option<Leased<D>>) -> Seat<D> {
        let outcome = Arc::new(Outcome::default());
        let (shared, claim) = (Arc::clone(self), claim.clone());
        let told = Arc::clone(&outcome);
        let task = Task(tokio::spawn(async move {
            let taken = shared.wait_through(&claim, leased, &told).await;
            told.tell(taken);
        }));
        Seat::Waiting(Waiting { task, outcome })
    }

    async fn wait_through(
        &self,
        claim: &Claim,
        leased: Option<Leased<D>>,
        outcome: &Outcome<D>,
    ) -> Result<Box<Holding<D>>> {
        let mut leased = match leased {
            Some(leased) => leased,
            None => self.pool.lease().await?,
        };
        let session = self.dialect.id(&leased.session);
        outcome.names(session.clone());
        let listed = self.list_waiter(claim, session).await;
        let tokens = self
            .dialect
            .take(&mut leased.session, claim, CLAIM_WINDOW)
            .await?;
        let mut holding = Holding::new(leased, claim, tokens);
        holding.listed = listed;
        Ok(holding)
    }

    /// Writes down who waits, for people who look. Whether it was done; the wait does not depend on it.
    async fn list_waiter(&self, claim: &Claim, session: SessionId) -> bool {
        let none = Tokens {
            first: Token(0),
            count: 0,
        };
        let record = Record {
            claim: claim.id,
            name: claim.name.clone(),
            mode: claim.mode,
            tokens: none,
            token: Token(0),
            owner: Arc::clone(&claim.owner),
            label: claim.label.clone(),
            ttl: claim.ttl,
            since: Clock::Boot.now(),
            session,
        };
        self.control.record(&[record], &[]).await.is_ok()
    }

    fn waiting(&self) -> Standing {
        Standing::Waiting(Place {
            ahead: None,
            recheck: Clock::Boot.now() + RECHECK,
        })
    }

    /// The lock is had. The lease counts from `asked_at`.
    async fn hold(
        &self,
        claim: &Claim,
        seat: &mut Seat<D>,
        mut holding: Box<Holding<D>>,
        asked_at: BootInstant,
    ) -> Result<Standing> {
        let id = self.dialect.id(&holding.leased.session);
        if !holding.leased.tie.bind(claim.id) {
            *seat = Seat::ghost(id, claim, false);
            let why = "the connection ended as it got the lock";
            return Err(Error::unavailable(
                &*self.dialect,
                format!("take lock {}", claim.name),
                why,
            ));
        }
        let mut written = Ok(Vec::new());
        if claim.record {
            let record = holding.record(id, claim, holding.tokens.first);
            written = self
                .control
                .record(std::slice::from_ref(&record), &[])
                .await;
            if written.is_ok() {
                holding.written = Some(record);
            }
        } else {
            // The task lives as long as the engine.
            let _ = self.unwritten.send(claim.id);
        }
        let grant = Grant {
            tokens: holding.tokens,
            counted_from: asked_at,
            lease: claim.ttl,
            recorded: holding.written.is_some(),
        };
        *seat = Seat::Holding(holding);
        written.map(|_| Standing::Held(grant))
    }

    /// A sign of life, from which the lease counts anew.
    async fn keep(&self, holding: &mut Holding<D>, claim: &Claim) -> Result<BootInstant> {
        let asked_at = Clock::Boot.now();
        let kept = self.dialect.keep(&mut holding.leased.session, claim.ttl);
        self.within(&format!("renew lock {}", claim.name), kept)
            .await?;
        Ok(asked_at)
    }

    /// Goes on with a claim that holds.
    async fn again(
        &self,
        claim: &Claim,
        seat: &mut Seat<D>,
        mut holding: Box<Holding<D>>,
    ) -> Result<Standing> {
        if holding.mode != claim.mode {
            if holding.mode != Mode::Exclusive {
                let held = holding.mode;
                *seat = Seat::Holding(holding);
                let why = format!("the claim holds as {}; release it first", held.as_str());
                return Err(Error::unsupported(
                    &*self.dialect,
                    "a change from a weaker mode to a stronger one",
                    why,
                ));
            }
            let asked_at = Clock::Boot.now();
            let weaker = self.dialect.downgrade(&mut holding.leased.session, claim);
            match self
                .within(&format!("downgrade lock {}", claim.name), weaker)
                .await
            {
                Ok(tokens) => {
                    (holding.tokens, holding.mode) = (tokens, claim.mode);
                    return self.hold(claim, seat, holding, asked_at).await;
                }
                Err(error) => {
                    *seat = Seat::Holding(holding);
                    return Err(error);
                }
            }
        }
        match self.keep(&mut holding, claim).await {
            Ok(asked_at) => self.hold(claim, seat, holding, asked_at).await,
            Err(error) => {
                *seat = Seat::Holding(holding);
                Err(error)
            }
        }
    }

    /// Ends what may be left of a connection that was given up.
    async fn bury(&self, seat: &mut Seat<D>) -> Result<()> {
        if let Seat::Ghost { session, .. } = seat {
            self.control.end(session).await?;
            *seat = Seat::Empty;
        }
        Ok(())
    }

    /// Gives a hold back in good order.
    async fn release(
        &self,
        claim: &Claim,
        mut holding: Box<Holding<D>>,
        seat: &mut Seat<D>,
    ) -> Result<Withdrawn> {
        let id = self.dialect.id(&holding.leased.session);
        if !holding.leased.tie.unbind() {
            *seat = Seat::ghost(id, claim, true);
            drop(holding);
            self.bury(seat).await?;
            return Ok(Withdrawn::Expired);
        }
        let action = format!("release lock {}", claim.name);
        // First, so that whoever is granted the lock next does not see this one beside it.
        let forgotten = match holding.listed || holding.written.is_some() {
            true => self.control.forget(claim.id).await,
            false => Ok(()),
        };
        let given = self.dialect.give_back(&mut holding.leased.session, claim);
        let given = self.within(&action, given).await;
        // A row that stays would be taken for a hold as long as the connection lives.
        let given = given.and_then(|given| forgotten.map(|()| given));
        match given {
            Ok(true) => {
                self.pool.give_back(holding.leased);
                Ok(Withdrawn::Released)
            }
            Ok(false) => Ok(Withdrawn::Expired),
            Err(error) => {
                *seat = Seat::ghost(id, claim, true);
                drop(holding);
                // Whether or not the release came through, the end of the connection is one.
                match self.bury(seat).await {
                    Ok(()) => Ok(Withdrawn::Released),
                    Err(_) => Err(error),
                }
            }
        }
    }

    async fn withdraw(&self, claim: &Claim, how: Leave, seat: &mut Seat<D>) -> Result<Withdrawn> {
        match std::mem::take(seat) {
            Seat::Empty => Ok(Withdrawn::NotOwner),
            Seat::Ghost {
                session,
                held,
                until,
            } => {
                *seat = Seat::Ghost {
                    session,
                    held,
                    until,
                };
                self.bury(seat).await?;
                Ok(if held {
                    Withdrawn::Released
                } else {
                    Withdrawn::LeftQueue
                })
            }
            Seat::Waiting(waiting) => {
                let (got, session) = waiting.end().await;
                if let Some(holding) = got {
                    return self.release(claim, holding, seat).await;
                }
                if let Some(session) = session {
                    *seat = Seat::ghost(session, claim, false);
                    self.bury(seat).await?;
                }
                Ok(Withdrawn::LeftQueue)
            }
            Seat::Holding(holding) => match how {
                Leave::Release => self.release(claim, holding, seat).await,
                Leave::Abandon => {
                    holding.leased.tie.unbind();
                    *seat = Seat::ghost(self.dialect.id(&holding.leased.session), claim, true);
                    drop(holding);
                    self.bury(seat).await?;
                    Ok(Withdrawn::Expired)
                }
            },
        }
    }

    /// The renewal of one hold, and what is to be written down of it.
    async fn renew_one(&self, held: &HeldClaim) -> (Renewal, Option<(Record, bool)>) {
        let claim = &held.claim;
        let Some(stand) = self.stand(claim.id) else {
            return (Renewal::Lost, None);
        };
        let mut seat = stand.lock().await;
        let Seat::Holding(holding) = &mut *seat else {
            return (Renewal::Lost, None);
        };
        if holding.leased.tie.is_cut() {
            return (Renewal::Lost, None);
        }
        match self.keep(holding, claim).await {
            Ok(counted_from) => {
                let kept = Renewal::Kept {
                    counted_from,
                    lease: claim.ttl,
                    asked: false,
                };
                let id = self.dialect.id(&holding.leased.session);
                let record = holding.record(id, claim, held.token);
                let news = !holding
                    .written
                    .as_ref()
                    .is_some_and(|old| old.says_as_much_as(&record));
                (kept, Some((record, news)))
            }
            Err(_) if holding.leased.tie.is_cut() => (Renewal::Lost, None),
            Err(error) => (Renewal::Unknown(error), None),
        }
    }

    /// Writes down what is new of renewed holds, and learns who was asked to let go.
    async fn write(
        self: &Arc<Self>,
        renewals: &mut [(Renewal, Option<(Record, bool)>)],
        share: Duration,
    ) {
        let news = |(_, record): &(Renewal, Option<(Record, bool)>)| {
            let (record, news) = record.as_ref()?;
            news.then(|| record.clone())
        };
        let records: Vec<Record> = renewals.iter().filter_map(news).collect();
        let claims = renewals
            .iter()
            .filter_map(|(_, record)| Some(record.as_ref()?.0.claim));
        let claims: Vec<ClaimId> = claims.collect();
        if claims.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        let written = in_share(share, async move {
            let asked_of = shared.control.record(&records, &claims).await?;
            for record in records {
                if let Some(stand) = shared.stand(record.claim)
                    && let Seat::Holding(holding) = &mut *stand.lock().await
                {
                    holding.written = Some(record);
                }
            }
            Ok(asked_of)
        });
        match written.await.unwrap_or_else(|| Err(self.silence(share))) {
            Ok(asked_of) => {
                for (renewal, record) in renewals {
                    if let (Renewal::Kept { asked, .. }, Some((record, _))) = (renewal, record) {
                        *asked = asked_of.contains(&record.claim);
                    }
                }
            }
            Err(error) => {
                let told = error.to_string();
                for (renewal, record) in renewals {
                    if let Some((_, true)) = record {
                        let error = Error::unavailable(
                            &*self.dialect,
                            "write down who holds",
                            told.clone(),
                        );
                        *renewal = Renewal::Unknown(error);
                    }
                }
            }
        }
    }

    fn silence(&self, share: Duration) -> Error {
        let why = format!("no answer within {share:?}");
        Error::unavailable(&*self.dialect, "renew a lock", why)
    }
}

/// What comes of a call in its share of time. It goes on behind, since to cut it off may cost its connection.
async fn in_share<T: Send + 'static>(
    share: Duration,
    call: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    timeout(share, tokio::spawn(call)).await.ok()?.ok()
}

impl<D: Dialect> Shared<D> {
    /// Writes down those of these claims that hold and are not written down yet. If it fails, a renewal does it.
    async fn write_down(&self, stands: Vec<Stand<D>>) {
        // Kept while it is written, so that a release comes after it.
        let mut seats: Vec<OwnedMutexGuard<Seat<D>>> = Vec::new();
        let mut records = Vec::new();
        for stand in stands {
            // Whoever is at work on it is releasing or renewing, which writes it down.
            let Ok(seat) = stand.try_lock_owned() else {
                continue;
            };
            if let Seat::Holding(holding) = &*seat
                && holding.written.is_none()
            {
                let id = self.dialect.id(&holding.leased.session);
                records.push(holding.record(id, &holding.claim, holding.tokens.first));
                seats.push(seat);
            }
        }
        if !records.is_empty() && self.control.record(&records, &[]).await.is_ok() {
            for (mut seat, record) in seats.into_iter().zip(records) {
                if let Seat::Holding(holding) = &mut *seat {
                    holding.written = Some(record);
                }
            }
        }
    }

    /// Before anybody looks: what this process holds is written down.
    async fn write_down_all(&self) {
        let stands = self.stands().values().map(Arc::clone).collect();
        self.write_down(stands).await;
    }

    /// The lock as it is. A hold of another process that is so young that it is not written down yet is waited for.
    async fn see(&self, name: &LockName) -> Result<LockView> {
        self.check_open()?;
        if self.dialect.inspects() {
            return self.control.look(name).await;
        }
        self.write_down_all().await;
        for _ in 0..LOOKS {
            if self.control.is_written(name).await? {
                break;
            }
            tokio::time::sleep(BRIEF / 2).await;
        }
        self.control.look(name).await
    }
}

#[async_trait]
impl<D: Dialect> Engine for Bound<D> {
    fn promises(&self) -> &Promises {
        &self.shared.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let shared = &self.shared;
        shared.check_open()?;
        shared.check_writes("a lock")?;
        shared.used.store(true, Ordering::Relaxed);
        let stand = Arc::clone(shared.stands().entry(claim.id).or_default());
        let mut seat = stand.lock().await;
        let standing = place(shared, claim, &mut seat).await;
        if matches!(*seat, Seat::Empty) {
            shared.stands().remove(&claim.id);
        }
        standing
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        let Some(stand) = self.shared.stand(claim.id) else {
            return Ok(None);
        };
        let outcome = match &*stand.lock().await {
            Seat::Waiting(waiting) => Arc::clone(&waiting.outcome),
            _ => return Ok(None),
        };
        outcome.told().await;
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let shared = &self.shared;
        shared.used.store(true, Ordering::Relaxed);
        // A connection that is silent must not cost the others their leases, nor the control connection: with both shares, and
        // after a third of the ttl, some is left.
        let shortest = held.iter().map(|held| held.claim.ttl).min();
        let share = shortest.map_or(Duration::ZERO, |ttl| ttl / 4);
        let share = share.min(shared.settings.response_timeout);
        let renewals = held.iter().map(|held| {
            let (renewing, held) = (Arc::clone(shared), held.clone());
            async move {
                let renewed = in_share(share, async move { renewing.renew_one(&held).await });
                let silent = || (Renewal::Unknown(shared.silence(share)), None);
                renewed.await.unwrap_or_else(silent)
            }
        });
        let mut renewals = join_all(renewals).await;
        shared.write(&mut renewals, share).await;
        renewals.into_iter().map(|(renewal, _)| renewal).collect()
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let Some(stand) = self.shared.stand(claim.id) else {
            return Ok(Withdrawn::NotOwner);
        };
        let withdrawn = self
            .shared
            .withdraw(claim, how, &mut *stand.lock().await)
            .await?;
        self.shared.stands().remove(&claim.id);
        Ok(withdrawn)
    }

    /// A hold whose connection ended. Who is asked to let go is told with a renewal.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        if shared.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        for task in std::mem::take(&mut *self.behind.lock().unwrap_or_else(PoisonError::into_inner))
        {
            task.abort();
        }
        shared.stands().clear();
        shared.pool.close();
        if shared.used.load(Ordering::Relaxed)
            && !shared.dialect.inspects()
            && let Err(error) = shared.control.sweep().await
        {
            tracing::debug!(store = %shared.dialect, %error, "what this process left will be cleared by another");
        }
        shared.control.close().await;
        Ok(())
    }
}

#[async_trait]
impl<D: Dialect> Inspect for Bound<D> {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.shared.see(name).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let mut nap = NAPS.0;
        loop {
            let view = self.shared.see(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            tokio::time::sleep(nap.mul_f32(0.5 + fastrand::f32() / 2.0)).await;
            nap = nap.mul_f32(1.5).min(NAPS.1);
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.shared.check_open()?;
        self.shared.write_down_all().await;
        self.shared.control.list(prefix, at.as_ref(), limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.shared.check_writes("an eviction")?;
        self.shared.see(name).await?;
        self.shared.control.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.shared.check_open()?;
        self.shared.dialect.findings().await
    }
}

async fn place<D: Dialect>(
    shared: &Arc<Shared<D>>,
    claim: &Claim,
    seat: &mut Seat<D>,
) -> Result<Standing> {
    match std::mem::take(seat) {
        Seat::Empty => {}
        Seat::Holding(holding) if !holding.leased.tie.is_cut() => {
            return shared.again(claim, seat, holding).await;
        }
        Seat::Holding(holding) => {
            *seat = Seat::ghost(shared.dialect.id(&holding.leased.session), claim, false);
        }
        ghost @ Seat::Ghost { .. } => *seat = ghost,
        Seat::Waiting(waiting) => match waiting.outcome.take() {
            Some(Ok(holding)) => return shared.again(claim, seat, holding).await,
            Some(Err(error)) => {
                if let Some(session) = waiting.outcome.session() {
                    *seat = Seat::ghost(session, claim, false);
                }
                return Err(error);
            }
            None => {
                let session = waiting.outcome.session();
                *seat = Seat::Waiting(waiting);
                // Without a session it queues in this process.
                if let Some(session) = session
                    && !shared.control.lives(&session).await?
                {
                    *seat = Seat::ghost(session, claim, false);
                } else {
                    return Ok(shared.waiting());
                }
            }
        },
    }
    shared.bury(seat).await?;
    shared.first(claim, seat).await
}

/// Writes down who holds, some time after the grant.
async fn write_down<D: Dialect>(
    shared: Weak<Shared<D>>,
    mut granted: mpsc::UnboundedReceiver<ClaimId>,
) {
    while let Some(first) = granted.recv().await {
        tokio::time::sleep(BRIEF).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut claims = vec![first];
        while let Ok(next) = granted.try_recv() {
            claims.push(next);
        }
        let stands = claims
            .iter()
            .filter_map(|claim| shared.stand(*claim))
            .collect();
        shared.write_down(stands).await;
    }
}

/// Looks whether the connections that hold are there still.
async fn watch<D: Dialect>(shared: Weak<Shared<D>>, every: Duration) {
    loop {
        tokio::time::sleep(every.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let stands: Vec<Stand<D>> = shared.stands().values().map(Arc::clone).collect();
        let holding = stands.iter().filter_map(|stand| {
            // Whoever is at work on it finds out.
            match &*stand.try_lock().ok()? {
                Seat::Holding(holding) => {
                    let id = shared.dialect.id(&holding.leased.session);
                    Some((id, Arc::clone(&holding.leased.tie)))
                }
                _ => None,
            }
        });
        let (ids, ties): (Vec<SessionId>, Vec<Arc<Tie>>) = holding.unzip();
        if ids.is_empty() {
            continue;
        }
        // Without an answer nothing is known of them.
        let gone = shared.control.gone(&ids).await.unwrap_or_default();
        for (_, tie) in ids.iter().zip(&ties).filter(|(id, _)| gone.contains(id)) {
            tie.cut();
        }
    }
}

/// Clears up now and then.
async fn keep_clean<D: Dialect>(shared: Weak<Shared<D>>) {
    loop {
        tokio::time::sleep(SWEEP.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.pool.trim();
        let now = Clock::Boot.now();
        shared
            .stands()
            .retain(|_, stand| match stand.try_lock().as_deref() {
                Ok(Seat::Ghost { until, .. }) => *until > now,
                _ => true,
            });
        let busy = !shared.stands().is_empty();
        if (shared.used.swap(busy, Ordering::Relaxed) || busy)
            && let Err(error) = shared.control.sweep().await
        {
            tracing::debug!(store = %shared.dialect, %error, "clearing up failed; trying again later");
        }
    }
}

impl<D: Dialect> Drop for Bound<D> {
    fn drop(&mut self) {
        // Waits that go on behind share the rest.
        self.shared.stands().clear();
        self.shared.pool.close();
        let unswept = !self.shared.closed.load(Ordering::SeqCst) && !self.shared.dialect.inspects();
        if unswept && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(async move {
                if let Err(error) = shared.control.sweep().await {
                    tracing::debug!(store = %shared.dialect, %error, "what this process left will be cleared by another");
                }
            });
        }
        for task in self
            .behind
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
        {
            task.abort();
        }
    }
}

impl<D: Dialect> fmt::Display for Bound<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.shared.dialect, f)
    }
}

impl<D: Dialect> fmt::Debug for Bound<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({})", self.shared.dialect)
    }
}
