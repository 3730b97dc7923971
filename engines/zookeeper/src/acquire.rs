//! A claim's way into the line, to its turn.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Tokens};
use futures_util::TryFutureExt;
use futures_util::future::join3;
use zookeeper_client::{CreateMode, CreateOptions, Error as Refusal, MultiWriteResult};

use crate::alone_hint::Plan;
use crate::claim_node::{TRIES, confirm};
use crate::connection::{Link, make_root};
use crate::entry::{Node, Spot};
use crate::error::Trouble;
use crate::lock_node::PARENT_DATA;
use crate::names;
use crate::queue::Turn;
use crate::state::Store;
use crate::stored::{self, Data};

/// A waiter asks again after so long at the latest. Its watch tells it before; this is for what nobody foresaw.
const RECHECK: Duration = Duration::from_secs(15);

/// Over which connection a claim's node was made, the line then, and when that was asked for.
type Entered = (Arc<Link>, Seen, BootInstant);

/// What is known of the line that a claim stands in.
pub(crate) enum Seen {
    /// There is nobody else in it.
    Alone,
    /// The children of the node above it.
    Line(Vec<String>),
}

/// Where a claim stands.
pub(crate) enum Stood {
    Held(Grant),
    Waiting(Place),
    /// Its node is gone.
    Gone,
}

