//! Whether waiters can be woken on this server, the rows with the name of each waiter's ear, and which waiters a change wakes.

use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_sql::lease::{Waiter, mode_text};
use fencelock_sql::server::{DbInstant, Failure, Write, micros};

use super::connection::{Leases, Session, Tried};
use super::stored::{count, label, name};
use super::wake_others::Whom;
use crate::diagnose;
use crate::ear::{EAR, new_name};
use crate::request::{NOW, Request, bytes};
use crate::tables::{Tables, Use};

/// The most waiters that a change wakes at once if it is their turn. They wake further ones.
const MOST: usize = 16;

/// How long a row without a waiter stays, in microseconds.
const LONE: u64 = 60_000_000;

impl Leases {
    /// Finds out whether waiters can be woken, and creates the table for that if it is missing. A client that may not create it
    /// continues without ears.
    pub(super) async fn find_ears(&self, session: &mut Session) -> Tried<()> {
        if self.ears.work() {
            return Ok(());
        }
        let found = match self.try_ears(session).await {
            Err(Failure::NoTables(_)) if self.config.inspect_only => {
                // A client that takes locks creates the table.
                let may = diagnose::may_create(&mut session.conn, &self.config).await;
                may.map_err(Failure::Final)?
            }
            Err(Failure::NoTables(_)) => {
                let conn = &mut session.conn;
                let made = self.tables.create(conn, Use::Ears, &self.config).await;
                made.is_ok() && matches!(self.try_ears(session).await, Ok(true))
            }
            Err(failure @ (Failure::Disconnected(_) | Failure::NoAnswer)) => return Err(failure),
            tried => tried.unwrap_or(false),
        };
        self.ears.set(found);
        Ok(())
    }

    /// Whether this user has all rights on the table, and the server says which connection holds one of its locks.
    async fn try_ears(&self, session: &mut Session) -> Tried<bool> {
        let ears = &self.tables.ears;
        let lock = format!("'{EAR}{}'", new_name());
        let mut request = Request::of(format!(
            "SELECT GET_LOCK({lock}, 0) = 1 AND IS_USED_LOCK({lock}) = CONNECTION_ID() AND RELEASE_LOCK({lock}) = 1"
        ));
        request.push(format!("SELECT 1 FROM {ears} WHERE 1 = 0"));
        if !self.config.inspect_only {
            for change in self.tables.ear_rights() {
                request.push(change);
            }
        }
        let answers = self.run(session, &request).await?;
        let told = answers[0].rows.first();
        let told = told.and_then(|row| row.get::<Option<u64>, _>(0)).flatten();
        Ok(told == Some(1))
    }

    /// The row with a waiter's ear.
    pub(super) fn insert_ear(&self, claim: &Claim, ticket: i64, condition: &str) -> String {
        format!(
            "INSERT INTO {} (name, ticket, claim, ear, tokens, label, since) \
             SELECT {}, {ticket}, {}, '{}', {}, {}, {NOW} FROM DUAL WHERE {condition} \
             ON DUPLICATE KEY UPDATE claim = VALUES(claim), ear = VALUES(ear), tokens = VALUES(tokens), label = VALUES(label), \
             since = VALUES(since)",
            self.tables.ears,
            name(&claim.name),
            bytes(claim.id.as_bytes()),
            self.ears.listener.name(),
            count(claim),
            label(claim),
        )
    }

    /// Whether the row of this waiter names the ear of this client.
    pub(super) fn hears_of(&self, waiter: &Waiter<DbInstant>) -> bool {
        // Without ears the waiter polls.
        !self.ears.work() || waiter.address.as_deref() == Some(self.ears.listener.name().as_bytes())
    }

    /// Keeps the place of a waiter, of whose turn this client is informed from now on.
    pub(super) async fn move_ear(
        &self,
        session: &mut Session,
        claim: &Claim,
        ticket: i64,
        time: Duration,
    ) -> Tried<bool> {
        let Tables { waiters, ears, .. } = &*self.tables;
        // It is one statement, because waiters do this again and again.
        let (tables, ear) = match self.ears.work() {
            true => (
                format!(
                    "{waiters} AS w LEFT JOIN {ears} AS e ON e.name = w.name AND e.ticket = w.ticket AND e.claim = w.claim"
                ),
                format!(", e.ear = '{}'", self.ears.listener.name()),
            ),
            false => (format!("{waiters} AS w"), String::new()),
        };
        let request = Request::of(format!(
            "UPDATE {tables} SET w.expiry = {NOW} + {}, w.mode = '{}'{ear} \
             WHERE w.name = {} AND w.ticket = {ticket} AND w.claim = {} AND w.expiry > {NOW}",
            micros(time),
            mode_text(claim.mode),
            name(&claim.name),
            bytes(claim.id.as_bytes()),
        ));
        let answers = self.run(session, &request).await?;
        Ok(answers[0].affected > 0)
    }

    /// Wakes the waiters of other clients that may hold after a change.
    pub(super) fn wake_next(&self, write: &Write<'_>) {
        for (claim, _) in write.next.iter().take(MOST) {
            self.ears.wake(|| Whom::Waiter(write.name.clone(), *claim));
        }
    }

    /// Removes rows whose waiters were removed by a client that does not know this table.
    pub(super) async fn remove_lone_ears(&self, session: &mut Session) -> Tried<()> {
        if !self.ears.work() {
            return Ok(());
        }
        let Tables { ears, waiters, .. } = &*self.tables;
        let find = Request::of(format!(
            "SELECT e.name, e.ticket, e.claim FROM {ears} AS e LEFT JOIN {waiters} AS w \
             ON w.name = e.name AND w.ticket = e.ticket AND w.claim = e.claim \
             WHERE e.since + {LONE} < {NOW} AND w.name IS NULL LIMIT 100"
        ));
        let found = self.run(session, &find).await?;
        let mut remove = Request::default();
        for row in &found[0].rows {
            let lone: Option<(Vec<u8>, i64, Vec<u8>)> = mysql_async::from_row_opt(row.clone()).ok();
            if let Some((name, ticket, claim)) = lone {
                remove.push(format!(
                    "DELETE FROM {ears} WHERE name = {} AND ticket = {ticket} AND claim = {}",
                    bytes(&name),
                    bytes(&claim)
                ));
            }
        }
        if !remove.is_empty() {
            self.run(session, &remove).await?;
        }
        Ok(())
    }
}
