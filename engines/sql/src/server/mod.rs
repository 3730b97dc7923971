//! The lease engine on a database server: the rules of [`lease`](crate::lease), over whatever [`Dialect`] the server
//! speaks.

mod dialect;
mod hosts;
mod lookout;
mod pool;
mod rules;
mod waiters;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, EventSource, EventStream, Evict, Grant, HeldClaim, Inspect, Leave,
    LockView, Page, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{
    BootInstant, ClaimId, Clock, Engine, Error, Finding, LockName, Promises, Result, Token,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::naps::{jitter, longer};
pub use dialect::{
    Change, DbInstant, Dialect, News, Seen, Trouble, Write, Written, first_version, micros,
};
pub use hosts::{Host, hosts};
pub use lookout::{Lookout, two_take_writes};
use pool::{Lane, Pool, attempt};
pub use rules::CLAIM_WINDOW;
use waiters::{FIRST_NAP, Waiters};
pub use {dialect::Queued, rules::REACH, waiters::Pushed};

/// How many holds are renewed in one request.
const RENEWED_AT_ONCE: usize = 500;
/// How often each engine looks for the rows of those that vanished and whose names nobody uses any more.
const SWEEP: Duration = Duration::from_secs(30);

/// Why a store that was opened to look only grants nothing.
pub const LOOKS_ONLY: &str = "the store was opened to look at it only";

/// How an engine deals with its server.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the first connection may take.
    pub connect_timeout: Duration,
    /// How long each call waits for an answer.
    pub response_timeout: Duration,
    /// The most connections at once.
    pub connections: NonZeroUsize,
}

/// The engine: leases in the tables of a database server.
pub struct Server<D: Dialect> {
    shared: Arc<Shared<D>>,
    promises: Promises,
    events: EventSource,
    tasks: Vec<AbortHandle>,
}

struct Shared<D: Dialect> {
    pool: Pool<D>,
    waiters: Waiters,
    /// Claims with requests of unknown outcome.
    doubts: Mutex<HashMap<ClaimId, Doubt>>,
    tell: mpsc::UnboundedSender<Event>,
}

/// Requests of unknown outcome.
#[derive(Debug)]
struct Doubt {
    /// The connections that they went over.
    traces: Vec<String>,
    /// Until when what they may still do could hold.
    until: BootInstant,
}

impl<D: Dialect> Server<D> {
    /// Connects for the first time.
    ///
    /// # Errors
    /// What the dialect says; [`Error::Unavailable`] if the server does not answer in time.
    pub async fn open(dialect: D, settings: Settings) -> Result<Self> {
        let connected = tokio::time::timeout(settings.connect_timeout, dialect.connect()).await;
        let session = connected.map_err(|_| {
            let cause = format!("no answer within {:?}", settings.connect_timeout);
            Error::unavailable(&dialect, "connect", cause)
        })??;
        let promises = dialect.promises();
        let (tell, events) = EventSource::channel();
        let connections = settings.connections.get();
        let shared = Arc::new(Shared {
            pool: Pool::new(dialect, settings.response_timeout, connections),
            waiters: Waiters::default(),
            doubts: Mutex::default(),
            tell,
        });
        shared.pool.put(session);
        let mut tasks = Vec::new();
        // Whoever only looks removes nothing, and is told nothing.
        if !shared.pool.dialect.inspects() {
            tasks.push(tokio::spawn(Arc::clone(&shared).sweep_on()).abort_handle());
            tasks.push(tokio::spawn(Arc::clone(&shared).listen()).abort_handle());
        }
        Ok(Self {
            shared,
            promises,
            events,
            tasks,
        })
    }
}

impl<D: Dialect> Shared<D> {
    async fn listen(self: Arc<Self>) {
        loop {
            match self.pool.dialect.hear().await {
                News::Turn(claim) => self.waiters.ring(claim),
                News::Granted(pushed) => self.waiters.push(pushed),
                // Nobody listens once the engine is dropped.
                News::Held(event) => drop(self.tell.send(event)),
                News::Gap => self.waiters.ring_all(),
            }
        }
    }

