//! A few connections for all calls of an engine, and what to do when one of them fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::dialect::{Dialect, Trouble};

/// A connection that nobody has used for so long is made anew: the server, or something on the way to it, may have
/// forgotten it.
const STALE: Duration = Duration::from_secs(60);

/// The connections of one engine.
pub(super) struct Pool<D: Dialect> {
    pub(super) dialect: D,
    pub(super) response_timeout: Duration,
    idle: Mutex<Idle<D::Session>>,
    /// One connection is kept for renewals, which must not stand behind a thousand other calls.
    others: Semaphore,
    renewals: Semaphore,
    /// When the server answered last, in nanoseconds.
    answered: AtomicU64,
    closed: std::sync::atomic::AtomicBool,
}

struct Idle<S> {
    sessions: Vec<(BootInstant, S)>,
    /// Counted up when all that were made before are not to be used again.
    generation: u64,
}

/// Who may use which connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Renewals,
    Others,
}

/// One call: what it does, and until when it may.
pub(super) struct Call<'a, D: Dialect> {
    pool: &'a Pool<D>,
    action: String,
    deadline: BootInstant,
    /// Tables are made once, not again and again.
    made_schema: bool,
    /// The lost connections over which something was sent of which nobody knows what became.
    pub(super) lost: Vec<String>,
}

/// A connection in use. Dropped without [`Loan::give_back`] it is ended: nobody knows what it is in the middle of.
pub(super) struct Loan<'a, D: Dialect> {
    pool: &'a Pool<D>,
    session: Option<D::Session>,
    generation: u64,
    _permit: SemaphorePermit<'a>,
}

impl<D: Dialect> Pool<D> {
    pub(super) fn new(dialect: D, response_timeout: Duration, connections: usize) -> Self {
        Self {
            dialect,
            response_timeout,
            idle: Mutex::new(Idle {
                sessions: Vec::new(),
                generation: 0,
            }),
            others: Semaphore::new(connections.saturating_sub(1).max(1)),
            renewals: Semaphore::new(1),
            answered: AtomicU64::new(0),
            closed: false.into(),
        }
    }

    /// Takes in the first connection.
    pub(super) fn put(&self, session: D::Session) {
        let now = self.hear();
        self.idle().sessions.push((now, session));
    }

    /// A call that may take one response timeout from now.
    pub(super) fn call(&self, action: impl Into<String>) -> Call<'_, D> {
        Call {
            pool: self,
            action: action.into(),
            deadline: Clock::Boot.now() + self.response_timeout,
            made_schema: false,
            lost: Vec::new(),
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.others.close();
        self.renewals.close();
        self.drop_idle();
    }

    fn idle(&self) -> MutexGuard<'_, Idle<D::Session>> {
        // No code under this lock can panic halfway.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_idle(&self) {
        let sessions = {
            let mut idle = self.idle();
            idle.generation += 1;
            std::mem::take(&mut idle.sessions)
        };
        for (_, session) in sessions {
            self.dialect.disconnect(session);
        }
    }

    fn hear(&self) -> BootInstant {
        let now = Clock::Boot.now();
        self.answered.store(now.as_nanos(), Ordering::SeqCst);
        now
    }
}

