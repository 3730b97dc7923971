//! The tokens of `for-update`, from AUTO_INCREMENT.

use fencelock_core::engine::Claim;
use fencelock_core::{Clock, Token, Tokens};
use fencelock_sql::lease::MOST_TOKENS;
use fencelock_sql::server::Failure;

use super::connection::{BoundLocks, Session};
use crate::request::{LIFT_EVERY, LIFTED_ID, Request};

impl BoundLocks {
    /// Lifts tokens to the time, and above all that this connection has seen: sixteen for each ten microseconds. The counter is
    /// lifted even if the row is rolled back.
    pub(super) async fn lift_tokens_to(
        &self,
        session: &mut Session,
        end: &str,
    ) -> Result<(), Failure> {
        // Two clients that lift to the same id may deadlock. The server has then rolled one of them back.
        while let Err(failed) = self.lift_tokens_once(session, end).await {
            let Failure::Conflict(_) = failed else {
                return Err(failed);
            };
            session.run(Request::of("ROLLBACK")).await?;
        }
        Ok(())
    }

    async fn lift_tokens_once(&self, session: &mut Session, end: &str) -> Result<(), Failure> {
        let tokens = &self.tables.tokens;
        let lifted = Clock::Boot.now();
        let least = session.floor.get() / u64::from(MOST_TOKENS);
        let mut request = Request::of(format!(
            "SET @fencelock_id = GREATEST({LIFTED_ID}, {least})"
        ));
        request.push("START TRANSACTION");
        request.push(format!(
            "INSERT IGNORE INTO {tokens} (id) VALUES (@fencelock_id)"
        ));
        request.push(format!("DELETE FROM {tokens} WHERE id = @fencelock_id"));
        request.push(end);
        let chosen = request.push("SELECT @fencelock_id");
        let answers = session.run(request).await?;
        let row = answers[chosen].rows.first();
        let id = row.and_then(|row| row.get::<u64, _>(0)).unwrap_or(0);
        let goal = Token(id.saturating_mul(u64::from(MOST_TOKENS)));
        session.floor = session.floor.max(goal);
        session.lifted = lifted;
        Ok(())
    }

    /// Before a draw: an old dump may have been restored.
    pub(super) async fn lift_tokens_if_due(&self, session: &mut Session) -> Result<(), Failure> {
        match Clock::Boot.now().since(session.lifted) >= LIFT_EVERY {
            true => self.lift_tokens_to(session, "ROLLBACK").await,
            false => Ok(()),
        }
    }

    /// Runs a request that begins a transaction, and draws a token at its end. If the statement `row` found a row, the lock was
    /// acquired; otherwise this rolls back, and the token is lost.
    ///
    /// Not INSERT ... SELECT from that row: MariaDB locks the counter of ids for such a statement, so all clients would queue for
    /// it.
    pub(super) async fn draw(
        &self,
        session: &mut Session,
        mut request: Request,
        row: usize,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failure> {
        let tokens = &self.tables.tokens;
        let at = request.push(format!("INSERT INTO {tokens} (id) VALUES (NULL)"));
        let answers = session.run(request).await?;
        let id = answers[at]
            .last_id
            .filter(|_| !answers[row].rows.is_empty());
        let drawn = id.and_then(|id| id.checked_mul(u64::from(MOST_TOKENS)));
        let Some(first) = drawn.map(Token) else {
            session.run(Request::of("ROLLBACK")).await?;
            return Ok(None);
        };
        if first < session.floor {
            // The counter was lost, so its tokens must not be used. The next connection lifts it.
            return Err(session.give_up("the token counter went back; it is lifted again"));
        }
        session.floor = first;
        Ok(Some(tokens_from(first, claim)))
    }
}

/// The tokens of a claim's grant, from the first of sixteen.
pub(super) fn tokens_from(first: Token, claim: &Claim) -> Tokens {
    let count = claim.reserve.clamp(1, MOST_TOKENS);
    Tokens::new(first, count)
}
