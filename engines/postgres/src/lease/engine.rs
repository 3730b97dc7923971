//! The requests that the lease engine makes.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, HeldClaim, LockView, Record, RecordChange};
use fencelock_core::{ClaimId, Finding, LockName, Promises, Result, Token, Tokens};
use fencelock_sql::lease::mode_text;
use fencelock_sql::lease::{CLAIM_WINDOW, Waiter};
use fencelock_sql::server::{
    DbInstant, Dialect, Failure, HANDOFF_WINDOW, Message, Queued, Snapshot, Write, Written,
    first_version,
};

use super::connection::Leases;
use super::statements::{
    END, EXPIRED, HAND_OFF, KEEP_PLACE, LIST, PROLONG, QUEUE, RELEASE, RENEW, TAKE,
};
use super::stored::{count, id, length, promises, tokens, version};
use crate::connection::{Session, Values};
use crate::diagnose;

type Tried<T> = Result<T, Failure>;

#[async_trait]
impl Dialect for Leases {
    type Session = Session;

    async fn connect(&self) -> Result<Session> {
        self.open_session().await
    }

    fn disconnect(&self, session: Session) {
        drop(session);
    }

    fn identity(&self) -> String {
        self.identity_of_tables()
    }

    fn promises(&self) -> Promises {
        let known = self.promises.lock();
        // The promises are not read before the first connection.
        known.clone().unwrap_or_else(|| promises(Vec::new(), false))
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.hosts).await
    }

    async fn create_tables(&self, session: &mut Session) -> Tried<()> {
        self.hosts
            .create_tables(session)
            .await
            .map_err(Failure::Final)?;
        self.lift_tokens(session).await
    }

    async fn lift_tokens(&self, session: &mut Session) -> Tried<()> {
        self.hosts
            .lift_tokens(session)
            .await
            .map_err(Failure::Final)
    }

    fn token_floor(&self, session: &Session) -> Token {
        session.floor
    }

    fn saw_token(&self, session: &mut Session, token: Token) {
        session.floor = session.floor.max(token);
    }

    fn inspect_only(&self) -> bool {
        self.hosts.config.inspect_only
    }

    async fn acquire_free(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        let channel = self.ear.channel();
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &version(first_version(claim.id)),
            &id(claim),
            &&*mode_text(claim.mode),
            &(count(claim) as i32),
            &length(claim.ttl.saturating_add(claim.lock_delay)),
            &length(claim.lock_delay),
            &&*claim.owner,
            &claim.label.as_deref(),
            &&*channel,
        ];
        let rows = self.query(session, "taking a lock", TAKE, values).await?;
        let first = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
        Ok(first.map(|first| tokens(first, claim)))
    }

    async fn enqueue(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Queued>> {
        let channel = self.ear.channel();
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &id(claim),
            &&*mode_text(claim.mode),
            &(count(claim) as i32),
            &length(HANDOFF_WINDOW),
            &length(CLAIM_WINDOW),
            &&*claim.owner,
            &claim.label.as_deref(),
            &&*channel,
        ];
        let rows = self
            .query(session, "waiting for a lock", QUEUE, values)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let number = |at: usize| row.get::<_, Option<i64>>(at).map(i64::unsigned_abs);
        Ok(number(0).map(|version| Queued {
            version,
            ahead: number(1).unwrap_or(0),
            left: number(2).map(Duration::from_micros),
            drawn: Token(number(3).unwrap_or(u64::MAX)),
        }))
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &version(first_version(claim.id)),
            &id(claim),
        ];
        let action = "releasing a lock";
        if self.ear.is_ear() {
            // Other clients are ears, too. The next holder is woken without another round trip.
            let rows = self.query(session, action, HAND_OFF, values).await?;
            return Ok(rows.first().is_some_and(|row| row.get(0)));
        }
        let rows = self.query(session, action, RELEASE, values).await?;
        let Some(row) = rows.first() else {
            return Ok(false);
        };
        let ears: Option<Vec<&str>> = row.get(1);
        self.wake(session, &ears.unwrap_or_default()).await;
        Ok(row.get(0))
    }

    async fn read(&self, session: &mut Session, name: &LockName) -> Tried<Option<Snapshot>> {
        self.snapshot(session, name).await
    }

    async fn version(&self, session: &mut Session, name: &LockName) -> Tried<Option<u64>> {
        const VERSION: &str = "SELECT version FROM fencelock_locks WHERE name = $1";
        let rows = self
            .query(session, "waiting for a lock", VERSION, &[&name.as_str()])
            .await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn write(&self, session: &mut Session, write: &Write<'_>) -> Tried<Written> {
        self.write_change(session, write).await
    }

    fn hears(&self, waiter: &Waiter<DbInstant>) -> bool {
        waiter.address.as_deref() == Some(self.ear.channel().as_bytes())
    }

    async fn keep_place(
        &self,
        session: &mut Session,
        claim: &Claim,
        ticket: i64,
        time: Duration,
    ) -> Tried<bool> {
        let channel = self.ear.channel();
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &ticket,
            &id(claim),
            &length(time),
            &&*channel,
            &&*mode_text(claim.mode),
            &(count(claim) as i32),
        ];
        let rows = self
            .query(session, "keeping a place in the queue", KEEP_PLACE, values)
            .await?;
        Ok(!rows.is_empty())
    }

    async fn renew(&self, session: &mut Session, held: &[HeldClaim]) -> Tried<Vec<Option<bool>>> {
        let claims = || held.iter().map(|held| &held.claim);
        let names: Vec<&str> = claims().map(|claim| claim.name.as_str()).collect();
        let ids: Vec<&[u8]> = claims().map(id).collect();
        let leases: Vec<i64> = claims()
            .map(|claim| length(claim.ttl.saturating_add(claim.lock_delay)))
            .collect();
        let delays: Vec<i64> = claims().map(|claim| length(claim.lock_delay)).collect();
        let tokens: Vec<i64> = held
            .iter()
            .map(|held| i64::try_from(held.token.get()).unwrap_or(i64::MAX))
            .collect();
        let owners: Vec<&str> = claims().map(|claim| &*claim.owner).collect();
        let labels: Vec<Option<&str>> = claims().map(|claim| claim.label.as_deref()).collect();
        let shorten: Vec<bool> = held.iter().map(|held| held.shorten).collect();
        let modes: Vec<_> = claims().map(|claim| mode_text(claim.mode)).collect();
        let modes: Vec<&str> = modes.iter().map(|mode| &**mode).collect();
        let values: Values<'_> = &[
            &names, &ids, &leases, &delays, &tokens, &owners, &labels, &shorten, &modes,
        ];
        let rows = self.query(session, "renewing holds", RENEW, values).await?;
        let kept = |claim: &Claim| {
            let row = rows
                .iter()
                .find(|row| row.get::<_, &[u8]>(0) == id(claim))?;
            Some(row.get(1))
        };
        Ok(claims().map(kept).collect())
    }

    async fn prolong(&self, session: &mut Session, claim: &Claim, first: Token) -> Tried<bool> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &id(claim),
            &i64::try_from(first.get()).unwrap_or(i64::MAX),
            &length(claim.ttl.saturating_add(claim.lock_delay)),
            &length(claim.lock_delay),
        ];
        let rows = self
            .query(session, "prolonging a hold", PROLONG, values)
            .await?;
        Ok(!rows.is_empty())
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
        let values: Values<'_> = &[&prefix, &after, &(limit as i64)];
        let rows = self.query(session, "listing locks", LIST, values).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn expired(&self, session: &mut Session) -> Tried<Vec<LockName>> {
        let rows = self
            .query(session, "looking for what has expired", EXPIRED, &[])
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| LockName::new(row.get(0)).ok())
            .collect())
    }

    async fn record(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Tried<Record> {
        self.record_of(session, scope, change).await
    }

    fn connection_id(&self, session: &Session) -> String {
        session.id.0.clone()
    }

    async fn end_connection(&self, session: &mut Session, id: &str) -> Tried<bool> {
        let parts = id
            .split_once('@')
            .and_then(|(pid, mark)| Some((pid.parse::<i32>().ok()?, mark.parse::<i64>().ok()?)));
        let Some((pid, mark)) = parts else {
            return Ok(false);
        };
        let rows = self
            .query(session, "ending a lost connection", END, &[&pid, &mark])
            .await?;
        Ok(rows.iter().all(|row| row.get(0)))
    }

    fn await_turn(&self, claim: &Claim) {
        self.ear.add(claim.id);
    }

    fn leave_queue(&self, claim: ClaimId) {
        self.ear.remove(claim);
    }

    fn is_listening(&self) -> bool {
        self.ear.is_listening()
    }

    async fn next_message(&self) -> Message {
        self.ear.receive().await
    }
}
