//! Placing a claim: attempts, until one decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::engine::{Claim, Place, Standing};
use fencelock_core::{Clock, Error, Result};

use super::renew::renew_held;
use super::state::State;
use super::votes::{Manner, Outcome, attempt};
use crate::entry::{Entry, pause_after};
use crate::keys::check_name;

/// How often a claim that does not wait is tried while the vote is split.
const SPLITS: u32 = 6;
/// The longest pause before a waiting claim is placed again, in ms.
const LONGEST_PAUSE: u32 = 250;

pub(crate) async fn place(state: &Arc<State>, claim: &Claim) -> Result<Standing> {
    if state.is_closed() {
        return Err(Error::Closed);
    }
    check_name(&claim.name)?;
    if let Some(grant) = renew_held(state, claim).await? {
        return Ok(Standing::Held(grant));
    }
    let mut entry = state.entries.find(&claim.id);
    let contention = state.contention.of(&claim.name);
    let floor = claim.floor.get();
    let mut fast = entry.is_none() && !claim.record && floor == 0 && !contention.is_contended();
    let mut hint = entry.as_deref().map_or(0, take_hint);
    let mut splits = 0;
    loop {
        if claim.wait && !fast && entry.is_none() {
            entry = Some(state.entries.register(claim.id));
        }
        let manner = Manner {
            fast,
            hint: hint.max(if floor > 0 { floor + 1 } else { 0 }),
            waits: claim.wait && !fast,
            gate: hint > 0 && state.config.gate,
        };
        match attempt(state, claim, manner).await {
            Outcome::Granted(grant) => {
                state.tokens.note(claim.id, &grant);
                state.entries.remove(&claim.id);
                if !fast && entry.is_none() {
                    contention.lower();
                }
                return Ok(Standing::Held(grant));
            }
            Outcome::Taken(_) if fast && claim.wait => contention.raise(),
            Outcome::Taken(left) => {
                contention.raise();
                if !claim.wait {
                    return Ok(Standing::Busy);
                }
                return Ok(waiting(recheck(entry.as_deref(), left)));
            }
            Outcome::Split(highest) => {
                contention.raise();
                hint = highest;
                splits += 1;
                let most = 1000 << splits.min(5);
                let pause = Duration::from_micros(fastrand::u64(500..=most));
                if let Some(entry) = &entry {
                    entry.ticket.store(hint, Ordering::Relaxed);
                    return Ok(waiting(pause));
                }
                if splits >= SPLITS {
                    return Ok(Standing::Busy);
                }
                tokio::time::sleep(pause).await;
            }
            Outcome::Failed(error) => {
                if !error.is_retryable() {
                    state.entries.remove(&claim.id);
                }
                return Err(error);
            }
        }
        fast = false;
    }
}

/// The number that an earlier attempt suggested, if its vote was split; otherwise 0.
fn take_hint(entry: &Entry) -> u64 {
    entry.ticket.swap(0, Ordering::Relaxed)
}

fn waiting(pause: Duration) -> Standing {
    Standing::Waiting(Place::new(Clock::Boot.now() + pause))
}

/// When to place the claim again while the lock is held.
fn recheck(entry: Option<&Entry>, left: Option<Duration>) -> Duration {
    let next = entry.map_or_else(
        || pause_after(0, LONGEST_PAUSE),
        |entry| entry.next_pause(LONGEST_PAUSE),
    );
    let pause = Duration::from_millis(next.into());
    match left {
        Some(left) => pause.min(left + Duration::from_millis(fastrand::u64(1..=10))),
        None => pause,
    }
}
