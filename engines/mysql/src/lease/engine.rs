//! The requests that the lease engine makes.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, HeldClaim, LockView, Record, RecordChange};
use fencelock_core::{
    ClaimId, Durability, Finding, Floor, LockName, Mode, Promises, Result, Token, Tokens, Wake,
};
use fencelock_sql::lease::{CLAIM_WINDOW, Waiter};
use fencelock_sql::server::{DbInstant, Dialect, Message, Queued, Snapshot, Write, Written};

use super::connection::{Leases, Session, Tried};
use super::stored::name;
use crate::connection::hang_up;
use crate::diagnose;
use crate::request::Request;
use crate::server::ServerInfo;

#[async_trait]
impl Dialect for Leases {
    type Session = Session;

    async fn connect(&self) -> Result<Session> {
        self.open_session().await
    }

    fn disconnect(&self, session: Session) {
        hang_up(session.conn);
    }

    fn promises(&self) -> Promises {
        let info = self.info.lock();
        let info = info.as_ref();
        let mut limits = info.map(ServerInfo::limits).unwrap_or_default();
        if self.config.hosts.len() > 1 {
            let what = "a promoted replica may have missed the last grants: it may grant a lock that is held (with a higher \
                       token)";
            let change = "use semi-synchronous replication, or fence the resource by the token";
            limits.push(Finding::against_correctness(what, change));
        }
        Promises::full(
            "mysql",
            "the database's clock does not jump forward by more than the rest of a lease",
        )
        .record(true)
        .floor(Floor::Store)
        .durability(info.map_or(Durability::Process, ServerInfo::durability))
        .claim_window(CLAIM_WINDOW)
        .wake(match self.ears.work() {
            true => Wake::Push,
            false => Wake::Poll,
        })
        .limits(limits)
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.config, &self.tables).await
    }

    async fn create_tables(&self, session: &mut Session) -> Tried<()> {
        self.create_missing_tables(session).await
    }

    async fn lift_tokens(&self, session: &mut Session) -> Tried<()> {
        self.lift_tokens_to(session, "COMMIT").await
    }

    fn token_floor(&self, session: &Session) -> Token {
        session.floor
    }

    fn saw_token(&self, session: &mut Session, token: Token) {
        session.floor = session.floor.max(token);
    }

    fn inspect_only(&self) -> bool {
        self.config.inspect_only
    }

    async fn acquire_free(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        self.lift_tokens_if_due(session).await?;
        match claim.mode {
            Mode::Exclusive => self.acquire_exclusive(session, claim).await,
            Mode::Shared | Mode::Permit { .. } => self.acquire_beside(session, claim).await,
        }
    }

    async fn enqueue(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Queued>> {
        self.queue(session, claim).await
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        self.release_hold(session, claim).await
    }

    async fn read(&self, session: &mut Session, of: &LockName) -> Tried<Option<Snapshot>> {
        self.snapshot(session, of).await
    }

    async fn version(&self, session: &mut Session, of: &LockName) -> Tried<Option<u64>> {
        let (locks, of) = (&self.tables.locks, name(of));
        let request = Request::of(format!("SELECT version FROM {locks} WHERE name = {of}"));
        let answers = self.run(session, &request).await?;
        Ok(answers[0].rows.first().and_then(|row| row.get(0)))
    }

    async fn write(&self, session: &mut Session, write: &Write<'_>) -> Tried<Written> {
        self.write_change(session, write).await
    }

    fn hears(&self, waiter: &Waiter<DbInstant>) -> bool {
        self.hears_of(waiter)
    }

    async fn keep_place(
        &self,
        session: &mut Session,
        claim: &Claim,
        ticket: i64,
        time: Duration,
    ) -> Tried<bool> {
        self.move_ear(session, claim, ticket, time).await
    }

    async fn renew(&self, session: &mut Session, held: &[HeldClaim]) -> Tried<Vec<Option<bool>>> {
        self.renew_all(session, held).await
    }

    async fn prolong(&self, session: &mut Session, claim: &Claim, first: Token) -> Tried<bool> {
        self.prolong_hold(session, claim, first).await
    }

    async fn views(&self, session: &mut Session, names: &[LockName]) -> Tried<Vec<LockView>> {
        self.views_of(session, names).await
    }

    async fn held_names(
        &self,
        session: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Tried<Vec<String>> {
        self.names(session, prefix, after, limit).await
    }

    fn connection_id(&self, session: &Session) -> String {
        session.id.clone()
    }

    async fn end_connection(&self, session: &mut Session, id: &str) -> Tried<bool> {
        self.end(session, id).await
    }

    async fn expired(&self, session: &mut Session) -> Tried<Vec<LockName>> {
        self.remove_lone_ears(session).await?;
        self.expired_names(session).await
    }

    async fn record(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Tried<Record> {
        self.record_of(session, scope, change).await
    }

    fn await_turn(&self, claim: &Claim) {
        if self.ears.work() {
            self.ears.listener.add(claim);
        }
    }

    fn leave_queue(&self, claim: ClaimId) {
        self.ears.listener.remove(claim);
    }

    fn is_listening(&self) -> bool {
        self.ears.listener.is_listening()
    }

    async fn next_message(&self) -> Message {
        self.ears.listener.next_message().await
    }

    async fn finish(&self) {
        self.ears.finish().await;
    }

    fn close(&self) {
        self.ears.close();
    }
}
