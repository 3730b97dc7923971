//! Acquires a lock that has no gate.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{LockName, Token, Tokens};
use fencelock_sql::lease::mode_text;
use fencelock_sql::server::{Queued, first_version, micros};

use super::connection::{Leases, Session, Tried};
use super::stored::{GATE_COLUMNS, count, draws_row, gate_values, insert_holder, tokens};
use crate::ear::number;
use crate::error::is_duplicate;
use crate::request::Request;

impl Leases {
    pub(super) async fn acquire_exclusive(
        &self,
        session: &mut Session,
        claim: &Claim,
    ) -> Tried<Option<Tokens>> {
        let values = vec![
            claim.name.as_str().into(),
            first_version(claim.id).into(),
            claim.id.as_bytes().into(),
            count(claim).into(),
            draws_row(&claim.name).into(),
            micros(claim.ttl.saturating_add(claim.lock_delay)).into(),
            micros(claim.lock_delay).into(),
            (&*claim.owner).into(),
            claim.label.as_deref().into(),
        ];
        let request = Request::prepared(Arc::clone(&self.acquire_statement), values);
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        match ran.await {
            Ok(answers) => Ok(tokens(&answers[0], claim)),
            Err(error) if is_duplicate(&error) => Ok(None),
            Err(error) => Err(self.undo(session, error).await),
        }
    }

    /// Acquires a lock that has no gate for a shared holder or a permit.
    pub(super) async fn acquire_beside(
        &self,
        session: &mut Session,
        claim: &Claim,
    ) -> Tried<Option<Tokens>> {
        let mut request = Request::transaction();
        request.push(self.lock_draws(&claim.name));
        // Not INSERT ... SELECT, which locks the counter of ids while it waits for a row, and so would block other names.
        let gate = request.push(format!(
            "INSERT IGNORE INTO {} {GATE_COLUMNS} VALUES ({})",
            self.tables.locks,
            gate_values(claim, first_version(claim.id))
        ));
        request.push(insert_holder(&self.tables, claim, "ROW_COUNT() = 1"));
        request.commit();
        let answers = self.run(session, &request).await?;
        Ok(tokens(&answers[gate], claim))
    }

    /// One request for a place in the queue, where waiters can be woken and the server prepares compound statements.
    pub(super) async fn queue(
        &self,
        session: &mut Session,
        claim: &Claim,
    ) -> Tried<Option<Queued>> {
        if !session.compounds || !self.ears.work() {
            return Ok(None);
        }
        let values = vec![
            claim.name.as_str().into(),
            claim.id.as_bytes().into(),
            (&*mode_text(claim.mode)).into(),
            (&*claim.owner).into(),
            self.ears.listener.name().into(),
            count(claim).into(),
            claim.label.as_deref().into(),
        ];
        let request = Request::prepared(Arc::clone(&self.enqueue_statement), values);
        let answers = self.run(session, &request).await?;
        let answer = &answers[0];
        let Some(version) = number(answer, 0) else {
            return Ok(None);
        };
        Ok(Some(Queued {
            version,
            drawn: Token(0),
            ahead: number(answer, 1).unwrap_or(0),
            left: number(answer, 2).map(Duration::from_micros),
        }))
    }

    /// Locks the lock's row for draws, until the transaction ends, so that no other client draws a token of this lock.
    pub(super) fn lock_draws(&self, name: &LockName) -> String {
        let draws = &self.tables.draws;
        format!(
            "SELECT zero FROM {draws} WHERE id = {} FOR UPDATE",
            draws_row(name)
        )
    }
}