impl<'a, D: Dialect> Call<'a, D> {
    /// A connection, as soon as one is free. While the server answers others, their calls do not count against this one.
    pub(super) async fn loan(&mut self, lane: Lane) -> Result<Loan<'a, D>> {
        let permits = match lane {
            Lane::Renewals => &self.pool.renewals,
            Lane::Others => &self.pool.others,
        };
        let permit = match permits.try_acquire() {
            Ok(permit) => permit,
            Err(tokio::sync::TryAcquireError::Closed) => return Err(Error::Closed),
            Err(tokio::sync::TryAcquireError::NoPermits) => {
                let permit = self.queue(permits).await?;
                self.deadline = Clock::Boot.now() + self.pool.response_timeout;
                permit
            }
        };
        let fresh = Clock::Boot.now();
        let (taken, generation) = {
            let mut idle = self.pool.idle();
            (idle.sessions.pop(), idle.generation)
        };
        let session = match taken {
            Some((used, session)) if fresh.since(used) < STALE => session,
            stale => {
                if let Some((_, session)) = stale {
                    self.pool.dialect.disconnect(session);
                }
                let Some(connected) = self.within(self.pool.dialect.connect()).await else {
                    return Err(self.silence());
                };
                self.pool.hear();
                connected?
            }
        };
        Ok(Loan {
            pool: self.pool,
            session: Some(session),
            generation,
            _permit: permit,
        })
    }

    async fn queue(&self, permits: &'a Semaphore) -> Result<SemaphorePermit<'a>> {
        let timeout = self.pool.response_timeout;
        let acquire = permits.acquire();
        tokio::pin!(acquire);
        loop {
            match tokio::time::timeout(timeout, &mut acquire).await {
                Ok(permit) => return permit.map_err(|_| Error::Closed),
                Err(_) => {
                    let answered = self.pool.answered.load(Ordering::SeqCst);
                    let silent = Clock::Boot.now().since(BootInstant::from_nanos(answered));
                    if silent >= timeout {
                        return Err(self.silence());
                    }
                }
            }
        }
    }

    /// What `future` comes to before the deadline.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = future => Some(done),
            () = Clock::Boot.sleep_until(self.deadline) => None,
        }
    }

    /// Whether to try again after this; the error if not. The connection is given back, mended or ended.
    pub(super) async fn judge(
        &mut self,
        mut loan: Loan<'_, D>,
        trouble: Trouble,
    ) -> Result<(), Error> {
        if let (Trouble::Gone(_) | Trouble::Silent, Some(session)) = (&trouble, &loan.session) {
            self.lost.push(self.pool.dialect.trace(session));
        }
        let cause = match trouble {
            Trouble::Told(error) => {
                loan.give_back();
                return Err(error);
            }
            Trouble::Again(cause) => {
                loan.give_back();
                // Those who got in each other's way do not try again in step.
                tokio::time::sleep(Duration::from_micros(fastrand::u64(200..5000))).await;
                cause
            }
            Trouble::NoSchema(cause) if !self.made_schema => {
                self.made_schema = true;
                let made = match loan.session.as_mut() {
                    Some(session) => {
                        let made = self.pool.dialect.make_schema(session);
                        self.within(made).await.unwrap_or(Err(Trouble::Silent))
                    }
                    None => Err(Trouble::Silent),
                };
                match made {
                    // The other connections count on a counter of tokens that is no more.
                    Ok(()) => drop(loan),
                    Err(Trouble::Told(error)) => return Err(error),
                    Err(_) => {}
                }
                self.pool.drop_idle();
                cause
            }
            Trouble::Gone(cause) | Trouble::Moved(cause) | Trouble::NoSchema(cause) => {
                drop(loan);
                self.pool.drop_idle();
                cause
            }
            Trouble::Silent => return Err(self.silence()),
        };
        if self.pool.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        if Clock::Boot.now() >= self.deadline {
            return Err(Error::unavailable(&self.pool.dialect, &self.action, cause));
        }
        Ok(())
    }

    fn silence(&self) -> Error {
        let cause = format!("no answer within {:?}", self.pool.response_timeout);
        Error::unavailable(&self.pool.dialect, &self.action, cause)
    }
}

impl<D: Dialect> Loan<'_, D> {
    /// The connection. `None` never happens: it is there until the loan ends.
    pub(super) fn session(&mut self) -> Result<&mut D::Session, Trouble> {
        self.session.as_mut().ok_or(Trouble::Silent)
    }

    /// The connection is good for others.
    pub(super) fn give_back(mut self) {
        let now = self.pool.hear();
        let Some(session) = self.session.take() else {
            return;
        };
        let mut idle = self.pool.idle();
        let current = idle.generation == self.generation;
        if current && !self.pool.closed.load(Ordering::SeqCst) {
            idle.sessions.push((now, session));
        } else {
            drop(idle);
            self.pool.dialect.disconnect(session);
        }
    }
}

impl<D: Dialect> Drop for Loan<'_, D> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.pool.dialect.disconnect(session);
        }
    }
}

impl<D: Dialect> Drop for Pool<D> {
    fn drop(&mut self) {
        self.drop_idle();
    }
}

/// Runs `$work`, which is a `Result<_, Trouble>`, on a connection; again on another if that may help.
macro_rules! attempt {
    ($call:expr, $lane:expr, |$session:ident| $work:expr) => {{
        let call = &mut $call;
        loop {
            let mut loan = call.loan($lane).await?;
            let done = {
                let $session = loan.session();
                let work = async {
                    let $session = $session?;
                    $work
                };
                let done = call.within(work).await;
                done.unwrap_or(Err($crate::server::dialect::Trouble::Silent))
            };
            match done {
                Ok(done) => {
                    loan.give_back();
                    break done;
                }
                Err(trouble) => call.judge(loan, trouble).await?,
            }
        }
    }};
}
pub(super) use attempt;
