//! Holds: renewed in batches, watched for what others do to them, ended when nobody renews them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Event, HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock, LockName};
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use zookeeper_client::{Error as Refusal, MultiWriteResult};

use crate::data::Data;
use crate::session::{Link, Trouble};
use crate::store::{Node, PARENT_DATA, Parent, Spot, Store};

/// How many holds go into one transaction: their paths stay well below what a server takes in one request.
const BATCH: usize = 200;

/// How often a batch is sent again without those that were found lost.
const TRIES: usize = 4;

/// For how long the node of a name is kept when nobody of this client uses it.
const IDLE: Duration = Duration::from_secs(1);

/// How often idle nodes are looked for.
const TIDY: Duration = Duration::from_millis(300);

/// How many requests to tidy up are on their way at once.
pub(crate) const AT_ONCE: usize = 256;

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

    /// Notes what others wrote into a hold's node.
    pub(crate) fn note_written(&self, spot: &Spot, bytes: &[u8]) {
        let Ok(data) = Data::read(bytes) else { return };
        let news = {
            let mut now = spot.now();
            let news = data.asked && !now.asked;
            now.asked |= data.asked;
            now.ping = data.ping;
            news
        };
        if news {
            // Nobody listens any more if the client is gone.
            let _ = self.tell.send(Event::Asked(spot.id));
        }
    }

    /// A hold that others may want to join has its node watched from the beginning.
    pub(crate) fn arm_if_recorded(&self, spot: &Arc<Spot>, claim: &Claim, link: &Arc<Link>) {
        if claim.record {
            self.arm(spot, link);
        }
    }

    /// Has a hold's node watched, so that its holder hears at once when it is asked or evicted. Not before the first
    /// renewal unless others may want to join it: most holds are over by then, and those asked before hear of it then.
    fn arm(&self, spot: &Arc<Spot>, link: &Arc<Link>) {
        let weak = Arc::downgrade(link);
        let mut now = spot.now();
        if now.watched.ptr_eq(&weak) {
            return;
        }
        now.watched = weak;
        // The task ends with the engine.
        let _ = self.watch.send((Arc::clone(spot), Arc::clone(link)));
    }

    /// One look at a watched hold: tells what was done to it, and waits for the next change.
    async fn watch_once(&self, spot: &Arc<Spot>, link: &Arc<Link>) -> Result<Seen, Trouble> {
        let Some(node) = spot.now().node.clone() else {
            return Ok(Seen::Over);
        };
        let path = spot.above.below(&node.name);
        match link.read(link.client().get_and_watch_data(&path)).await {
            Ok((bytes, stat, watcher)) => {
                if let Some(Node { version, .. }) = &mut spot.now().node {
                    *version = stat.version;
                }
                self.note_written(spot, &bytes);
                self.answer(spot, &bytes, stat.version).await?;
                // In this order: a watcher must not be asked once its connection is gone.
                tokio::select! {
                    biased;
                    () = link.ended() => Ok(Seen::Over),
                    _ = watcher.changed() => Ok(Seen::Changed),
                }
            }
            Err(Trouble::Answered(Refusal::NoNode)) => {
                let (taken, moved) = {
                    let now = spot.now();
                    let same = now.node.as_ref().is_some_and(|now| now.name == node.name);
                    let held = now.held && !now.over && !now.unsure;
                    (held && same, held && now.node.is_some() && !same)
                };
                if taken {
                    let _ = self.tell.send(Event::Lost(spot.id));
                }
                Ok(if moved { Seen::Changed } else { Seen::Over })
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Tells of the holds whose session the servers ended.
    pub(crate) fn tell_of(&self, life: &Arc<crate::session::Life>) {
        let spots: Vec<_> = self.state().spots.values().map(Arc::clone).collect();
        for spot in spots {
            let lost = {
                let now = spot.now();
                now.held && !now.over && Arc::ptr_eq(&now.life, life)
            };
            if lost {
                let _ = self.tell.send(Event::Lost(spot.id));
            }
        }
    }

    /// Ends holds whose time is over, and deletes the nodes of names that nobody uses. Says when to come again.
    async fn tidy(&self) -> Option<BootInstant> {
        let over = self.take_over();
        let ended = over.iter().map(|spot| async move {
            let unsure = spot.now().unsure;
            let settled = match unsure {
                true => self.settle(spot).await,
                false => Ok(()),
            };
            if settled.is_ok() && self.delete(spot).await.is_ok() {
                return self.remove(spot);
            }
            // Again soon.
            let soon = Clock::Boot.now() + TIDY;
            self.state().ends.push(Reverse((soon, spot.id)));
        });
        join_all(ended).await;
        self.drop_parents(IDLE).await;
        let mut state = self.state();
        let end = state.ends.peek().map(|Reverse((at, _))| *at);
        let idle = state.parents.values().any(|parent| parent.uses == 0);
        let soon = idle.then(|| Clock::Boot.now() + TIDY);
        let next = end.into_iter().chain(soon).min();
        state.tidies = next.is_some();
        next
    }

    /// The holds whose time is over, no more than can be asked for at once.
    fn take_over(&self) -> Vec<Arc<Spot>> {
        let moment = Clock::Boot.now();
        let mut over = Vec::new();
        let mut state = self.state();
        while let Some(Reverse((at, id))) = state.ends.peek().copied() {
            if at > moment || over.len() >= AT_ONCE {
                break;
            }
            state.ends.pop();
            let Some(spot) = state.spots.get(&id).map(Arc::clone) else {
                continue;
            };
            let until = {
                let mut now = spot.now();
                now.over |= now.until <= moment;
                now.until
            };
            if until > moment {
                // Prolonged meanwhile.
                state.ends.push(Reverse((until, id)));
            } else {
                over.push(spot);
            }
        }
        over
    }

    /// Deletes the nodes of names that this client has not used for so long. Others may still use them; then they stay, as
    /// those do that another library made to stay.
    pub(crate) async fn drop_parents(&self, idle: Duration) {
        let moment = Clock::Boot.now();
        let names: Vec<_> = {
            let mut state = self.state();
            let unused = |_: &LockName, parent: &mut Parent| {
                parent.uses == 0 && moment.since(parent.idle_since) >= idle
            };
            let unused = state.parents.extract_if(unused);
            unused.map(|(name, parent)| (name, parent.ours)).collect()
        };
        for names in names.chunks(AT_ONCE) {
            let Ok(link) = self.line.link().await else {
                // The servers delete them themselves in the end: they are containers.
                return;
            };
            let deleted = names.iter().map(|(name, ours)| {
                let (path, link) = (self.parent(name), &link);
                async move {
                    if !ours {
                        let found = link.read(link.client().get_data(&path)).await;
                        if !found.is_ok_and(|(data, _)| data == PARENT_DATA) {
                            return;
                        }
                    }
                    let delete = link.client().delete(&path, None);
                    // Not if it has children by now.
                    drop(link.write(Clock::Boot.now(), delete).await);
                }
            });
            join_all(deleted).await;
        }
    }
}

/// What a watched node showed.
enum Seen {
    Changed,
    Over,
}

/// The task that watches holds.
pub(crate) async fn watch(
    store: Arc<Store>,
    mut asked: mpsc::UnboundedReceiver<(Arc<Spot>, Arc<Link>)>,
) {
    let mut watching = FuturesUnordered::new();
    let one = |spot: Arc<Spot>, link: Arc<Link>| {
        let store = Arc::clone(&store);
        async move {
            while matches!(store.watch_once(&spot, &link).await, Ok(Seen::Changed)) {}
            // So that it can be watched over the same connection again.
            let mut now = spot.now();
            if now.watched.ptr_eq(&Arc::downgrade(&link)) {
                now.watched = std::sync::Weak::new();
            }
        }
    };
    loop {
        tokio::select! {
            more = asked.recv() => match more {
                Some((spot, link)) => watching.push(one(spot, link)),
                None => return,
            },
            Some(()) = watching.next(), if !watching.is_empty() => {}
        }
    }
}

/// The task that tidies up.
pub(crate) async fn tidy(store: Arc<Store>) {
    loop {
        let next = store.tidy().await;
        let work = store.work.notified();
        match next {
            Some(next) => {
                let pause = next.since(Clock::Boot.now()).min(TIDY);
                let pause = pause.max(Duration::from_millis(1));
                // Whichever comes first.
                drop(tokio::time::timeout(pause, work).await);
            }
            None => work.await,
        }
    }
}

fn renewing(held: &HeldClaim) -> String {
    format!("renewing lock {}", held.claim.name)
}
