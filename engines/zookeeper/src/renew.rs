//! Renewals.

use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::engine::{Claim, HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock};
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, join_all};
use zookeeper_client::{Error as Refusal, MultiWriteResult};

use crate::connection::Connection;
use crate::entry::Entry;
use crate::error::Failure;
use crate::state::State;

/// How many holds go into one transaction: their paths stay well below what a server takes in one request.
const RENEW_BATCH: usize = 200;

/// How often a batch is sent again without those that were found lost.
const ATTEMPTS: usize = 4;

/// What became of holds, with their places in the batch.
type Renewals = Vec<(usize, Renewal)>;

/// How a hold is to be renewed.
enum Next {
    /// Not at all.
    Lost,
    /// By moving to a session that lasts for it.
    Move,
    /// In the session that it has, by this id.
    Stay(i64),
}

impl State {
    pub(crate) async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
        let mut batches: Vec<BoxFuture<'_, Renewals>> = Vec::new();
        // By their session: what is written in one says nothing of another.
        let mut stays: HashMap<i64, Vec<(usize, Arc<Entry>)>> = HashMap::new();
        for (at, held_one) in held.iter().enumerate() {
            let Some(entry) = self.entry(held_one.claim.id) else {
                renewals[at] = Some(Renewal::Lost);
                continue;
            };
            if entry.known().uncertain {
                batches.push(Box::pin(self.renew_unsure(held, at, entry)));
                continue;
            }
            match self.next_step(&entry, &held_one.claim) {
                Next::Lost => renewals[at] = Some(Renewal::Lost),
                Next::Move => batches.push(Box::pin(self.renew_by_move(held, at, entry))),
                Next::Stay(managed) => stays.entry(managed).or_default().push((at, entry)),
            }
        }
        for (_, of_session) in stays {
            for batch in of_session.chunks(RENEW_BATCH) {
                batches.push(Box::pin(self.renew_batch(held, batch.to_vec())));
            }
        }
        for (at, renewal) in join_all(batches).await.into_iter().flatten() {
            renewals[at] = Some(renewal);
        }
        let all = renewals.into_iter().zip(held);
        all.map(|(renewal, held)| {
            // Each was put into one of the heaps above.
            renewal.unwrap_or_else(|| {
                let why = Failure::Unanswered("it was not asked for".into());
                Renewal::Unknown(self.error(renewing(held), why))
            })
        })
        .collect()
    }

    /// How a hold of which nothing is unsure is to be renewed.
    fn next_step(&self, entry: &Entry, claim: &Claim) -> Next {
        let known = entry.known();
        let ended = known.ended || known.node.is_none() || known.session.is_expired();
        if ended || Clock::Boot.now() > known.ends_at {
            Next::Lost
        } else if known.managed.timeout < self.session_timeout(claim) {
            Next::Move
        } else {
            Next::Stay(known.session.id)
        }
    }

    /// Beside the others, which must not wait for what becomes of one of them.
    async fn renew_unsure(&self, held: &[HeldClaim], at: usize, entry: Arc<Entry>) -> Renewals {
        if let Err(failure) = self.settle(&entry).await {
            let error = self.error(renewing(&held[at]), failure);
            return vec![(at, Renewal::Unknown(error))];
        }
        match self.next_step(&entry, &held[at].claim) {
            Next::Lost => vec![(at, Renewal::Lost)],
            Next::Move => self.renew_by_move(held, at, entry).await,
            Next::Stay(_) => self.renew_batch(held, vec![(at, entry)]).await,
        }
    }

    /// The first renewal of a hold whose ttl is longer than the session of the line: it moves to one that lasts.
    async fn renew_by_move(&self, held: &[HeldClaim], at: usize, entry: Arc<Entry>) -> Renewals {
        let HeldClaim { claim, token, .. } = &held[at];
        let wanted = self.session_timeout(claim);
        let renewal = match self.move_to(&entry, claim, wanted, *token).await {
            Ok((sent, _)) => self.renewed(&entry, claim, sent),
            Err(Failure::Refused(Refusal::NoNode)) => Renewal::Lost,
            Err(failure) => Renewal::Unknown(self.error(renewing(&held[at]), failure)),
        };
        vec![(at, renewal)]
    }

    /// Confirms holds of one session in one transaction, and writes down the tokens that were handed on.
    async fn renew_batch(&self, held: &[HeldClaim], batch: Vec<(usize, Arc<Entry>)>) -> Renewals {
        let mut batch = batch;
        let mut renewed = Vec::new();
        let mut why = Failure::Unanswered("others keep changing it".into());
        for _ in 0..ATTEMPTS {
            let Some((_, first)) = batch.first() else {
                return renewed;
            };
            let managed = Arc::clone(&first.known().managed);
            let connection = match managed.connection().await {
                Ok(connection) => connection,
                Err(failure) => {
                    why = failure;
                    break;
                }
            };
            let mut writer = connection.client().new_multi_writer();
            let mut writes = Vec::new();
            for (at, entry) in &batch {
                let known = entry.known().clone();
                let Some(node) = &known.node else { continue };
                let path = entry.lock_node.child(&node.name);
                let token = held[*at].token;
                // The paths were good when the nodes were made.
                let _ = if known.recorded == token {
                    writer.add_check_version(&path, -1)
                } else {
                    let data = known.data(&held[*at].claim, token);
                    writer.add_set_data(&path, &data.write(), Some(node.version))
                };
                writes.push((*at, Arc::clone(entry), token));
            }
            let sent = Clock::Boot.now();
            let commit = writer.commit();
            let committed = connection.write(sent, commit.map_err(Refusal::from));
            match committed.await {
                Ok(results) => {
                    for ((at, entry, token), result) in writes.into_iter().zip(results) {
                        if let MultiWriteResult::SetData { stat } = result {
                            let mut known = entry.known();
                            known.recorded = token;
                            if let Some(node) = &mut known.node {
                                node.version = stat.version;
                            }
                        }
                        self.watch_hold(&entry, &connection);
                        renewed.push((at, self.renewed(&entry, &held[at].claim, sent)));
                    }
                    return renewed;
                }
                Err(Failure::Refused(_)) => {
                    // One of them, at least, is gone or was written into.
                    let (left, lost) = self.check_each(&connection, batch).await;
                    renewed.extend(lost.into_iter().map(|at| (at, Renewal::Lost)));
                    batch = left;
                }
                Err(failure) => {
                    why = failure;
                    break;
                }
            }
        }
        let why = match &why {
            Failure::Unanswered(why) => why.clone(),
            Failure::Refused(refusal) => refusal.to_string(),
        };
        renewed.extend(batch.into_iter().map(|(at, _)| {
            let error = self.error(renewing(&held[at]), Failure::Unanswered(why.clone()));
            (at, Renewal::Unknown(error))
        }));
        renewed
    }

    /// Those whose nodes are there, and the places of those that are gone.
    async fn check_each(
        &self,
        connection: &Connection,
        batch: Vec<(usize, Arc<Entry>)>,
    ) -> (Vec<(usize, Arc<Entry>)>, Vec<usize>) {
        let looks = batch.iter().map(|(_, entry)| {
            let node = entry.known().node.clone();
            let path = node.map(|node| entry.lock_node.child(&node.name));
            async move {
                match path {
                    Some(path) => connection.read(connection.client().get_data(&path)).await,
                    None => Err(Failure::Refused(Refusal::NoNode)),
                }
            }
        });
        let seen = join_all(looks).await;
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        for ((at, entry), seen) in batch.into_iter().zip(seen) {
            match seen {
                Ok((bytes, stat)) => {
                    if let Some(node) = &mut entry.known().node {
                        node.version = stat.version;
                    }
                    self.note_written(&entry, &bytes);
                    left.push((at, entry));
                }
                Err(Failure::Refused(Refusal::NoNode)) => lost.push(at),
                // Asked again with the others.
                Err(_) => left.push((at, entry)),
            }
        }
        (left, lost)
    }

    fn renewed(&self, entry: &Entry, claim: &Claim, sent: BootInstant) -> Renewal {
        let (session, asked, ended) = {
            let known = entry.known();
            (Arc::clone(&known.session), known.asked, known.ended)
        };
        if ended {
            // Its end came first.
            return Renewal::Lost;
        }
        let lease = self.lease(claim, &session);
        self.hold_until(entry, sent + (lease + claim.lock_delay));
        Renewal::Kept {
            counted_from: sent,
            lease,
            asked,
        }
    }
}

fn renewing(held: &HeldClaim) -> String {
    format!("renewing lock {}", held.claim.name)
}
