//! Releases a hold, leaves the queue, abandons; and settles requests of unknown outcome.

use std::collections::HashMap;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, Result};

use super::change::{Change, Written};
use super::dialect::Dialect;
use super::pool::{Lane, attempt};
use super::state::{Done, State, Tried, Unsettled, action, pause, write};

impl<D: Dialect> State<D> {
    pub(super) async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.forget(claim.id);
        self.contention.of(&claim.name).clear_last();
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(action("releasing", &claim.name));
        let done = attempt!(call, Lane::Others, |session| {
            withdraw(dialect, session, claim, how).await
        });
        self.wake(&done.next);
        let answer = match done.answer {
            // An earlier attempt, whose answer was lost, has done it.
            Withdrawn::NotOwner | Withdrawn::Expired if !call.lost.is_empty() => {
                Withdrawn::Released
            }
            answer => answer,
        };
        let Some(unsettled) = self.unsettled.lock().remove(&claim.id) else {
            return Ok(answer);
        };
        let release = || action("releasing", &claim.name);
        match self.settle(release(), &unsettled.connections).await {
            // After this no request can take effect any more. What took effect before is undone.
            Ok(true) => {
                let again = attempt!(call, Lane::Others, |session| {
                    withdraw(dialect, session, claim, how).await
                });
                Ok(match again.answer {
                    Withdrawn::Expired | Withdrawn::NotOwner => answer,
                    found => found,
                })
            }
            Ok(false) | Err(_) if unsettled.until > Clock::Boot.now() => {
                self.unsettled.lock().insert(claim.id, unsettled);
                Err(Error::unsettled(dialect, release()))
            }
            _ => Ok(answer),
        }
    }

    /// Makes sure that no request on these connections can take effect any more.
    pub(super) async fn settle(
        &self,
        action: impl Into<String>,
        connections: &[String],
    ) -> Result<bool> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call(action);
        Ok(attempt!(call, Lane::Others, |session| {
            let mut settled = Ok(true);
            for id in connections {
                settled = dialect.end_connection(session, id).await;
                if !matches!(settled, Ok(true)) {
                    break;
                }
            }
            settled
        }))
    }
}

pub(super) async fn withdraw<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    how: Leave,
) -> Tried<Done<Withdrawn>> {
    let abandons = how == Leave::Abandon && !claim.lock_delay.is_zero();
    if !abandons && dialect.release(session, claim).await? {
        return Ok(Done::alone(Withdrawn::Released));
    }
    loop {
        let Some(read) = dialect.read(session, &claim.name).await? else {
            return Ok(Done::alone(Withdrawn::Expired));
        };
        let (change, answer) = if let Some(holder) = read.rows.holder(claim.id) {
            match holder.expiry > read.now {
                true if abandons => {
                    let lock_delay = claim.lock_delay;
                    (Change::Abandon { holder, lock_delay }, Withdrawn::Released)
                }
                true => (Change::Release { holder }, Withdrawn::Released),
                false => (Change::Reap, Withdrawn::Expired),
            }
        } else if let Some(ticket) = read.rows.ticket(claim.id) {
            (Change::LeaveQueue { ticket }, Withdrawn::LeftQueue)
        } else {
            let free = (read.rows.holders.iter()).all(|holder| holder.expiry <= read.now);
            return Ok(Done::alone(match free {
                true => Withdrawn::Expired,
                false => Withdrawn::NotOwner,
            }));
        };
        let (written, next) = write(dialect, session, &claim.name, &read, change).await?;
        match written {
            Written::Done(_) => return Ok(Done { answer, next }),
            Written::Stale => pause().await,
        }
    }
}

/// Forgets requests that can no longer lead to a hold, even if no withdrawal ever succeeds.
pub(super) fn forget_settled(unsettled: &mut HashMap<ClaimId, Unsettled>, now: BootInstant) {
    unsettled.retain(|_, requests| requests.until > now);
    unsettled.shrink_to_fit();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unsettled_requests_are_kept_no_longer_than_they_matter() {
        let ids = fencelock_core::ClaimIds::new().unwrap();
        let now = Clock::Boot.now();
        let requests = |until| Unsettled {
            connections: vec!["1 here".into()],
            until,
        };
        let (old, new) = (ids.next(), ids.next());
        let later = now + Duration::from_secs(1);
        let mut unsettled = HashMap::from([(old, requests(now)), (new, requests(later))]);
        forget_settled(&mut unsettled, now);
        assert!(!unsettled.contains_key(&old) && unsettled.contains_key(&new));
    }
}
