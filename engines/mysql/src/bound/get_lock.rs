//! `strategy=get-lock`: locks of the server's own.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{LockName, Tokens};
use fencelock_sql::server::Failure;

use super::connection::{BoundLocks, Session};
use super::get_lock_sql::{ACQUIRE, TAKES_WRITES};
use super::tokens::tokens_from;
use crate::request::{Answer, Request};

impl BoundLocks {
    /// The server's name of a lock.
    pub(super) fn lock_key(&self, session: &Session, name: &LockName) -> String {
        session.key(&self.config.table, "", name.as_str().as_bytes())
    }

    /// Acquires a lock, waiting for `seconds` at most, and draws a token after that.
    pub(super) async fn acquire_lock(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
        seconds: u64,
    ) -> Result<Option<Tokens>, Failure> {
        let key = self.lock_key(session, &claim.name);
        let mut request = session.request(idle);
        let mut acquired = 0;
        if request.is_empty() && seconds == 0 {
            let mut values = vec![key.into(), seconds.into()];
            values.extend(session.section.values());
            request = Request::prepared(Arc::clone(&self.acquire_statement), values);
        } else {
            let acquire = ACQUIRE.replacen('?', &format!("'{key}'"), 1);
            acquired = request.push(acquire.replacen('?', &seconds.to_string(), 1));
            let [origin, base] = session.section.numbers();
            let section = self.section_condition.replacen('?', &origin.to_string(), 1);
            let section = section.replacen('?', &base.to_string(), 1);
            request.push(format!("SELECT {TAKES_WRITES} AND {section}"));
        }
        let answers = session.run(request).await?;
        let number = |answer: &Answer| answer.rows.first()?.get::<Option<u64>, _>(0)?;
        let Some(drawn) = number(&answers[acquired]) else {
            return Ok(None);
        };
        if drawn == 0 || answers.last().and_then(number) == Some(0) {
            let why = "the server takes no writes any more, or the token counter was restarted";
            return Err(session.give_up(why));
        }
        let first = self.token_of(session, drawn).await?;
        Ok(Some(tokens_from(first, claim)))
    }
}