    /// Deletes the rows of those that vanished, again and again.
    async fn sweep_on(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SWEEP.mul_f32(0.5 + fastrand::f32())).await;
            forget_old(&mut self.doubts(), Clock::Boot.now());
            if let Err(error) = self.sweep().await {
                tracing::debug!(store = %self.pool.dialect, %error, "the rows of vanished claims stay for now");
            }
        }
    }

    async fn sweep(&self) -> Result<()> {
        let mut call = self.pool.call("look for what has expired");
        let dialect = &self.pool.dialect;
        let names = attempt!(call, Lane::Others, |session| dialect.dead(session).await);
        for name in names {
            let mut call = self.pool.call(about("clear what has expired of", &name));
            let done = attempt!(call, Lane::Others, |session| {
                rules::bury(dialect, session, &name).await
            });
            self.ring(&done.call);
        }
        Ok(())
    }

    /// Those in this process hear it here; others as the dialect has it.
    fn ring(&self, claims: &[ClaimId]) {
        for claim in claims {
            self.waiters.ring(*claim);
        }
    }

    /// Refuses what cannot be done by looking.
    fn check_writes(&self, what: &'static str) -> Result<()> {
        let dialect = &self.pool.dialect;
        match dialect.inspects() {
            true => Err(Error::unsupported(dialect, what, LOOKS_ONLY)),
            false => Ok(()),
        }
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_writes("a lock")?;
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(about("take", &claim.name));
        let stood = self.waiters.of(claim.id);
        let fresh = stood.is_none();
        let waiter = stood.unwrap_or_else(|| self.waiters.register(claim.id));
        let done = async {
            Ok(attempt!(call, Lane::Others, |session| {
                rules::place(dialect, session, claim, &waiter, fresh).await
            }))
        };
        let done = done.await;
        // After an error that may pass it is placed again, or withdrawn.
        if done
            .as_ref()
            .is_err_and(|error: &Error| fresh && !error.is_retryable())
        {
            self.waiters.forget(claim.id);
        }
        if !call.lost.is_empty() {
            let until = Clock::Boot.now() + claim.ttl.saturating_add(claim.lock_delay);
            let traces = Vec::new();
            let mut doubts = self.doubts();
            let doubt = doubts.entry(claim.id).or_insert(Doubt { traces, until });
            doubt.traces.append(&mut call.lost);
            doubt.until = until;
        }
        let done = done?;
        if !matches!(done.answer, Standing::Waiting(_)) {
            self.waiters.forget(claim.id);
        }
        self.ring(&done.call);
        Ok(done.answer)
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.waiters.forget(claim.id);
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(about("release", &claim.name));
        let done = attempt!(call, Lane::Others, |session| {
            rules::withdraw(dialect, session, claim, how).await
        });
        self.ring(&done.call);
        let answer = match done.answer {
            // An attempt of which no answer came has done it.
            Withdrawn::NotOwner | Withdrawn::Expired if !call.lost.is_empty() => {
                Withdrawn::Released
            }
            answer => answer,
        };
        let Some(doubt) = self.doubts().remove(&claim.id) else {
            return Ok(answer);
        };
        match self
            .settle(about("release", &claim.name), &doubt.traces)
            .await
        {
            // What came of it in the meantime is taken back; then nothing more can come.
            Ok(true) => Ok(attempt!(call, Lane::Others, |session| {
                rules::withdraw(dialect, session, claim, how).await
            })
            .or(answer)),
            Ok(false) | Err(_) if doubt.until > Clock::Boot.now() => {
                self.doubts().insert(claim.id, doubt);
                let cause = "an earlier request may still take effect";
                let action = about("release", &claim.name);
                Err(Error::unavailable(dialect, action, cause))
            }
            _ => Ok(answer),
        }
    }

    /// Makes sure that nothing more comes of these connections.
    async fn settle(&self, action: impl Into<String>, traces: &[String]) -> Result<bool> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(action);
        Ok(attempt!(call, Lane::Others, |session| {
            let mut settled = Ok(true);
            for trace in traces {
                settled = dialect.lay_to_rest(session, trace).await;
                if !matches!(settled, Ok(true)) {
                    break;
                }
            }
            settled
        }))
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let Some(waiter) = self.waiters.of(claim.id) else {
            return Ok(None);
        };
        let dialect = &self.pool.dialect;
        loop {
            let nap = waiter.next_nap();
            let wake_at = match dialect.rings() {
                true => place.recheck,
                false => (Clock::Boot.now() + jitter(nap)).min(place.recheck),
            };
            tokio::select! {
                () = waiter.rung() => {
                    let granted = waiter.granted(claim);
                    if granted.is_some() {
                        self.waiters.forget(claim.id);
                    }
                    return Ok(granted);
                }
                () = Clock::Boot.sleep_until(wake_at) => {}
            }
            if wake_at == place.recheck {
                return Ok(None);
            }
            let mut call = self.pool.call(about("look at", &claim.name));
            let version = attempt!(call, Lane::Others, |session| {
                dialect.version(session, &claim.name).await
            });
            if version != Some(waiter.version()) {
                waiter.stir(place);
                return Ok(None);
            }
        }
    }

    fn doubts(&self) -> MutexGuard<'_, HashMap<ClaimId, Doubt>> {
        // Each change is a single call to the map.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Result<Vec<Renewal>> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call("renew holds");
        let (renewed, asked_at) = attempt!(call, Lane::Renewals, |session| {
            let asked_at = Clock::Boot.now();
            let renewed = dialect.renew(session, held).await;
            renewed.map(|renewed| (renewed, asked_at))
        });
        // One that was asked before, and may still arrive, must not be the last.
        if !call.lost.is_empty() && !self.settle("renew holds", &call.lost).await? {
            let cause = "an earlier request may still take effect";
            return Err(Error::unavailable(dialect, "renew holds", cause));
        }
        let renewals = held
            .iter()
            .zip(renewed)
            .map(|(held, renewed)| match renewed {
                None => Renewal::Lost,
                Some(asked) => Renewal::Kept {
                    counted_from: asked_at,
                    lease: held.claim.ttl,
                    asked,
                },
            });
        Ok(renewals.collect())
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(about("look at", name));
        Ok(attempt!(call, Lane::Others, |session| {
            dialect.look(session, name).await
        }))
    }
}

