//! Renewals: the holds of each session are confirmed in few transactions.

use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::engine::{HeldClaim, LeaseKind, Renewal};
use fencelock_core::{BootInstant, Clock};
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, join_all};
use zookeeper_client::{Error as Refusal, MultiWriteResult};

use crate::connection::Connection;
use crate::entry::Entry;
use crate::error::Failure;
use crate::state::State;

/// How many holds go into one transaction. Their paths stay well below the limit of a server's request.
const BATCH: usize = 200;

/// How often a batch is sent again without the holds that turned out to be lost.
const ATTEMPTS: usize = 4;

/// A hold to renew, with its index in the request.
#[derive(Clone)]
struct Hold<'a> {
    at: usize,
    held: &'a HeldClaim,
    entry: Arc<Entry>,
}

const SESSION_ENDED: Renewal = Renewal::Ended(LeaseKind::Session);

type Renewals = Vec<(usize, Renewal)>;

enum Step {
    Lost,
    SessionEnded,
    /// By moving it to a session that lasts long enough.
    Move,
    /// In its present session, which has this id.
    Stay(i64),
}

impl State {
    pub(crate) async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
        let mut batches: Vec<BoxFuture<'_, Renewals>> = Vec::new();
        // A write confirms its own session only.
        let mut by_session: HashMap<i64, Vec<Hold<'_>>> = HashMap::new();
        for (at, held) in held.iter().enumerate() {
            let Some(entry) = self.entry(held.claim.id) else {
                renewals[at] = Some(Renewal::Lost);
                continue;
            };
            let uncertain = entry.known.lock().uncertain;
            let hold = Hold { at, held, entry };
            if uncertain {
                batches.push(Box::pin(self.renew_uncertain(hold)));
                continue;
            }
            match self.next_step(&hold) {
                Step::Lost => renewals[at] = Some(Renewal::Lost),
                Step::SessionEnded => renewals[at] = Some(SESSION_ENDED),
                Step::Move => batches.push(Box::pin(self.renew_by_move(hold))),
                Step::Stay(session) => by_session.entry(session).or_default().push(hold),
            }
        }
        for holds in by_session.into_values() {
            for batch in holds.chunks(BATCH) {
                batches.push(Box::pin(self.renew_batch(batch.to_vec())));
            }
        }
        for (at, renewal) in join_all(batches).await.into_iter().flatten() {
            renewals[at] = Some(renewal);
        }
        let all = renewals.into_iter().zip(held);
        all.map(|(renewal, held)| {
            // A hold whose node was deleted meanwhile was left out of its batch.
            renewal.unwrap_or_else(|| self.unknown(held, "its node is being deleted"))
        })
        .collect()
    }

    /// How to renew a hold that is not uncertain.
    fn next_step(&self, hold: &Hold<'_>) -> Step {
        let (known, claim) = (hold.entry.known.lock(), &hold.held.claim);
        let ended = known.ended || known.node.is_none();
        if !ended && known.session.is_expired() {
            Step::SessionEnded
        } else if ended || Clock::Boot.now() > known.ends_at {
            Step::Lost
        } else if !known.tokens().contains(hold.held.token) || known.mode() != Some(claim.mode) {
            // It holds by another grant.
            Step::Lost
        } else if known.managed.timeout < self.sessions.timeout(claim) {
            Step::Move
        } else {
            Step::Stay(known.session.id)
        }
    }

    /// Settles the outcome of an earlier request first. The other holds do not wait for that.
    async fn renew_uncertain(&self, hold: Hold<'_>) -> Renewals {
        if let Err(failure) = self.settle(&hold.entry).await {
            let error = self.error(renewing(hold.held), failure);
            return vec![(hold.at, Renewal::Unknown(error))];
        }
        match self.next_step(&hold) {
            Step::Lost => vec![(hold.at, Renewal::Lost)],
            Step::SessionEnded => vec![(hold.at, SESSION_ENDED)],
            Step::Move => self.renew_by_move(hold).await,
            Step::Stay(_) => self.renew_batch(vec![hold]).await,
        }
    }

    /// The first renewal of a hold whose ttl is longer than the session in which it waited.
    async fn renew_by_move(&self, hold: Hold<'_>) -> Renewals {
        let HeldClaim { claim, token, .. } = hold.held;
        let timeout = self.sessions.timeout(claim);
        let token = hold.entry.known.lock().recorded.max(*token);
        let renewal = match self.move_to(&hold.entry, claim, timeout, token).await {
            Ok((sent, _)) => self.kept(&hold, sent),
            Err(Failure::Refused(Refusal::NoNode)) => Renewal::Lost,
            Err(failure) => Renewal::Unknown(self.error(renewing(hold.held), failure)),
        };
        vec![(hold.at, renewal)]
    }

    /// Renews holds of one session together.
    async fn renew_batch(&self, mut batch: Vec<Hold<'_>>) -> Renewals {
        let mut renewals = Vec::new();
        let mut why = Failure::Unanswered("other clients keep changing its node".into());
        for _ in 0..ATTEMPTS {
            let Some(first) = batch.first() else {
                return renewals;
            };
            let managed = Arc::clone(&first.entry.known.lock().managed);
            let connection = match managed.connection().await {
                Ok(connection) => connection,
                Err(failure) => {
                    why = failure;
                    break;
                }
            };
            match self.send_batch(&connection, &batch).await {
                Ok(renewed) => {
                    renewals.extend(renewed);
                    return renewals;
                }
                Err(Failure::Refused(_)) => {
                    // At least one node is gone, or another client wrote into it.
                    let (left, lost) = self.check_each(&connection, batch).await;
                    renewals.extend(lost.into_iter().map(|at| (at, Renewal::Lost)));
                    batch = left;
                }
                Err(failure) => {
                    why = failure;
                    break;
                }
            }
        }
        let why = match why {
            Failure::Unanswered(why) => why,
            Failure::Refused(refusal) => refusal.to_string(),
        };
        let unknown = batch
            .iter()
            .map(|hold| (hold.at, self.unknown(hold.held, &why)));
        renewals.extend(unknown);
        renewals
    }

    /// Confirms the nodes of holds in one transaction, and records tokens that were handed on.
    async fn send_batch(
        &self,
        connection: &Arc<Connection>,
        batch: &[Hold<'_>],
    ) -> Result<Renewals, Failure> {
        let mut writer = connection.client().new_multi_writer();
        let mut writes = Vec::new();
        for hold in batch {
            let known = hold.entry.known.lock().clone();
            let Some(node) = &known.node else { continue };
            let path = hold.entry.lock_node.child(&node.name);
            let HeldClaim { claim, token, .. } = hold.held;
            // The driver refuses bad paths only, and these nodes exist.
            let _ = if known.recorded >= *token {
                // A late renewal, from before the token was handed on, does not take it back.
                writer.add_check_version(&path, -1)
            } else {
                let data = known.data(claim, *token);
                writer.add_set_data(&path, &data.write(), Some(node.version))
            };
            writes.push(hold);
        }
        let sent = Clock::Boot.now();
        let commit = writer.commit();
        let committed = connection.write(sent, commit.map_err(Refusal::from));
        let results = committed.await?;
        let renewed = writes.into_iter().zip(results).map(|(hold, result)| {
            if let MultiWriteResult::SetData { stat } = result {
                let mut known = hold.entry.known.lock();
                known.recorded = hold.held.token;
                if let Some(node) = &mut known.node {
                    node.version = stat.version;
                }
            }
            self.watch_hold(&hold.entry, connection);
            (hold.at, self.kept(hold, sent))
        });
        Ok(renewed.collect())
    }

    /// Reads the node of each hold. Returns the holds that are left, and the indexes of those whose node is gone.
    async fn check_each<'a>(
        &self,
        connection: &Connection,
        batch: Vec<Hold<'a>>,
    ) -> (Vec<Hold<'a>>, Vec<usize>) {
        let reads = batch.iter().map(|Hold { entry, .. }| {
            let node = entry.known.lock().node.clone();
            let path = node.map(|node| entry.lock_node.child(&node.name));
            async move {
                match path {
                    Some(path) => connection.read(connection.client().get_data(&path)).await,
                    None => Err(Failure::Refused(Refusal::NoNode)),
                }
            }
        });
        let replies = join_all(reads).await;
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        for (hold, reply) in batch.into_iter().zip(replies) {
            match reply {
                Ok((bytes, stat)) => {
                    if let Some(node) = &mut hold.entry.known.lock().node {
                        node.version = stat.version;
                    }
                    self.note_written(&hold.entry, &bytes);
                    left.push(hold);
                }
                Err(Failure::Refused(Refusal::NoNode)) => lost.push(hold.at),
                // The next attempt finds out.
                Err(_) => left.push(hold),
            }
        }
        (left, lost)
    }

    /// The result for a hold whose node was confirmed by a request sent at `sent`.
    fn kept(&self, hold: &Hold<'_>, sent: BootInstant) -> Renewal {
        let (entry, claim) = (&hold.entry, &hold.held.claim);
        let (session, asked) = {
            let known = entry.known.lock();
            (Arc::clone(&known.session), known.asked)
        };
        let lease = self.sessions.lease(claim, &session);
        let ends_at = sent + (lease + claim.lock_delay);
        if !self.hold_until(entry, ends_at, hold.held.shorten) {
            // It ended while the request was in flight.
            return Renewal::Lost;
        }
        Renewal::kept(sent, lease, asked)
    }

    fn unknown(&self, held: &HeldClaim, why: &str) -> Renewal {
        let failure = Failure::Unanswered(why.to_owned());
        Renewal::Unknown(self.error(renewing(held), failure))
    }
}

fn renewing(held: &HeldClaim) -> String {
    format!("renewing lock {}", held.claim.name)
}
