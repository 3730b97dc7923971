//! Takes advisory locks, and draws tokens.

use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{Error, Mode, Result, Token, Tokens};
use fencelock_sql::lease::MOST_TOKENS;

use super::connection::Advisory;
use super::statements::{
    TRY_EXCLUSIVE, TRY_SHARED, UNLOCK_EXCLUSIVE, UNLOCK_SHARED, WAIT_EXCLUSIVE, WAIT_SHARED,
};
use crate::connection::{Session, Values};
use crate::error::is_conflict;

impl Advisory {
    /// Takes the lock, and tries again after conflicts. `None` if the lock is held and the claim does not wait.
    pub(super) async fn take(
        &self,
        session: &mut Session,
        claim: &Claim,
        waits: bool,
        idle: Duration,
    ) -> Result<Option<Tokens>> {
        self.set_idle(session, idle).await?;
        let sql = match (claim.mode, waits) {
            (Mode::Shared, true) => WAIT_SHARED,
            (Mode::Shared, false) => TRY_SHARED,
            (_, true) => WAIT_EXCLUSIVE,
            (_, false) => TRY_EXCLUSIVE,
        };
        loop {
            match self.draw(session, sql, claim).await {
                Ok(taken) => return Ok(taken),
                Err(error) => self.undo(session, error).await?,
            }
        }
    }

    async fn draw(
        &self,
        session: &mut Session,
        sql: &'static str,
        claim: &Claim,
    ) -> Result<Option<Tokens>> {
        let action = format!("taking lock {}", claim.name);
        let rows = session
            .query(&self.hosts, &action, sql, &[&claim.name.as_str()])
            .await?;
        match rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
            Some(first) => self.drawn(session, first, claim).await.map(Some),
            None => Ok(None),
        }
    }

    /// The tokens of a draw, if they are above the floor of this connection.
    async fn drawn(&self, session: &mut Session, first: i64, claim: &Claim) -> Result<Tokens> {
        let tokens = tokens(first, claim.reserve);
        if tokens.first < session.floor {
            // The hold ends with this connection, and the next draw is above the floor.
            self.hosts.lift_tokens(session).await?;
            let why = "the token counter went back, and was lifted again";
            return Err(Error::unavailable(
                self,
                format!("taking lock {}", claim.name),
                why,
            ));
        }
        session.floor = tokens.first;
        Ok(tokens)
    }

    /// Frees the connection of all locks after a conflict, for the next attempt. Returns any other error.
    async fn undo(&self, session: &Session, error: Error) -> Result<()> {
        if !is_conflict(&error) {
            return Err(error);
        }
        // A retry would take a second time what the session took before the error.
        let undo = "SELECT pg_advisory_unlock_all()";
        let undone = session.client.batch_execute(undo).await;
        undone.map_err(|error| self.hosts.error("trying again to take a lock", error))
    }

    pub(super) async fn weaken(&self, session: &mut Session, claim: &Claim) -> Result<Tokens> {
        // Only exclusive holds become weaker.
        self.set_idle(session, claim.ttl).await?;
        // The holder gets this lock ahead of all waiters. An attempt that does not wait would let them go first.
        let tokens = loop {
            let error = match self.draw(session, WAIT_SHARED, claim).await {
                Ok(tokens) => break tokens,
                Err(error) => error,
            };
            // A retry would take a second time what the session may have taken before the error.
            let values: Values<'_> = &[&claim.name.as_str()];
            let action = format!("downgrading lock {}", claim.name);
            session
                .query(&self.hosts, &action, UNLOCK_SHARED, values)
                .await?;
            if !is_conflict(&error) {
                return Err(error);
            }
        };
        let tokens = tokens.ok_or_else(|| {
            self.hosts
                .internal("an exclusive lock does not admit its holder")
        })?;
        let action = format!("downgrading lock {}", claim.name);
        session
            .query(
                &self.hosts,
                &action,
                UNLOCK_EXCLUSIVE,
                &[&claim.name.as_str()],
            )
            .await?;
        Ok(tokens)
    }
}

/// Each draw takes sixteen tokens. The claim gets as many of the first ones as it reserves.
fn tokens(first: i64, reserve: u32) -> Tokens {
    Tokens::new(Token(first.unsigned_abs()), reserve.clamp(1, MOST_TOKENS))
}
