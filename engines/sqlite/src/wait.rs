//! Waiting for a turn, and the wake-ups of other processes.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Event, Grant, Place};
use fencelock_core::support::jitter;
use fencelock_core::{ClaimId, Clock, LockName, Result};
use fencelock_sql::lease::Step;
use rusqlite::{OptionalExtension, params};
use tokio::sync::mpsc;

use crate::entry::Entries;
use crate::handle::{Handle, How};
use crate::job::Action;
use crate::rows::read;
use crate::stored::Sql;
use crate::transaction::Transaction;
use crate::wake_up::Received;

/// The process that ends a hold wakes the waiter. As a fall-back the waiter polls, with growing random intervals: the
/// wake-up may be lost.
pub(crate) async fn wait(
    worker: &Handle,
    entries: &Entries,
    claim: &Claim,
    place: &Place,
) -> Result<Option<Grant>> {
    let Some(waiting) = entries.waiting(claim.id) else {
        return Ok(None);
    };
    loop {
        let poll_at = Clock::Boot.now() + jitter(waiting.next_poll_interval());
        tokio::select! {
            () = waiting.woken() => {
                waiting.reset_poll_interval();
                return Ok(None);
            }
            () = Clock::Boot.sleep_until(poll_at.min(place.recheck)) => {}
        }
        if poll_at >= place.recheck {
            return Ok(None);
        }
        let action = Action::on("looking at", &claim.name);
        let claim = claim.clone();
        if worker
            .run(How::Read, action, move |transaction| {
                has_changed(transaction, &claim)
            })
            .await?
        {
            waiting.reset_poll_interval();
            return Ok(None);
        }
    }
}

/// Whether placing the claim again would now do more than keep its place.
fn has_changed(transaction: &Transaction<'_>, claim: &Claim) -> Sql<bool> {
    let step = read(transaction.connection, &claim.name)?.step(claim, transaction.now);
    Ok(!matches!(
        step,
        Step::Wait {
            ticket: Some(_),
            ..
        }
    ))
}

/// Handles a wake-up of another process. Returns whether it was for this one. Any user of the machine may write to the socket,
/// so the handler reads from the file what happened.
pub(crate) fn wake_up_handler(
    worker: Handle,
    entries: Arc<Entries>,
    events: mpsc::Sender<Event>,
) -> impl FnMut(Received) -> bool + Send + 'static {
    move |received| match received {
        Received::Turn(claim) => entries.wake(claim),
        Received::Held(claim) => {
            let Some(name) = entries.queue_check(claim) else {
                return false;
            };
            let (events, entries) = (events.clone(), Arc::clone(&entries));
            let action = Action::on("looking at", &name);
            worker.read_in_background(action, move |transaction| {
                entries.check_begins(claim);
                if let Some(event) = what_happened(transaction, &name, claim)? {
                    if event == Event::Lost(claim) {
                        entries.remove_holding(claim);
                    }
                    // Sending fails if the engine was dropped, or the channel is full. Then the next renewal finds out.
                    let _ = events.try_send(event);
                }
                Ok(())
            });
            true
        }
    }
}

/// What happened to a holder, if anything did.
fn what_happened(
    transaction: &Transaction<'_>,
    name: &LockName,
    claim: ClaimId,
) -> Sql<Option<Event>> {
    let sql = "SELECT state FROM holders WHERE name = ?1 AND claim = ?2";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    let state: Option<String> = select.query_row(values, |row| row.get(0)).optional()?;
    Ok(match state.as_deref() {
        None => Some(Event::Lost(claim)),
        Some("asked") => Some(Event::Asked(claim)),
        Some(_) => None,
    })
}
