//! Waits in the server, in the background.

use std::sync::Arc;

use fencelock_core::engine::Claim;
use fencelock_core::{Clock, Result, Token, Tokens};

use super::dialect::{Dialect, Record, SessionId};
use super::entry::{Entry, Hold, Outcome, Task, Waiting};
use super::pool::PooledSession;
use super::state::{CLAIM_WINDOW, State};

impl<D: Dialect> State<D> {
    /// Begins to wait. Without a connection the claim waits for one first.
    pub(super) fn wait(
        self: &Arc<Self>,
        claim: &Claim,
        conn: Option<PooledSession<D>>,
    ) -> Entry<D> {
        let outcome = Arc::new(Outcome::default());
        let (state, claim) = (Arc::clone(self), claim.clone());
        let finishing = Arc::clone(&outcome);
        let task = Task(tokio::spawn(async move {
            let result = state.wait_through(&claim, conn, &finishing).await;
            finishing.finish(result);
        }));
        Entry::Waiting(Waiting { task, outcome })
    }

    async fn wait_through(
        &self,
        claim: &Claim,
        conn: Option<PooledSession<D>>,
        outcome: &Outcome<D>,
    ) -> Result<Box<Hold<D>>> {
        let mut conn = match conn {
            Some(conn) => conn,
            None => self.pool.get().await?,
        };
        let id = self.session_id(&conn);
        outcome.waits_on(id.clone());
        let listed = self.record_waiter(claim, id).await;
        let acquired = self.dialect.acquire(&mut conn.session, claim, CLAIM_WINDOW);
        let tokens = acquired.await?;
        let mut hold = Hold::new(conn, claim, tokens);
        hold.listed = listed;
        Ok(hold)
    }

    /// Records the waiter, for `look`. Returns whether that succeeded; the wait does not depend on it.
    async fn record_waiter(&self, claim: &Claim, session: SessionId) -> bool {
        let none = Tokens::new(Token(0), 0);
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
}