#[async_trait]
impl<D: Dialect> Engine for Server<D> {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.shared.place(claim).await
    }

    /// Rung by whoever ends a hold in this process, and by others where the database passes it on, with the grant; asks by
    /// itself with growing, random naps as well.
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.shared.wait(claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(held.len());
        for part in held.chunks(RENEWED_AT_ONCE) {
            match self.shared.renew(part).await {
                Ok(renewed) => renewals.extend(renewed),
                Err(error) => {
                    // The others would wait as long again, and validity does not.
                    let rest = held.len() - renewals.len();
                    let store = &self.shared.pool.dialect;
                    renewals.extend(crate::unknown(store, error, rest));
                    break;
                }
            }
        }
        renewals
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.shared.withdraw(claim, how).await
    }

    /// What is done to a hold by this engine is told at once; by others, as the database passes it on, or with the next
    /// renewal.
    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.pool.close();
        Ok(())
    }
}

#[async_trait]
impl<D: Dialect> Inspect for Server<D> {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.shared.look(name).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let mut nap = FIRST_NAP;
        loop {
            let view = self.shared.look(name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            tokio::time::sleep(jitter(nap)).await;
            nap = longer(nap);
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let dialect = &self.shared.pool.dialect;
        let mut call = self.shared.pool.call("list locks");
        Ok(attempt!(call, Lane::Others, |session| {
            dialect.list(session, prefix, at.as_ref(), limit).await
        }))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.shared.check_writes("an eviction")?;
        let dialect = &self.shared.pool.dialect;
        let what = match how {
            Evict::Release => "take away",
            Evict::Ask => "ask for",
        };
        let mut call = self.shared.pool.call(about(what, name));
        let done = attempt!(call, Lane::Others, |session| {
            rules::evict(dialect, session, name, token, how).await
        });
        self.shared.ring(&done.call);
        if let Some(event) = done.answer {
            // Nobody listens once the engine is dropped.
            let _ = self.shared.tell.send(event);
        }
        Ok(done.answer.is_some())
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.shared.pool.dialect.findings().await
    }
}

impl<D: Dialect> Drop for Server<D> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl<D: Dialect> fmt::Display for Server<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.shared.pool.dialect, f)
    }
}

impl<D: Dialect> fmt::Debug for Server<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shared.pool.dialect, f)
    }
}

/// What these requests may still have done is over, whether or not a withdrawal ever succeeds.
fn forget_old(doubts: &mut HashMap<ClaimId, Doubt>, now: BootInstant) {
    doubts.retain(|_, doubt| doubt.until > now);
    doubts.shrink_to_fit();
}

fn about(what: &str, name: &LockName) -> String {
    format!("{what} lock {name}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn doubts_are_kept_no_longer_than_they_matter() {
        let ids = fencelock_core::ClaimIds::new().unwrap();
        let now = Clock::Boot.now();
        let doubt = |until| Doubt {
            traces: vec!["1 here".into()],
            until,
        };
        let (old, new) = (ids.next(), ids.next());
        let later = now + Duration::from_secs(1);
        let mut doubts = HashMap::from([(old, doubt(now)), (new, doubt(later))]);
        forget_old(&mut doubts, now);
        assert!(!doubts.contains_key(&old) && doubts.contains_key(&new));
    }
}
