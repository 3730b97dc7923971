//! Takes a lock, or a place in the database's queue.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Token};
use tokio::time::timeout;

use super::control::on_control;
use super::dialect::Dialect;
use super::entry::{Entry, Hold};
use super::pool::PooledSession;
use super::queue::Permit;
use super::state::State;

/// How often a waiting claim checks that its connection is still open.
const RECHECK: Duration = Duration::from_secs(5);

impl<D: Dialect> State<D> {
    pub(super) async fn place(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &mut Entry<D>,
    ) -> Result<Standing> {
        match std::mem::take(entry) {
            Entry::Empty => {}
            Entry::Holding(hold) if !hold.conn.signal.is_closed() => {
                return self.prolong(claim, entry, hold).await;
            }
            Entry::Holding(hold) => {
                *entry = Entry::given_up(self.session_id(&hold.conn), claim, false);
            }
            given_up @ Entry::GivenUp { .. } => *entry = given_up,
            Entry::Queued(ticket) => match ticket.take() {
                Some(permit) => return self.acquire(claim, entry, permit?).await,
                None => {
                    *entry = Entry::Queued(ticket);
                    return Ok(waiting_until_recheck());
                }
            },
            Entry::Waiting(waiting) => match waiting.take() {
                Some(Ok(hold)) => return self.prolong(claim, entry, hold).await,
                Some(Err(error)) => {
                    *entry = Entry::given_up(waiting.record.session, claim, false);
                    return Err(error);
                }
                None => {
                    let session = waiting.record.session.clone();
                    if !waiting.recorded {
                        self.record_later(claim);
                    }
                    *entry = Entry::Waiting(waiting);
                    if on_control!(self.control, "waiting for a lock", is_open(&session))? {
                        return Ok(waiting_until_recheck());
                    }
                    *entry = Entry::given_up(session, claim, false);
                }
            },
        }
        self.end_given_up(entry).await?;
        let permit = match self.pool.try_permit()? {
            Some(permit) => permit,
            None if claim.wait => {
                *entry = Entry::Queued(Arc::new(self.pool.ticket()));
                return Ok(waiting_until_recheck());
            }
            None => match timeout(self.settings.response_timeout, self.pool.permit()).await {
                Ok(permit) => permit?,
                Err(_) => return Err(self.too_many(claim)),
            },
        };
        self.acquire(claim, entry, permit).await
    }

    /// Takes the lock, or a place in the database's queue.
    async fn acquire(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &mut Entry<D>,
        permit: Permit,
    ) -> Result<Standing> {
        let action = format!("taking lock {}", claim.name);
        let mut conn = self.pool.get(permit).await?;
        loop {
            let asked_at = Clock::Boot.now();
            let (dialect, session) = (&self.dialect, &mut conn.session);
            let acquired = async {
                if claim.floor > Token(0) {
                    dialect.raise_tokens(session, claim.floor).await?;
                }
                dialect.try_acquire(session, claim, claim.ttl).await
            };
            match self.within(&action, acquired).await {
                Ok(Some(tokens)) => {
                    let mut hold = Hold::new(conn, claim, tokens);
                    // The lease counts from the last request at the latest, and a slow network may have used up a part of it.
                    let asked_at = match Clock::Boot.now().since(asked_at) < claim.ttl / 8 {
                        true => asked_at,
                        false => self.keep_alive(&mut hold, claim).await.unwrap_or(asked_at),
                    };
                    return self.hold(claim, entry, hold, asked_at).await;
                }
                Ok(None) if claim.wait => {
                    *entry = self.wait(claim, conn);
                    return Ok(waiting_until_recheck());
                }
                Ok(None) => {
                    self.pool.put_back(conn);
                    return Ok(Standing::Busy);
                }
                Err(error) => conn = self.after_failure(claim, entry, conn, error).await?,
            }
        }
    }

    /// Replaces a failed connection if it had probably ended in the pool. Otherwise returns the error.
    async fn after_failure(
        &self,
        claim: &Claim,
        entry: &mut Entry<D>,
        conn: PooledSession<D>,
        error: Error,
    ) -> Result<PooledSession<D>> {
        // The connection may also have ended just now, and the server may not have noticed it.
        *entry = Entry::given_up(self.session_id(&conn), claim, false);
        let ended_in_pool = conn.used_before && conn.signal.is_closed();
        if !ended_in_pool || !matches!(error, Error::Unavailable { .. }) {
            return Err(error);
        }
        self.end_given_up(entry).await?;
        self.pool.replace(conn).await
    }

    fn too_many(&self, claim: &Claim) -> Error {
        let action = format!("taking lock {}", claim.name);
        let most = self.settings.connections;
        let why = format!(
            "all {most} connections of this process hold or wait; raise max-connections in the store's URL"
        );
        Error::unavailable(&*self.dialect, action, why)
    }

    /// Notes that the claim holds. The lease counts from `asked_at`.
    async fn hold(
        &self,
        claim: &Claim,
        entry: &mut Entry<D>,
        mut hold: Box<Hold<D>>,
        asked_at: BootInstant,
    ) -> Result<Standing> {
        let id = self.session_id(&hold.conn);
        let ended = || {
            let why = "the connection ended as it got the lock; ask again";
            let action = format!("taking lock {}", claim.name);
            Error::unavailable(&*self.dialect, action, why)
        };
        if !hold.conn.signal.bind(claim.id) {
            *entry = Entry::given_up(id, claim, false);
            return Err(ended());
        }
        let mut recorded = Ok(Vec::new());
        if claim.record {
            let record = hold.record(id.clone(), claim, hold.tokens.first);
            let records = std::slice::from_ref(&record);
            hold.listed = true;
            recorded = self.control.record(records, &[]).await;
            if recorded.is_ok() {
                hold.recorded = Some(record);
            }
            // The core does not know the hold yet, so it did not hear that this ended it.
            if hold.conn.signal.is_closed() {
                *entry = Entry::given_up(id, claim, false);
                return Err(ended());
            }
        } else {
            self.record_later(claim);
        }
        let grant = Grant::new(hold.tokens, asked_at, claim.ttl).recorded(hold.recorded.is_some());
        *entry = Entry::Holding(hold);
        recorded.map(|_| Standing::Held(grant))
    }

    /// Prolongs a claim that holds and is placed again, or changes its mode.
    async fn prolong(
        &self,
        claim: &Claim,
        entry: &mut Entry<D>,
        mut hold: Box<Hold<D>>,
    ) -> Result<Standing> {
        let renewed = match (hold.mode == claim.mode, hold.mode) {
            (true, _) => {
                let claim = hold.no_shorter(claim);
                self.keep_alive(&mut hold, &claim).await
            }
            (false, Mode::Exclusive) => self.downgrade(&mut hold, claim).await,
            (false, held) => Err(Error::stronger_mode(&*self.dialect, held)),
        };
        match renewed {
            Ok(asked_at) => self.hold(claim, entry, hold, asked_at).await,
            Err(error) => {
                *entry = Entry::Holding(hold);
                Err(error)
            }
        }
    }

    async fn downgrade(&self, hold: &mut Hold<D>, claim: &Claim) -> Result<BootInstant> {
        let asked_at = Clock::Boot.now();
        let action = format!("downgrading lock {}", claim.name);
        let downgraded = self.dialect.downgrade(&mut hold.conn.session, claim);
        hold.tokens = self.within(&action, downgraded).await?;
        hold.mode = claim.mode;
        Ok(asked_at)
    }
}

fn waiting_until_recheck() -> Standing {
    Standing::Waiting(Place::new(Clock::Boot.now() + RECHECK))
}
