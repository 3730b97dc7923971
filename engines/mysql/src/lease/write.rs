//! Removes expired rows and makes a change, in one request. Every statement after the first depends on
//! `@fencelock_go`: whether the gate was still at the version that was read.

use std::fmt::Write as _;
use std::time::Duration;

use fencelock_core::Mode;
use fencelock_core::engine::Claim;
use fencelock_sql::lease::CLAIM_WINDOW;
use fencelock_sql::lease::{self, Holder};
use fencelock_sql::server::{Change, DbInstant, Failure, Write, Written, first_version, micros};

use super::connection::{Leases, Session, Tried};
use super::stored::{GATE_COLUMNS, gate_values, id, insert_holder, list, name, tokens};
use crate::error::is_duplicate;
use crate::request::{NOW, Request, bytes};

const GO: &str = "@fencelock_go = 1";

type Held<'a> = &'a Holder<DbInstant>;

impl Leases {
    pub(super) async fn write_change(
        &self,
        session: &mut Session,
        write: &Write<'_>,
    ) -> Tried<Written> {
        let mut request = Request::transaction();
        if let Change::Grant { .. } = write.change {
            self.lift_tokens_if_due(session).await?;
            request.push(self.lock_draws(write.name));
        }
        let (expired_in_gate, expired): (Vec<Held<'_>>, Vec<_>) =
            (write.expired_holders.iter()).partition(|holder| holder.mode == Mode::Exclusive);
        // There is one exclusive holder at most.
        let expired_in_gate = expired_in_gate.first().copied();
        let gate = request.push(self.update_gate(write, expired_in_gate));
        request.push("SET @fencelock_go = ROW_COUNT()");
        let reaped = self.reap(&mut request, write, &expired);
        let released = self.change_holder(&mut request, write);
        let granted = self.change(&mut request, write);
        if write.last {
            let (locks, of) = (&self.tables.locks, name(write.name));
            request.push(format!("DELETE FROM {locks} WHERE name = {of} AND {GO}"));
        }
        request.commit();
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        let answers = match ran.await {
            Ok(answers) => answers,
            Err(error) => {
                // The claim's own expired row has this ticket. The next read finds it.
                let was_queued =
                    matches!(write.change, Change::Enqueue { .. }) && is_duplicate(&error);
                return match self.undo(session, error).await {
                    Failure::Final(_) if was_queued => Ok(Written::Stale),
                    failure => Err(failure),
                };
            }
        };
        let reaped = reaped.map_or(0, |reaped| answers[reaped].affected);
        let was_gone = released.is_some_and(|released| answers[released].affected == 0);
        if answers[gate].affected == 0 || reaped < expired.len() as u64 || was_gone {
            return Ok(Written::Stale);
        }
        self.wake_next(write);
        Ok(Written::Done(granted.and_then(|(claim, insert)| {
            tokens(&answers[insert], claim)
        })))
    }

    /// Counts the version up, and changes the exclusive holder, which is stored in the gate.
    fn update_gate(&self, write: &Write<'_>, expired: Option<Held<'_>>) -> String {
        let mut set = "version = version + 1".to_owned();
        let mut condition = format!(
            "name = {} AND version = {}",
            name(write.name),
            write.version
        );
        // Writing to a `String` cannot fail.
        if let Some(holder) = expired {
            set.push_str(", state = 'none'");
            let id = id(holder.tokens.first);
            let _ = write!(condition, " AND id = {id} AND expiry <= {NOW}");
        }
        if let Some((holder, change)) = changed_holder(write)
            && holder.mode == Mode::Exclusive
        {
            let _ = write!(set, ", {change}");
            let _ = write!(condition, " AND id = {}", id(holder.tokens.first));
        }
        format!("UPDATE {} SET {set} WHERE {condition}", self.tables.locks)
    }

    /// Removes expired rows of the lock other than the gate. Returns the index of the answer that counts holders.
    fn reap(
        &self,
        request: &mut Request,
        write: &Write<'_>,
        expired: &[Held<'_>],
    ) -> Option<usize> {
        let mut reaped = None;
        if !expired.is_empty() {
            let holders = &self.tables.holders;
            let ids = list(expired.iter().map(|holder| id(holder.tokens.first)));
            reaped = Some(request.push(format!(
                "DELETE FROM {holders} WHERE id IN ({ids}) AND expiry <= {NOW} AND {GO}"
            )));
            let count = expired.len();
            request.push(format!(
                "SET @fencelock_go = @fencelock_go AND ROW_COUNT() = {count}"
            ));
        }
        if !write.expired_waiters.is_empty() {
            let tickets = write.expired_waiters.iter().map(i64::to_string);
            let tickets = tickets.collect::<Vec<_>>().join(",");
            for table in self.queue_tables() {
                request.push(format!(
                    "DELETE FROM {table} WHERE name = {} AND ticket IN ({tickets}) AND {GO}",
                    name(write.name)
                ));
            }
        }
        reaped
    }

    /// The change itself, but for that of a holder. Returns the claim of a grant, and the index of the answer that has its id.
    fn change<'a>(&self, request: &mut Request, write: &Write<'a>) -> Option<(&'a Claim, usize)> {
        let of = name(write.name);
        match write.change {
            Change::Grant {
                claim,
                ticket,
                replaces,
            } => {
                if let Some(ticket) = ticket {
                    self.leave_queue(request, &of, ticket);
                }
                // A claim that is alone has its own version, so its release knows that there are no other rows. A gate that
                // replaces another one has a new version, for the clients that have read the old one.
                let version = match replaces.is_none() && write.alone {
                    true => first_version(claim.id),
                    false => write.version + 1,
                };
                let insert = self.renew_gate(request, &of, claim, version);
                Some((claim, insert))
            }
            Change::Enqueue { claim, ticket } => {
                request.push(format!(
                    "INSERT INTO {} (name, ticket, claim, mode, expiry, owner) \
                     SELECT {of}, {ticket}, {}, '{}', {NOW} + {}, {} FROM DUAL WHERE {GO}",
                    self.tables.waiters,
                    bytes(claim.id.as_bytes()),
                    lease::mode_text(claim.mode),
                    micros(CLAIM_WINDOW),
                    bytes(claim.owner.as_bytes()),
                ));
                if self.ears.work() {
                    request.push(self.insert_ear(claim, ticket, GO));
                }
                None
            }
            Change::LeaveQueue { ticket } => {
                self.leave_queue(request, &of, ticket);
                None
            }
            Change::Release { .. } | Change::Abandon { .. } | Change::Ask { .. } | Change::Reap => {
                None
            }
        }
    }

    fn leave_queue(&self, request: &mut Request, of: &str, ticket: i64) {
        for table in self.queue_tables() {
            request.push(format!(
                "DELETE FROM {table} WHERE name = {of} AND ticket = {ticket} AND {GO}"
            ));
        }
    }

    /// The tables that have a row for each waiter.
    fn queue_tables(&self) -> impl Iterator<Item = &str> {
        let ears = self.ears.work().then_some(&*self.tables.ears);
        [&*self.tables.waiters].into_iter().chain(ears)
    }

    /// Replaces the gate, so that the new one draws an id.
    fn renew_gate(&self, request: &mut Request, of: &str, claim: &Claim, version: u64) -> usize {
        let locks = &self.tables.locks;
        request.push(format!("DELETE FROM {locks} WHERE name = {of} AND {GO}"));
        let values = gate_values(claim, version);
        let insert = request.push(format!(
            "INSERT INTO {locks} {GATE_COLUMNS} SELECT {values} FROM DUAL WHERE {GO}"
        ));
        if claim.mode != Mode::Exclusive {
            request.push(insert_holder(&self.tables, claim, GO));
        }
        insert
    }

    /// Changes the row of a shared holder or a permit. Returns the index of the answer that counts a released one.
    ///
    /// The gate's version does not tell whether that holder is still there: it begins with one that follows from the claim, and
    /// a claim may be placed again after its gate was deleted.
    fn change_holder(&self, request: &mut Request, write: &Write<'_>) -> Option<usize> {
        let (holder, change) = changed_holder(write)?;
        if holder.mode == Mode::Exclusive {
            return None;
        }
        let holders = &self.tables.holders;
        let condition = format!("id = {} AND {GO}", id(holder.tokens.first));
        if !matches!(write.change, Change::Release { .. }) {
            request.push(format!("UPDATE {holders} SET {change} WHERE {condition}"));
            return None;
        }
        let released = request.push(format!("DELETE FROM {holders} WHERE {condition}"));
        request.push("SET @fencelock_go = @fencelock_go AND ROW_COUNT() = 1");
        Some(released)
    }
}

/// The holder that a change is about, and its new columns.
fn changed_holder<'a>(write: &Write<'a>) -> Option<(Held<'a>, String)> {
    match write.change {
        Change::Release { holder } => Some((holder, "state = 'none'".to_owned())),
        Change::Abandon { holder, lock_delay } => Some((holder, abandoned(lock_delay))),
        Change::Ask { holder } => Some((holder, "state = 'asked'".to_owned())),
        _ => None,
    }
}

/// The columns of a hold that has ended except for its lock-delay.
fn abandoned(lock_delay: Duration) -> String {
    let delay = micros(lock_delay);
    format!("expiry = LEAST(expiry, {NOW} + {delay}), lock_delay = {delay}, state = 'abandoned'")
}
