//! Waits in the server, in the background.

use std::sync::Arc;

use fencelock_core::engine::Claim;
use fencelock_core::{Clock, Result, Token, Tokens};

use super::dialect::{Dialect, Record, SessionId};
use super::entry::{Entry, Hold, Outcome, Task, Waiting};
use super::pool::PooledSession;
use super::state::{CLAIM_WINDOW, State};

impl<D: Dialect> State<D> {
    /// Begins to wait for a lock that another claim holds.
    pub(super) fn wait(self: &Arc<Self>, claim: &Claim, conn: PooledSession<D>) -> Entry<D> {
        let record = waiter(claim, self.session_id(&conn));
        let outcome = Arc::new(Outcome::default());
        let (state, waits) = (Arc::clone(self), claim.clone());
        let finishing = Arc::clone(&outcome);
        let task = Task(tokio::spawn(async move {
            finishing.finish(state.wait_through(&waits, conn).await);
        }));
        self.record_later(claim);
        Entry::Waiting(Waiting {
            task,
            outcome,
            record,
            listed: false,
            recorded: false,
        })
    }

    async fn wait_through(
        &self,
        claim: &Claim,
        mut conn: PooledSession<D>,
    ) -> Result<Box<Hold<D>>> {
        let acquired = self.dialect.acquire(&mut conn.session, claim, CLAIM_WINDOW);
        let tokens = acquired.await?;
        Ok(Hold::new(conn, claim, tokens))
    }
}

/// The record of a waiter, for `look`.
fn waiter(claim: &Claim, session: SessionId) -> Record {
    Record {
        claim: claim.id,
        name: claim.name.clone(),
        mode: claim.mode,
        tokens: Tokens::new(Token(0), 0),
        token: Token(0),
        owner: Arc::clone(&claim.owner),
        label: claim.label.clone(),
        ttl: claim.ttl,
        since: Clock::Boot.now(),
        session,
    }
}
