use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{self, Claim, Evict, LockView, Page, RecordChange};
use fencelock_core::{
    ClaimId, Durability, Error, Finding, Floor, LeaseKind, LockName, Promises, Result, Token,
    Tokens, Wake,
};
use fencelock_sql::bound::{CLAIM_WINDOW, CloseSignal, Dialect, Record, SessionId};
use fencelock_sql::server::Failure;
use fencelock_sql::{Settings, record_action};
use mysql_async::Row;

use super::connection::{BoundLocks, Session, WAIT_SECONDS};
use super::get_lock_sql::RELEASE;
use super::inspect::Evicted;
use crate::diagnose;
use crate::error::is_conflict;
use crate::request::{Request, bytes};

/// The longest idle timeout of the servers is the longest ttl.
const MAX_TTL: Duration = Duration::from_secs(31_536_000);
/// How often to check that the connections that hold are still open.
const CHECK: Duration = Duration::from_millis(250);
const CLOCK: &str = "the server's timers run at about the right rate";
/// The tokens of `for-update`: the next connection lifts them to the time.
const CLOCK_OF_TOKENS: &str = "the server's timers run at about the right rate; its wall clock, to which tokens are raised after a start, is not set back by more than the server was down";

#[async_trait]
impl Dialect for BoundLocks {
    type Session = Session;

    fn settings(&self) -> Settings {
        self.config.settings
    }

    fn inspect_only(&self) -> bool {
        self.config.inspect_only
    }

