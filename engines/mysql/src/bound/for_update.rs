//! `strategy=for-update`: a row lock in an open transaction.

use std::time::Duration;

use fencelock_core::Tokens;
use fencelock_core::engine::Claim;
use fencelock_sql::server::Failure;

use super::connection::{BoundLocks, Session, WAIT_SECONDS};
use super::stored::take;
use crate::request::{Request, bytes};

/// How many unused rows one clean-up transaction deletes.
const CLEAN_UP_BATCH: usize = 250;
/// How long a clean-up may keep rows locked, in seconds.
pub(super) const CLEAN_UP_SECONDS: u64 = 2;
/// How long the last clean-up of a client waits for that of another, in seconds.
const LAST_WAIT_SECONDS: u64 = 1;
/// The usual idle timeout of the control connection.
const LONG: &str = "SET SESSION wait_timeout = 28800";

impl BoundLocks {
    /// The lock of a client that deletes unused rows, for a moment, or that must know whether a row is in use.
    pub(super) fn clean_up_key(&self, session: &Session) -> String {
        session.key(&self.config.table, "s", b"")
    }

    /// Locks a row that no client locks, in a transaction that stays open if that succeeds.
    async fn lock_free_row(
        &self,
        session: &mut Session,
        idle: Duration,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failure> {
        self.lift_tokens_if_due(session).await?;
        let mut request = session.request(idle);
        request.push("START TRANSACTION");
        let row = request.push(format!(
            "SELECT 1 FROM {} WHERE name = {} FOR UPDATE SKIP LOCKED",
            self.tables.names,
            bytes(claim.name.as_str().as_bytes())
        ));
        self.draw(session, request, row, claim).await
    }

    /// Acquires the lock, waiting for the client that locks the row. `None` if the row was deleted meanwhile.
    pub(super) async fn acquire_row(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>, Failure> {
        self.insert_row(session, claim).await?;
        // While this waits for the row, nobody can replace the table with an old one.
        self.lift_tokens_if_due(session).await?;
        let mut request = session.request(idle);
        request.push("START TRANSACTION");
        // While this waits, no table is open for writing: that would block backups.
        let row = request.push(format!(
            "SELECT 1 FROM {} WHERE name = {} FOR UPDATE",
            self.tables.names,
            bytes(claim.name.as_str().as_bytes())
        ));
        self.draw(session, request, row, claim).await
    }

    /// Inserts the row if it does not exist. The client reads first, because an insertion would wait for the holder of the row.
    async fn insert_row(&self, session: &mut Session, claim: &Claim) -> Result<(), Failure> {
        let (names, name) = (&self.tables.names, claim.name.as_str().as_bytes());
        let name = bytes(name);
        let ask = Request::of(format!("SELECT 1 FROM {names} WHERE name = {name}"));
        if !session.run(ask).await?[0].rows.is_empty() {
            return Ok(());
        }
        let make = format!("INSERT IGNORE INTO {names} (name) VALUES ({name})");
        session.run(Request::of(make)).await.map(drop)
    }

    pub(super) async fn try_row(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>, Failure> {
        if let Some(tokens) = self.lock_free_row(session, idle, claim).await? {
            return Ok(Some(tokens));
        }
        // A clean-up locks rows for a moment, and deletes them. That is not a hold: wait until it ends, and let no other
        // clean-up begin before this client has read again.
        let sweep = self.clean_up_key(session);
        // Another client that inserts and locks the same row at this moment blocks this one for a second at most.
        let mut wait = Request::of("SET SESSION innodb_lock_wait_timeout = 1");
        wait.push(format!("DO GET_LOCK('{sweep}', {})", CLEAN_UP_SECONDS + 1));
        session.run(wait).await?;
        let tokens = match self.insert_row(session, claim).await {
            Ok(()) => {
                session.run(Request::of(patience())).await?;
                self.lock_free_row(session, idle, claim).await?
            }
            Err(Failure::Conflict(_)) => None,
            Err(error) => return Err(error),
        };
        let mut go_on = Request::of(patience());
        go_on.push(format!("DO RELEASE_LOCK('{sweep}')"));
        session.run(go_on).await?;
        Ok(tokens)
    }

    /// Deletes rows that no client locks. Returns whether there may be more.
    pub(super) async fn clean_up_rows(
        &self,
        control: &mut Session,
        last: bool,
    ) -> Result<bool, Failure> {
        let names = &self.tables.names;
        let sweep = self.clean_up_key(control);
        // This process may be stopped between the two requests.
        let mut lock = Request::of(format!("SET SESSION wait_timeout = {CLEAN_UP_SECONDS}"));
        // Another client that cleans up now does not see the rows that this one has just left.
        let wait = if last { LAST_WAIT_SECONDS } else { 0 };
        let had = lock.push(format!("SELECT GET_LOCK('{sweep}', {wait})"));
        let answers = control.run(lock).await?;
        let had: Option<u64> = answers[had]
            .rows
            .first()
            .and_then(|row| row.get(0))
            .flatten();
        if had != Some(1) {
            control.run(Request::of(LONG)).await?;
            return Ok(false);
        }
        let mut lock = Request::of("START TRANSACTION");
        let free = lock.push(format!(
            "SELECT name FROM {names} LIMIT {CLEAN_UP_BATCH} FOR UPDATE SKIP LOCKED"
        ));
        let mut answers = control.run(lock).await?;
        let free = answers[free]
            .rows
            .iter_mut()
            .filter_map(|row| take::<Vec<u8>>(row, 0));
        let free: Vec<String> = free.map(|name| bytes(&name)).collect();
        let mut delete = Request::default();
        // One by one. If one statement had many names, the server would not use the index of a small table. It would scan the
        // table from end to end, and wait for the holder of another row.
        for name in &free {
            delete.push(format!("DELETE FROM {names} WHERE name = {name}"));
        }
        delete.push("COMMIT");
        delete.push(format!("DO RELEASE_LOCK('{sweep}')"));
        delete.push(LONG);
        control.run(delete).await?;
        Ok(free.len() == CLEAN_UP_BATCH)
    }
}

/// How long a statement waits for a row.
fn patience() -> String {
    format!("SET SESSION innodb_lock_wait_timeout = {WAIT_SECONDS}")
}