impl Store {
    pub(crate) async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_delay(claim)?;
        let spot = match self.spot(claim.id) {
            // Boxed, as all that is rare, so that the future of an uncontended lock stays small.
            Some(spot) => match Box::pin(self.again(&spot, claim)).await? {
                Stood::Held(grant) => return Ok(Standing::Held(grant)),
                Stood::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&spot, claim, place)).await;
                }
                Stood::Gone => spot,
            },
            None => {
                let trouble = |trouble| self.error(taking(claim), trouble);
                let session = self.line_session(claim).await.map_err(trouble)?;
                let link = session.link().await.map_err(trouble)?;
                if !claim.wait && !Box::pin(self.is_free(&link, claim)).await? {
                    return Ok(Standing::Busy);
                }
                self.add(claim, session, Arc::clone(&link.life))
            }
        };
        for _ in 0..TRIES {
            let entered = self.enter(&spot, claim).await;
            let (link, seen, sent) =
                entered.map_err(|trouble| self.error(taking(claim), trouble))?;
            match self.judge(&spot, claim, (&link, seen), sent).await? {
                Stood::Held(grant) => return Ok(Standing::Held(grant)),
                Stood::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&spot, claim, place)).await;
                }
                // Deleted as soon as it was there; by an administrator, one must think.
                Stood::Gone => {}
            }
        }
        let vanishes = Trouble::Silent("its node vanishes as soon as it is made".into());
        Err(self.error(taking(claim), vanishes))
    }

    /// A session must outlive the client's belief by the lock-delay.
    fn check_delay(&self, claim: &Claim) -> Result<()> {
        let longest = self.limits.1 / 2;
        if claim.lock_delay <= longest {
            return Ok(());
        }
        let given = format!("{:?}", claim.lock_delay);
        let why = format!(
            "sessions of this store last {:?} at most, which leaves {longest:?} for a lock-delay; raise the server's maxSessionTimeout",
            self.limits.1
        );
        Err(Error::invalid("lock-delay", given, why))
    }

    /// Whether a claim that is not to wait has a chance. Reading costs the servers less than a node that goes at once.
    async fn is_free(&self, link: &Link, claim: &Claim) -> Result<bool> {
        let children = self.fresh_children(link, &claim.name).await;
        let children = children.map_err(|trouble| self.error(taking(claim), trouble))?;
        let mut line = self.sorted(&claim.name, children)?;
        Ok(line.admits(claim.mode))
    }

    async fn wait_or_leave(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        place: Place,
    ) -> Result<Standing> {
        if claim.wait {
            return Ok(Standing::Waiting(place));
        }
        let left = self.leave(spot).await;
        left.map_err(|trouble| self.error(taking(claim), trouble))?;
        Ok(Standing::Busy)
    }

    /// Makes a claim's node, and sees the line with it.
    async fn enter(&self, spot: &Arc<Spot>, claim: &Claim) -> Result<Entered, Trouble> {
        // A node that this connection's server does not show may be there all the same.
        if spot.now().node.is_some() {
            Box::pin(self.delete(spot)).await?;
        }
        let session = Arc::clone(&spot.now().session);
        let link = session.link().await?;
        {
            let mut now = spot.now();
            now.life = Arc::clone(&link.life);
            now.node = None;
            now.from = None;
            now.held = false;
            now.over = false;
            now.asked = false;
            now.unsure = true;
            now.count = match claim.mode {
                Mode::Exclusive => claim.reserve.clamp(1, stored::MOST),
                Mode::Shared | Mode::Permit { .. } => 1,
            };
        }
        let data = Data::of(claim, spot.now().count).write();
        let above = &*spot.above;
        let before = names::prefix(claim.id, claim.mode);
        let prefix = above.below(&before);
        let options = CreateMode::EphemeralSequential.with_acls(self.config.acls());
        for _ in 0..TRIES {
            if !above.exists() {
                let first = self.enter_first(spot, &link, (&prefix, &data, &options));
                if let Some(entered) = Box::pin(first).await? {
                    return Ok(entered);
                }
                continue;
            }
            let sent = Clock::Boot.now();
            let ask = above.hint.plan(&link);
            let create = async {
                let create = link.client().create(&prefix, &data, &options);
                link.write(sent, create).await
            };
            let (watched, created, children) = match ask {
                Plan::ReadUnless(_) => (Ok(None), create.await, Ok(None)),
                Plan::Read | Plan::WatchAndRead => {
                    let alarm = async {
                        if ask != Plan::WatchAndRead {
                            return Ok(None);
                        }
                        let watch = link.client().check_and_watch_stat(&above.path);
                        link.read(watch).await.map(Some)
                    };
                    let list = self.children_now(&link, &above.path).map_ok(Some);
                    // Polled in this order, so sent in this order.
                    Box::pin(join3(alarm, create, list)).await
                }
            };
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(Trouble::Answered(Refusal::NoNode)) => {
                    above.set_exists(false);
                    continue;
                }
                Err(trouble) => return Err(self.if_answered(spot, trouble)),
            };
            let node = format!("{before}{sequence}");
            let found = Node {
                name: node.clone(),
                czxid: stat.czxid,
                version: 0,
            };
            self.made(spot, &link, found);
            if let Ok(Some((Some(_), watcher))) = watched {
                above.hint.set_watch(&link, watcher);
            }
            let number = sequence.into_i64();
            if ask == Plan::ReadUnless(number) && above.hint.confirms(number, &link) {
                return Ok((link, Seen::Alone, sent));
            }
            let children = match children? {
                Some(children) => children,
                None => Box::pin(self.children_now(&link, &above.path)).await?,
            };
            above.hint.note_children(&node, &link, &children);
            return Ok((link, Seen::Line(children), sent));
        }
        Err(Trouble::Silent(
            "the node of its name comes and goes".into(),
        ))
    }

    /// Makes a claim's node and the one above it in the same breath, so that none is ever left without children but by its
    /// server. `None` if something else is to be tried now.
    async fn enter_first(
        &self,
        spot: &Arc<Spot>,
        link: &Arc<Link>,
        (prefix, data, options): (&str, &[u8], &CreateOptions<'_>),
    ) -> Result<Option<Entered>, Trouble> {
        let above = &*spot.above;
        let mut writer = link.client().new_multi_writer();
        let container = CreateMode::Container.with_acls(self.config.acls());
        let written = writer
            .add_create(&above.path, PARENT_DATA, &container)
            .and_then(|()| writer.add_create(prefix, data, options));
        written.map_err(|error| self.if_answered(spot, Trouble::Answered(error)))?;
        let sent = Clock::Boot.now();
        let commit = writer.commit();
        let results = match link.write(sent, commit.map_err(Refusal::from)).await {
            Ok(results) => results,
            Err(Trouble::Answered(Refusal::NodeExists)) => {
                self.parent_made(spot, false);
                return Ok(None);
            }
            Err(Trouble::Answered(Refusal::NoNode)) => {
                make_root(&self.config, link).await?;
                return Ok(None);
            }
            Err(trouble) => return Err(self.if_answered(spot, trouble)),
        };
        let path = results.into_iter().find_map(|result| match result {
            MultiWriteResult::Create { path, .. } if path.starts_with(prefix) => Some(path),
            _ => None,
        });
        let path =
            path.ok_or_else(|| Trouble::Silent("the server did not say what it made".into()))?;
        self.parent_made(spot, true);
        // Servers before 3.8.2 do not say here when it was made.
        let stat = link.client().check_stat(&path);
        let list = self.children_now(link, &above.path);
        let (stat, children) = tokio::join!(link.read(stat), list);
        let Some(stat) = stat? else {
            return Ok(None);
        };
        let found = Node {
            name: path[above.path.len() + 1..].to_owned(),
            czxid: stat.czxid,
            version: stat.version,
        };
        let node = found.name.clone();
        self.made(spot, link, found);
        let children = children?;
        above.hint.note_children(&node, link, &children);
        Ok(Some((Arc::clone(link), Seen::Line(children), sent)))
    }

    /// The children of a name's node, by its path; none if it is gone.
    pub(crate) async fn children_now(
        &self,
        link: &Link,
        parent: &str,
    ) -> Result<Vec<String>, Trouble> {
        self.children(link, link.client().list_children(parent))
            .await
    }

    /// A claim's node is there, whatever becomes of the answers to come.
    fn made(&self, spot: &Spot, link: &Link, node: Node) {
        let mut now = spot.now();
        now.unsure = false;
        now.life = Arc::clone(&link.life);
        now.node = Some(node);
    }

    /// A refusal leaves nothing behind.
    fn if_answered(&self, spot: &Arc<Spot>, trouble: Trouble) -> Trouble {
        if matches!(trouble, Trouble::Answered(_)) {
            self.remove(spot);
        }
        trouble
    }

    /// Looks again at a claim that was placed before.
    async fn again(&self, spot: &Arc<Spot>, claim: &Claim) -> Result<Stood> {
        let trouble = |trouble| self.error(taking(claim), trouble);
        if spot.now().unsure {
            self.settle(spot).await.map_err(trouble)?;
        }
        if spot.now().over {
            // What is over stays over; a new grant needs a new node.
            self.delete(spot).await.map_err(trouble)?;
            return Ok(Stood::Gone);
        }
        let (session, life, node) = {
            let now = spot.now();
            (
                Arc::clone(&now.session),
                Arc::clone(&now.life),
                now.node.clone(),
            )
        };
        let Some(node) = node else {
            return Ok(Stood::Gone);
        };
        let link = session.link().await.map_err(trouble)?;
        if !Arc::ptr_eq(&link.life, &life) {
            return Ok(Stood::Gone);
        }
        let node = match self.downgrade(spot, claim, &link, node).await {
            Ok(node) => node,
            Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
            Err(other) => return Err(trouble(other)),
        };
        let sent = Clock::Boot.now();
        let confirm = confirm(&link, &spot.above.below(&node.name));
        let list = self.children_now(&link, &spot.above.path);
        let (confirmed, children) = tokio::join!(link.write(sent, confirm), list);
        match confirmed {
            Ok(()) => {}
            Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
            Err(other) => return Err(trouble(other)),
        }
        let mut children = children.map_err(trouble)?;
        let mut checked = Vec::new();
        loop {
            let seen = (&link, Seen::Line(children));
            let stood = self.judge(spot, claim, seen, sent).await?;
            let behind = spot.now().behind.clone();
            if !matches!(stood, Stood::Waiting(_)) || behind == checked {
                return Ok(stood);
            }
            // Whoever looks again has waited for long, or lost a connection: are those ahead there at all?
            self.lay(&link, &behind).await.map_err(trouble)?;
            let list = self.children_now(&link, &spot.above.path);
            children = list.await.map_err(trouble)?;
            checked = behind;
        }
    }

    /// Whether it is a claim's turn in the line that was seen. `sent`: when its session was last confirmed.
    pub(crate) async fn judge(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        (link, seen): (&Arc<Link>, Seen),
        sent: BootInstant,
    ) -> Result<Stood> {
        if let Seen::Line(children) = seen
            && let Some(stood) = self.not_held(spot, claim, children, sent)?
        {
            return Ok(stood);
        }
        let Some(czxid) = spot.now().node.as_ref().map(|node| node.czxid) else {
            return Ok(Stood::Gone);
        };
        let (life, held, from) = {
            let now = spot.now();
            (Arc::clone(&now.life), now.held, now.first)
        };
        let first = if held {
            from
        } else {
            stored::first_token(czxid)
        };
        {
            let mut now = spot.now();
            now.first = first;
            if !held {
                now.recorded = first;
            }
        }
        let mut granted = (sent, life);
        // With a lock-delay it holds only in a session that lasts for it.
        let wanted = self.wanted(claim);
        if !claim.lock_delay.is_zero() && spot.now().session.timeout < wanted {
            match Box::pin(self.move_to(spot, claim, wanted, first)).await {
                Ok(moved) => granted = moved,
                Err(Trouble::Answered(Refusal::NoNode)) => return Ok(Stood::Gone),
                Err(trouble) => return Err(self.error(taking(claim), trouble)),
            }
        }
        let (counted_from, life) = granted;
        let lease = self.lease(claim, &life);
        self.stand_until(spot, counted_from + (lease + claim.lock_delay));
        self.arm_if_recorded(spot, claim, link);
        let count = spot.now().count;
        Ok(Stood::Held(Grant {
            tokens: Tokens { first, count },
            counted_from,
            lease,
            recorded: true,
        }))
    }

    /// Where a claim stands in the line that these children are, unless it holds.
    fn not_held(
        &self,
        spot: &Spot,
        claim: &Claim,
        children: Vec<String>,
        sent: BootInstant,
    ) -> Result<Option<Stood>> {
        let line = self.sorted(&claim.name, children)?;
        let node = spot.now().node.as_ref().map(|node| node.name.clone());
        let Some(at) = node.and_then(|node| line.find(&node)) else {
            return Ok(Some(Stood::Gone));
        };
        let Turn::Behind(others) = line.turn(at) else {
            return Ok(None);
        };
        let behind = others
            .into_iter()
            .map(|other| spot.above.below(&line.0[other].node));
        spot.now().behind = behind.collect();
        Ok(Some(Stood::Waiting(Place {
            ahead: Some((at - line.holding()) as u64),
            recheck: Clock::Boot.now() + RECHECK,
            asked_at: sent,
            mark: 0,
        })))
    }
}

fn taking(claim: &Claim) -> String {
    format!("taking lock {}", claim.name)
}