    async fn promises(&self, control: &mut Session) -> Result<Promises> {
        if !self.inspect_only() {
            let (store, strategy) = (&self.config.store, self.strategy());
            control.info.check_bound(store, strategy)?;
        }
        let mut limits = Vec::new();
        if self.config.hosts.len() > 1 {
            let what = "after a switch-over the new host does not know who held: a holder that is still cut off from it trusts its \
                       grant until its ttl is over";
            let change =
                "use the default strategy, lease, with semi-synchronous replication, or one host";
            limits.push(Finding::against_correctness(what, change));
        }
        Ok(Promises::new(
            "mysql",
            match self.get_lock {
                true => CLOCK,
                false => CLOCK_OF_TOKENS,
            },
        )
        .ranges(true)
        .record(true)
        // The numbers of a run mean the same for as long as a connection is open.
        .floor(match self.get_lock {
            true => Floor::Refused,
            false => Floor::Store,
        })
        .lease(LeaseKind::Connection)
        .wake(Wake::Push)
        // A hold ends with the server.
        .durability(Durability::Volatile)
        .min_ttl(Duration::from_secs(1))
        .max_ttl(MAX_TTL)
        .claim_window(CLAIM_WINDOW)
        .limits(limits))
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.config, &self.tables).await
    }

    fn is_conflict(error: &Error) -> bool {
        let Error::Unavailable { cause, .. } = error else {
            return false;
        };
        match cause.downcast_ref() {
            Some(mysql_async::Error::Server(server)) => is_conflict(server.code),
            _ => false,
        }
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
            let lifted = self.lift_tokens_to(session, "COMMIT").await;
            lifted.map_err(|failed| self.error("lifting the token counter", failed))?;
        }
        Ok(())
    }

    async fn try_acquire(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>> {
        let acquired = match self.get_lock {
            true => self.acquire_lock(session, claim, idle, 0).await,
            false => self.try_row(session, claim, idle).await,
        };
        acquired.map_err(|failed| self.error(take(claim), failed))
    }

    async fn acquire(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Tokens> {
        let failed = |failed| self.error(take(claim), failed);
        loop {
            let acquired = match self.get_lock {
                true => self.acquire_lock(session, claim, idle, WAIT_SECONDS).await,
                false => self.acquire_row(session, claim, idle).await,
            };
            match acquired {
                Ok(Some(tokens)) => return Ok(tokens),
                Ok(None) => {}
                // A deadlock, or the time limit of one statement. Undo it, even if the lock was acquired before.
                Err(Failure::Conflict(_)) => {
                    let mut undo = Request::of("ROLLBACK");
                    if self.get_lock {
                        let key = self.lock_key(session, &claim.name);
                        undo.push(format!("DO RELEASE_LOCK('{key}')"));
                    }
                    session.run(undo).await.map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn keep_alive(&self, session: &mut Session, idle: Duration) -> Result<()> {
        let mut request = session.request(idle);
        if request.is_empty() {
            request.push("DO 0");
        }
        let kept = session.run(request).await;
        kept.map(drop)
            .map_err(|failed| self.error("renewing a lock", failed))
    }

    async fn downgrade(&self, _session: &mut Session, _claim: &Claim) -> Result<Tokens> {
        let why = format!(
            "strategy={} has exclusive locks only; use strategy=lease",
            self.strategy()
        );
        Err(Error::unsupported(self, "shared mode", why))
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Result<bool> {
        let release = match self.get_lock {
            true => {
                let key = self.lock_key(session, &claim.name);
                Request::prepared(RELEASE, vec![key.into()])
            }
            false => Request::of("ROLLBACK"),
        };
        let released = session.run(release).await;
        let action = || format!("releasing lock {}", claim.name);
        let answers = released.map_err(|failed| self.error(action(), failed))?;
        let one = |row: &Row| row.get::<Option<u64>, _>(0).flatten() == Some(1);
        Ok(!self.get_lock || answers[0].rows.first().is_some_and(one))
    }

    async fn record(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        let recorded = self.record_all(control, records, asked).await;
        recorded.map_err(|failed| self.error("recording who holds", failed))
    }

    async fn delete_record(&self, control: &mut Session, claim: ClaimId) -> Result<()> {
        let bound = &self.tables.bound;
        let claim = bytes(claim.as_bytes());
        let delete = Request::of(format!("DELETE FROM {bound} WHERE claim = {claim}"));
        let deleted = control.run(delete).await;
        deleted
            .map(drop)
            .map_err(|failed| self.error("releasing a lock", failed))
    }

    async fn look(&self, control: &mut Session, name: &LockName) -> Result<LockView> {
        let views = self.views(control, &bytes(name.as_str().as_bytes())).await;
        let mut views = views.map_err(|failed| self.error(look_at(name), failed))?;
        Ok(views.pop().unwrap_or_else(|| LockView::free(name.clone())))
    }

    async fn is_recorded(&self, control: &mut Session, name: &LockName) -> Result<bool> {
        let recorded = self.recorded(control, name).await;
        recorded.map_err(|failed| self.error(look_at(name), failed))
    }

    async fn list(
        &self,
        control: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let page = self.page(control, prefix, after, limit).await;
        page.map_err(|failed| self.error("listing locks", failed))
    }

    async fn evict(
        &self,
        control: &mut Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool> {
        let found = self.find_and_ask(control, name, token, how).await;
        let action = || format!("evicting the holder of lock {name}");
        match found.map_err(|failed| self.error(action(), failed))? {
            Evicted::Nobody => return Ok(false),
            Evicted::End(session) => self.end(control, &session).await?,
            Evicted::Asked => {}
        }
        Ok(true)
    }

    async fn is_open(&self, control: &mut Session, session: &SessionId) -> Result<bool> {
        let ended = self.ended(control, std::slice::from_ref(session)).await?;
        Ok(ended.is_empty())
    }

    async fn end(&self, control: &mut Session, session: &SessionId) -> Result<()> {
        let action = "ending a connection that was given up (needs the same user, or the right to end others' connections)";
        let ended = self.end_connection(control, session).await;
        match ended.map_err(|failed| self.error(action, failed))? {
            true => Ok(()),
            false => {
                let why = "the connection has not ended yet";
                Err(Error::unavailable(self, action, why))
            }
        }
    }

    async fn store_record(
        &self,
        control: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<engine::Record> {
        let found = self.record_of_store(control, scope, change).await;
        found.map_err(|failed| self.error(record_action(change), failed))
    }

    async fn clean_up(&self, control: &mut Session, last: bool) -> Result<()> {
        let failed = |failed| self.error("cleaning up", failed);
        self.delete_ended(control).await.map_err(failed)?;
        while !self.get_lock && self.clean_up_rows(control, last).await.map_err(failed)? {}
        Ok(())
    }

    /// This driver does not report that an idle connection has ended.
    fn check_interval(&self) -> Option<Duration> {
        Some(CHECK)
    }

    async fn ended(&self, control: &mut Session, sessions: &[SessionId]) -> Result<Vec<SessionId>> {
        let ended = self.ended_of(control, sessions).await;
        ended.map_err(|failed| self.error("checking connections", failed))
    }
}

fn take(claim: &Claim) -> String {
    format!("taking lock {}", claim.name)
}

fn look_at(name: &LockName) -> String {
    format!("looking at lock {name}")
}

impl fmt::Display for BoundLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.config.store)
    }
}

impl fmt::Debug for BoundLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundLocks({self})")
    }
}
