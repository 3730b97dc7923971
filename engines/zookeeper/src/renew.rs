//! Renewals.

use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::engine::{Claim, HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock};
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, join_all};
use zookeeper_client::{Error as Refusal, MultiWriteResult};

use crate::connection::Link;
use crate::entry::Spot;
use crate::error::Trouble;
use crate::state::Store;

/// How many holds go into one transaction: their paths stay well below what a server takes in one request.
const BATCH: usize = 200;

/// How often a batch is sent again without those that were found lost.
const TRIES: usize = 4;

/// What became of holds, with their places in the batch.
type Renewed = Vec<(usize, Renewal)>;

/// How a hold is to be renewed.
enum Next {
    /// Not at all.
    Lost,
    /// By moving to a session that lasts for it.
    Move,
    /// In the session that it has, by this id.
    Stay(i64),
}

impl Store {
    pub(crate) async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
        let mut batches: Vec<BoxFuture<'_, Renewed>> = Vec::new();
        // By their session: what is written in one says nothing of another.
        let mut stays: HashMap<i64, Vec<(usize, Arc<Spot>)>> = HashMap::new();
        for (at, held_one) in held.iter().enumerate() {
            let Some(spot) = self.spot(held_one.claim.id) else {
                renewals[at] = Some(Renewal::Lost);
                continue;
            };
            if spot.now().unsure {
                batches.push(Box::pin(self.renew_unsure(held, at, spot)));
                continue;
            }
            match self.next_for(&spot, &held_one.claim) {
                Next::Lost => renewals[at] = Some(Renewal::Lost),
                Next::Move => batches.push(Box::pin(self.renew_by_move(held, at, spot))),
                Next::Stay(session) => stays.entry(session).or_default().push((at, spot)),
            }
        }
        for (_, of_session) in stays {
            for batch in of_session.chunks(BATCH) {
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
                let why = Trouble::Silent("it was not asked for".into());
                Renewal::Unknown(self.error(renewing(held), why))
            })
        })
        .collect()
    }

    /// How a hold of which nothing is unsure is to be renewed.
    fn next_for(&self, spot: &Spot, claim: &Claim) -> Next {
        let now = spot.now();
        let ended = now.over || now.node.is_none() || now.life.is_over();
        if ended || Clock::Boot.now() > now.until {
            Next::Lost
        } else if now.session.timeout < self.wanted(claim) {
            Next::Move
        } else {
            Next::Stay(now.life.id)
        }
    }

    /// Beside the others, which must not wait for what becomes of one of them.
    async fn renew_unsure(&self, held: &[HeldClaim], at: usize, spot: Arc<Spot>) -> Renewed {
        if let Err(trouble) = self.settle(&spot).await {
            let error = self.error(renewing(&held[at]), trouble);
            return vec![(at, Renewal::Unknown(error))];
        }
        match self.next_for(&spot, &held[at].claim) {
            Next::Lost => vec![(at, Renewal::Lost)],
            Next::Move => self.renew_by_move(held, at, spot).await,
            Next::Stay(_) => self.renew_batch(held, vec![(at, spot)]).await,
        }
    }

    /// The first renewal of a hold whose ttl is longer than the session of the line: it moves to one that lasts.
    async fn renew_by_move(&self, held: &[HeldClaim], at: usize, spot: Arc<Spot>) -> Renewed {
        let HeldClaim { claim, token, .. } = &held[at];
        let wanted = self.wanted(claim);
        let renewal = match self.move_to(&spot, claim, wanted, *token).await {
            Ok((sent, _)) => self.kept(&spot, claim, sent),
            Err(Trouble::Answered(Refusal::NoNode)) => Renewal::Lost,
            Err(trouble) => Renewal::Unknown(self.error(renewing(&held[at]), trouble)),
        };
        vec![(at, renewal)]
    }

    /// Confirms holds of one session in one transaction, and writes down the tokens that were handed on.
    async fn renew_batch(&self, held: &[HeldClaim], batch: Vec<(usize, Arc<Spot>)>) -> Renewed {
        let mut batch = batch;
        let mut renewed = Vec::new();
        let mut why = Trouble::Silent("others keep changing it".into());
        for _ in 0..TRIES {
            let Some((_, first)) = batch.first() else {
                return renewed;
            };
            let session = Arc::clone(&first.now().session);
            let link = match session.link().await {
                Ok(link) => link,
                Err(trouble) => {
                    why = trouble;
                    break;
                }
            };
            let mut writer = link.client().new_multi_writer();
            let mut writes = Vec::new();
            for (at, spot) in &batch {
                let now = spot.now().clone();
                let Some(node) = &now.node else { continue };
                let path = spot.above.below(&node.name);
                let token = held[*at].token;
                // The paths were good when the nodes were made.
                let _ = if now.recorded == token {
                    writer.add_check_version(&path, -1)
                } else {
                    let data = now.data(&held[*at].claim, token);
                    writer.add_set_data(&path, &data.write(), Some(node.version))
                };
                writes.push((*at, Arc::clone(spot), token));
            }
            let sent = Clock::Boot.now();
            let commit = writer.commit();
            let committed = link.write(sent, commit.map_err(Refusal::from));
            match committed.await {
                Ok(results) => {
                    for ((at, spot, token), result) in writes.into_iter().zip(results) {
                        if let MultiWriteResult::SetData { stat } = result {
                            let mut now = spot.now();
                            now.recorded = token;
                            if let Some(node) = &mut now.node {
                                node.version = stat.version;
                            }
                        }
                        self.arm(&spot, &link);
                        renewed.push((at, self.kept(&spot, &held[at].claim, sent)));
                    }
                    return renewed;
                }
                Err(Trouble::Answered(_)) => {
                    // One of them, at least, is gone or was written into.
                    let (left, lost) = self.look_at_each(&link, batch).await;
                    renewed.extend(lost.into_iter().map(|at| (at, Renewal::Lost)));
                    batch = left;
                }
                Err(trouble) => {
                    why = trouble;
                    break;
                }
            }
        }
        let why = match &why {
            Trouble::Silent(why) => why.clone(),
            Trouble::Answered(refusal) => refusal.to_string(),
        };
        renewed.extend(batch.into_iter().map(|(at, _)| {
            let error = self.error(renewing(&held[at]), Trouble::Silent(why.clone()));
            (at, Renewal::Unknown(error))
        }));
        renewed
    }

    /// Those whose nodes are there, and the places of those that are gone.
    async fn look_at_each(
        &self,
        link: &Link,
        batch: Vec<(usize, Arc<Spot>)>,
    ) -> (Vec<(usize, Arc<Spot>)>, Vec<usize>) {
        let looks = batch.iter().map(|(_, spot)| {
            let node = spot.now().node.clone();
            let path = node.map(|node| spot.above.below(&node.name));
            async move {
                match path {
                    Some(path) => link.read(link.client().get_data(&path)).await,
                    None => Err(Trouble::Answered(Refusal::NoNode)),
                }
            }
        });
        let seen = join_all(looks).await;
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        for ((at, spot), seen) in batch.into_iter().zip(seen) {
            match seen {
                Ok((bytes, stat)) => {
                    if let Some(node) = &mut spot.now().node {
                        node.version = stat.version;
                    }
                    self.note_written(&spot, &bytes);
                    left.push((at, spot));
                }
                Err(Trouble::Answered(Refusal::NoNode)) => lost.push(at),
                // Asked again with the others.
                Err(_) => left.push((at, spot)),
            }
        }
        (left, lost)
    }

    fn kept(&self, spot: &Spot, claim: &Claim, sent: BootInstant) -> Renewal {
        let (life, asked, over) = {
            let now = spot.now();
            (Arc::clone(&now.life), now.asked, now.over)
        };
        if over {
            // Its end came first.
            return Renewal::Lost;
        }
        let lease = self.lease(claim, &life);
        self.stand_until(spot, sent + (lease + claim.lock_delay));
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
