//! A few connections for all calls of an engine, and what to do when one of them fails.

use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::dialect::Dialect;
use super::error::Failure;

/// A connection that was idle for this long is replaced: the server, or a device on the way, may have dropped it.
const STALE: Duration = Duration::from_secs(60);

pub(super) struct Pool<D: Dialect> {
    pub(super) dialect: D,
    pub(super) response_timeout: Duration,
    idle: Mutex<Idle<D::Session>>,
    /// One connection is kept for renewals, which must not queue behind a thousand other calls.
    others: Semaphore,
    renewals: Semaphore,
    /// When the server answered last, in nanoseconds.
    answered: AtomicU64,
    closed: std::sync::atomic::AtomicBool,
}

struct Idle<S> {
    sessions: Vec<(BootInstant, S)>,
    /// Incremented when earlier connections must not be used again.
    generation: u64,
}

/// Which connections a call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Renewals,
    Others,
}

/// One call, and its deadline.
pub(super) struct Call<'a, D: Dialect> {
    pool: &'a Pool<D>,
    action: String,
    deadline: BootInstant,
    /// Whether this call has created missing tables, which it does at most once.
    created_tables: bool,
    /// The lost connections that carried requests of unknown outcome.
    pub(super) lost: Vec<String>,
}

/// A connection in use. A drop without [`Loan::give_back`] ends it: a request may be under way on it.
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

    /// Adds the first connection.
    pub(super) fn put(&self, session: D::Session) {
        let now = self.note_answer();
        self.idle.lock().sessions.push((now, session));
    }

    /// A call that may take one response timeout from now.
    pub(super) fn call(&self, action: impl Into<String>) -> Call<'_, D> {
        Call {
            pool: self,
            action: action.into(),
            deadline: Clock::Boot.now() + self.response_timeout,
            created_tables: false,
            lost: Vec::new(),
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.others.close();
        self.renewals.close();
        self.drop_idle();
    }

    fn drop_idle(&self) {
        let sessions = {
            let mut idle = self.idle.lock();
            idle.generation += 1;
            std::mem::take(&mut idle.sessions)
        };
        for (_, session) in sessions {
            self.dialect.disconnect(session);
        }
    }

    /// Ends the idle connections that have had no answer since. A device on the way may have dropped all of them without a word;
    /// then each would cost a call its whole time.
    fn drop_idle_since(&self, since: BootInstant) {
        let dropped: Vec<_> = {
            let mut idle = self.idle.lock();
            idle.sessions
                .extract_if(.., |(used, _)| *used < since)
                .collect()
        };
        for (_, session) in dropped {
            self.dialect.disconnect(session);
        }
    }

    fn note_answer(&self) -> BootInstant {
        let now = Clock::Boot.now();
        self.answered.store(now.as_nanos(), Ordering::SeqCst);
        now
    }
}

impl<'a, D: Dialect> Call<'a, D> {
    /// A connection, as soon as one is free. While the server answers other calls, the wait for a connection is not limited.
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
        let now = Clock::Boot.now();
        let (taken, generation) = {
            let mut idle = self.pool.idle.lock();
            (idle.sessions.pop(), idle.generation)
        };
        let session = match taken {
            Some((used, session)) if now.since(used) < STALE => session,
            stale => {
                if let Some((_, session)) = stale {
                    self.pool.dialect.disconnect(session);
                }
                let Some(connected) = self.within(self.pool.dialect.connect()).await else {
                    return Err(self.no_answer());
                };
                self.pool.note_answer();
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
                        return Err(self.no_answer());
                    }
                }
            }
        }
    }

    /// The output of `future`, or `None` after the deadline.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = future => Some(done),
            () = Clock::Boot.sleep_until(self.deadline) => None,
        }
    }

    /// Returns if the call may be tried again, or the error. Gives the connection back, or ends it.
    pub(super) async fn after_failure(
        &mut self,
        mut loan: Loan<'_, D>,
        failure: Failure,
    ) -> Result<(), Error> {
        if let (Failure::Disconnected(_) | Failure::NoAnswer, Some(session)) =
            (&failure, &loan.session)
        {
            self.lost.push(self.pool.dialect.connection_id(session));
        }
        let cause = match failure {
            Failure::Final(error) => {
                loan.give_back();
                return Err(error);
            }
            Failure::Conflict(cause) => {
                loan.give_back();
                // Random, so that the two do not conflict again.
                tokio::time::sleep(Duration::from_micros(fastrand::u64(200..5000))).await;
                cause
            }
            Failure::NoTables(cause) if !self.created_tables => {
                self.created_tables = true;
                let made = match loan.session.as_mut() {
                    Some(session) => {
                        let made = self.pool.dialect.create_tables(session);
                        self.within(made).await.unwrap_or(Err(Failure::NoAnswer))
                    }
                    None => Err(Failure::NoAnswer),
                };
                match made {
                    // The other connections rely on a token counter that was lost.
                    Ok(()) => drop(loan),
                    Err(Failure::Final(error)) => return Err(error),
                    Err(_) => {}
                }
                self.pool.drop_idle();
                cause
            }
            Failure::Disconnected(cause) | Failure::ReadOnly(cause) | Failure::NoTables(cause) => {
                drop(loan);
                self.pool.drop_idle();
                cause
            }
            Failure::NoAnswer => {
                self.pool.drop_idle_since(self.begun());
                return Err(self.no_answer());
            }
        };
        if self.pool.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        if Clock::Boot.now() >= self.deadline {
            return Err(Error::unavailable(&self.pool.dialect, &self.action, cause));
        }
        Ok(())
    }

    /// When its time began.
    fn begun(&self) -> BootInstant {
        let timeout = self.pool.response_timeout.as_nanos();
        let timeout = u64::try_from(timeout).unwrap_or(u64::MAX);
        BootInstant::from_nanos(self.deadline.as_nanos().saturating_sub(timeout))
    }

    fn no_answer(&self) -> Error {
        let cause = format!("no answer within {:?}", self.pool.response_timeout);
        Error::unavailable(&self.pool.dialect, &self.action, cause)
    }
}

impl<D: Dialect> Loan<'_, D> {
    /// The connection. It exists until the loan ends.
    pub(super) fn session(&mut self) -> Result<&mut D::Session, Failure> {
        self.session.as_mut().ok_or(Failure::NoAnswer)
    }

    /// Returns the connection for other calls to use.
    pub(super) fn give_back(mut self) {
        let now = self.pool.note_answer();
        let Some(session) = self.session.take() else {
            return;
        };
        let mut idle = self.pool.idle.lock();
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

/// Runs `$work`, a `Result<_, Failure>`, on a connection, and again on another one if that may help.
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
                done.unwrap_or(Err($crate::server::error::Failure::NoAnswer))
            };
            match done {
                Ok(done) => {
                    loan.give_back();
                    break done;
                }
                Err(failure) => call.after_failure(loan, failure).await?,
            }
        }
    }};
}
pub(super) use attempt;
