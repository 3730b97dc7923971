use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{self, Claim, Evict, LockView, Page, RecordChange};
use fencelock_core::{
    ClaimId, Durability, Error, Finding, Floor, LeaseKind, LockName, Mode, Promises, Result, Token,
    Tokens, Wake,
};
use fencelock_sql::bound::{CLAIM_WINDOW, CloseSignal, Dialect, Record, SessionId};
use fencelock_sql::{Settings, record_action};

use super::connection::Advisory;
use super::record::{integer, numbers};
use super::statements::{
    DELETE_ENDED, END, HOLDER, IS_OPEN, RELEASE_EXCLUSIVE, RELEASE_SHARED, STRATEGY, UNRECORDED,
};
use crate::connection::{Session, Values};
use crate::diagnose;
use crate::error::{is_conflict, is_missing};
use crate::record::{OF_ADVISORY, record};
use crate::server::limits;

/// The longest idle timeout of PostgreSQL, in ms, is the longest ttl.
const MAX_TTL: Duration = Duration::from_millis(i32::MAX as u64);
const CLOCK: &str = "the server's timers run at about the right rate; its wall clock, to which tokens are raised after a start, is not set back by more than the server was down";

#[async_trait]
impl Dialect for Advisory {
    type Session = Session;

    fn settings(&self) -> Settings {
        self.hosts.config.settings
    }

    async fn promises(&self, control: &mut Session) -> Result<Promises> {
        self.hosts.rule_out_pooler(control).await?;
        Ok(Promises::new("postgres", CLOCK)
            .shared(true)
            .ranges(true)
            .record(true)
            .floor(Floor::Store)
            .lease(LeaseKind::Connection)
            .wake(Wake::Push)
            // A hold ends with the server. The next start lifts tokens to the time.
            .durability(Durability::Volatile)
            .min_ttl(Duration::from_millis(50))
            .max_ttl(MAX_TTL)
            .claim_window(CLAIM_WINDOW)
            .limits(limits(&self.hosts, control, self.hosts.config.strategy).await?))
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.hosts).await
    }

    fn is_conflict(error: &Error) -> bool {
        is_conflict(error)
    }

    async fn connect(&self, signal: Arc<CloseSignal>) -> Result<Session> {
        self.open_session(signal).await
    }

    fn session_id(&self, session: &Session) -> SessionId {
        session.id.clone()
    }

    async fn raise_tokens(&self, session: &mut Session, floor: Token) -> Result<()> {
        if session.floor <= floor {
            // Even after an error this connection accepts no token that is not above the floor.
            session.floor = Token(floor.get() + 1);
            self.hosts.lift_tokens(session).await?;
        }
        Ok(())
    }

    async fn try_acquire(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>> {
        self.take(session, claim, false, idle).await
    }

    async fn acquire(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Tokens> {
        loop {
            if let Some(tokens) = self.take(session, claim, true, idle).await? {
                return Ok(tokens);
            }
        }
    }

    async fn keep_alive(&self, session: &mut Session, idle: Duration) -> Result<()> {
        if !self.set_idle(session, idle).await? {
            let alive = session.client.check_connection().await;
            alive.map_err(|error| self.hosts.error("renewing a lock", error))?;
        }
        Ok(())
    }

    async fn downgrade(&self, session: &mut Session, claim: &Claim) -> Result<Tokens> {
        self.weaken(session, claim).await
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Result<bool> {
        let action = format!("releasing lock {}", claim.name);
        let sql = match claim.mode {
            Mode::Shared => RELEASE_SHARED,
            _ => RELEASE_EXCLUSIVE,
        };
        let rows = session
            .query(&self.hosts, &action, sql, &[&claim.name.as_str()])
            .await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn record(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        self.record_all(control, records, asked).await
    }

    async fn delete_record(&self, control: &mut Session, claim: ClaimId) -> Result<()> {
        const DELETE: &str = "DELETE FROM fencelock_bound WHERE claim = $1";
        let claim = &claim.as_bytes()[..];
        control
            .query(&self.hosts, "releasing a lock", DELETE, &[&claim])
            .await
            .map(drop)
    }

    fn inspect_only(&self) -> bool {
        self.hosts.config.inspect_only
    }

    async fn look(&self, control: &mut Session, name: &LockName) -> Result<LockView> {
        self.view(control, name).await
    }

    async fn is_recorded(&self, control: &mut Session, name: &LockName) -> Result<bool> {
        let action = format!("looking at lock {name}");
        let values: Values<'_> = &[&name.as_str()];
        let rows = control
            .query(&self.hosts, &action, UNRECORDED, values)
            .await?;
        Ok(rows.is_empty())
    }

    async fn list(
        &self,
        control: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>> {
        self.page(control, prefix, after, limit).await
    }

    async fn evict(
        &self,
        control: &mut Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool> {
        let action = format!("evicting the holder of lock {name}");
        let values: Values<'_> = &[&STRATEGY, &name.as_str(), &integer(token)];
        let rows = control.query(&self.hosts, &action, HOLDER, values).await?;
        let Some(holder) = rows.first() else {
            return Ok(false);
        };
        match how {
            Evict::Release => {
                let session = SessionId(format!(
                    "{}@{}",
                    holder.get::<_, i32>(1),
                    holder.get::<_, i64>(2)
                ));
                self.end(control, &session).await?;
            }
            Evict::Ask => {
                const ASK: &str = "UPDATE fencelock_bound SET asked = true WHERE claim = $1";
                control
                    .query(&self.hosts, &action, ASK, &[&holder.get::<_, &[u8]>(0)])
                    .await?;
            }
        }
        Ok(true)
    }

    async fn is_open(&self, control: &mut Session, session: &SessionId) -> Result<bool> {
        let (pid, mark) = numbers(session);
        let rows = control
            .query(&self.hosts, "waiting for a lock", IS_OPEN, &[&pid, &mark])
            .await?;
        Ok(!rows.is_empty())
    }

    async fn end(&self, control: &mut Session, session: &SessionId) -> Result<()> {
        let action = "ending a connection that was given up (needs the same user, or membership in pg_signal_backend)";
        let (pid, mark) = numbers(session);
        let rows = control
            .query(&self.hosts, action, END, &[&pid, &mark])
            .await?;
        if rows.first().is_some_and(|row| !row.get::<_, bool>(0)) {
            let why = "the connection has not ended yet";
            return Err(Error::unavailable(&self.hosts, action, why));
        }
        const DELETE: &str = "DELETE FROM fencelock_bound WHERE pid = $1 AND started = $2";
        control
            .query(&self.hosts, action, DELETE, &[&pid, &mark])
            .await
            .map(drop)
    }

    async fn store_record(
        &self,
        control: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<engine::Record> {
        let found = match record(control, &OF_ADVISORY, scope, change).await {
            Err(error) if is_missing(&error) => {
                self.hosts.create_tables(control).await?;
                record(control, &OF_ADVISORY, scope, change).await
            }
            found => found,
        };
        found.map_err(|error| self.hosts.error(record_action(change), error))
    }

    async fn clean_up(&self, control: &mut Session, _: bool) -> Result<()> {
        control
            .query(&self.hosts, "cleaning up", DELETE_ENDED, &[])
            .await
            .map(drop)
    }
}
