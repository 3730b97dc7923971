//! Taking a lock: creating a claim's node, and deciding from the queue whether it holds.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Token, Tokens};
use futures_util::TryFutureExt;
use futures_util::future::join3;
use zookeeper_client::{CreateMode, CreateOptions, Error as Refusal, MultiWriteResult};

use crate::alone_hint::Plan;
use crate::claim_node::confirm;
use crate::connection::{Connection, create_root};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::lock_node::LOCK_NODE_DATA;
use crate::names;
use crate::queue::Turn;
use crate::state::State;
use crate::stored::{self, ClaimData};

/// A waiter is placed again at the latest after this time. Normally its watch wakes it before. This limit covers unforeseen
/// cases.
const RECHECK: Duration = Duration::from_secs(15);

/// How often the lock's node or the claim's node may vanish while the claim's node is created.
const ATTEMPTS: usize = 10;

/// The queue as a claim saw it over one connection.
pub(crate) struct Seen {
    pub(crate) connection: Arc<Connection>,
    pub(crate) queue: QueueView,
    /// When the latest request that confirmed the claim's session was sent.
    pub(crate) confirmed: BootInstant,
}

pub(crate) enum QueueView {
    /// Nobody is before the claim.
    First,
    Children(Vec<String>),
}

pub(crate) enum Position {
    Held(Grant),
    Waiting(Place),
    /// Its node does not exist, or is about to be deleted.
    Gone,
}

struct NewNode<'a> {
    /// Its name, without the number that the server adds.
    prefix: String,
    /// The same with the path of the lock's node.
    path: String,
    data: Vec<u8>,
    options: CreateOptions<'a>,
}

impl Seen {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        queue: QueueView,
        confirmed: BootInstant,
    ) -> Self {
        Self {
            connection: Arc::clone(connection),
            queue,
            confirmed,
        }
    }
}

impl State {
    pub(crate) async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_lock_delay(claim)?;
        let failure = |failure| self.error(taking(claim), failure);
        // The rare cases are boxed, so that the future of an uncontended acquire stays small.
        if let Some(entry) = self.entry(claim.id) {
            let position = Box::pin(self.check_again(&entry, claim)).await?;
            if let Some(standing) = self.standing(&entry, claim, position).await? {
                return Ok(standing);
            }
        } else if !claim.wait && !Box::pin(self.is_free(claim)).await? {
            return Ok(Standing::Busy);
        }
        for _ in 0..ATTEMPTS {
            let entry = self.new_entry(claim).await.map_err(failure)?;
            if claim.floor > Token(0) {
                let managed = Arc::clone(&entry.known.lock().managed);
                let raised = Box::pin(self.raise_tokens(&managed, claim.floor)).await;
                raised.map_err(|failed| {
                    self.remove(&entry);
                    failure(failed)
                })?;
            }
            let seen = self.create_node(&entry, claim).await.map_err(failure)?;
            let position = self.decide(&entry, claim, seen).await?;
            if let Some(standing) = self.standing(&entry, claim, position).await? {
                return Ok(standing);
            }
            // Another client, probably an administrator's, deleted the node at once.
        }
        let vanishes = Failure::Unanswered("its node is deleted as soon as it is created".into());
        Err(self.error(taking(claim), vanishes))
    }

    /// Refuses a lock-delay that no session can outlast.
    fn check_lock_delay(&self, claim: &Claim) -> Result<()> {
        let longest = self.sessions.limits.1;
        let max_delay = longest / 2;
        if claim.lock_delay <= max_delay {
            return Ok(());
        }
        let given = format!("{:?}", claim.lock_delay);
        let why = format!(
            "sessions of this store last {longest:?} at most, which leaves {max_delay:?} for a lock-delay; raise the server's maxSessionTimeout"
        );
        Err(Error::invalid("lock-delay", given, why))
    }

    /// Whether a claim that does not wait might get the lock. A read costs the servers less than a node that is deleted at
    /// once.
    async fn is_free(&self, claim: &Claim) -> Result<bool> {
        let children = async {
            let managed = self.sessions.for_waiting(claim).await?;
            let connection = managed.connection().await?;
            let lock_node = self.lock_node_path(&claim.name);
            self.fresh_children(&connection, &lock_node).await
        };
        let children = children.await;
        let children = children.map_err(|failure| self.error(taking(claim), failure))?;
        let queue = self.queue(&claim.name, children)?;
        Ok(queue.admits(claim.mode))
    }

    async fn new_entry(&self, claim: &Claim) -> Result<Arc<Entry>, Failure> {
        let managed = self.sessions.for_waiting(claim).await?;
        let connection = managed.connection().await?;
        Ok(self.add(claim, managed, Arc::clone(&connection.session)))
    }

    /// What a claim's position means to the core. `None` if the claim needs a new node. That gets an entry of its own: the reaper
    /// may be about to delete the old node, and then removes its entry.
    async fn standing(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        position: Position,
    ) -> Result<Option<Standing>> {
        let standing = match position {
            Position::Held(grant) => return Ok(Some(Standing::Held(grant))),
            Position::Waiting(place) if claim.wait => return Ok(Some(Standing::Waiting(place))),
            Position::Waiting(_) => Some(Standing::Busy),
            // A node that this connection's server does not show may still exist.
            Position::Gone => None,
        };
        let left = Box::pin(self.leave(entry)).await;
        left.map_err(|failure| self.error(taking(claim), failure))?;
        Ok(standing)
    }

    /// Creates a claim's node, and reads the queue unless the alone hint makes that unnecessary.
    async fn create_node(&self, entry: &Arc<Entry>, claim: &Claim) -> Result<Seen, Failure> {
        let managed = Arc::clone(&entry.known.lock().managed);
        let connection = managed.connection().await?;
        let count = match claim.mode {
            Mode::Exclusive => claim.reserve.clamp(1, stored::MAX_TOKENS),
            Mode::Shared | Mode::Permit { .. } => 1,
        };
        {
            let mut known = entry.known.lock();
            known.session = Arc::clone(&connection.session);
            known.uncertain = true;
            known.count = count;
        }
        let prefix = names::claim_prefix(claim.id, claim.mode);
        let new = NewNode {
            path: entry.lock_node.child(&prefix),
            prefix,
            data: ClaimData::of(claim, count).write(),
            options: CreateMode::EphemeralSequential.with_acls(self.config.acls()),
        };
        for _ in 0..ATTEMPTS {
            let seen = match entry.lock_node.exists() {
                true => self.create_below(entry, &connection, &new).await?,
                false => Box::pin(self.create_with_lock_node(entry, &connection, &new)).await?,
            };
            if let Some(seen) = seen {
                return Ok(seen);
            }
        }
        Err(Failure::Unanswered(
            "the node of its lock is created and deleted again and again".into(),
        ))
    }

    /// Creates a claim's node below the lock's node. `None` if the lock's node does not exist any more.
    async fn create_below(
        &self,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
        new: &NewNode<'_>,
    ) -> Result<Option<Seen>, Failure> {
        let lock_node = &*entry.lock_node;
        let sent = Clock::Boot.now();
        let plan = lock_node.hint.plan(connection);
        let create = async {
            let create = connection
                .client()
                .create(&new.path, &new.data, &new.options);
            connection.write(sent, create).await
        };
        let (watched, created, children) = match plan {
            Plan::ReadUnless(_) => (Ok(None), create.await, Ok(None)),
            Plan::Read | Plan::WatchAndRead => {
                let watch = async {
                    if plan != Plan::WatchAndRead {
                        return Ok(None);
                    }
                    let watch = connection.client().check_and_watch_stat(&lock_node.path);
                    connection.read(watch).await.map(Some)
                };
                let list = self.children(connection, &lock_node.path).map_ok(Some);
                // Polled in this order, so sent in this order.
                Box::pin(join3(watch, create, list)).await
            }
        };
        let (stat, sequence) = match created {
            Ok(created) => created,
            Err(Failure::Refused(Refusal::NoNode)) => {
                lock_node.set_exists(false);
                return Ok(None);
            }
            Err(failure) => return Err(self.forget_if_refused(entry, failure)),
        };
        let node = Node {
            name: format!("{}{sequence}", new.prefix),
            czxid: stat.czxid,
            version: 0,
        };
        let name = node.name.clone();
        note_created(entry, connection, node);
        if let Ok(Some((Some(_), watcher))) = watched {
            lock_node.hint.set_watch(connection, watcher);
        }
        let number = sequence.into_i64();
        let alone = plan == Plan::ReadUnless(number) && lock_node.hint.confirms(number, connection);
        if alone {
            return Ok(Some(Seen::new(connection, QueueView::First, sent)));
        }
        let children = match children? {
            Some(children) => children,
            None => Box::pin(self.children(connection, &lock_node.path)).await?,
        };
        lock_node.hint.note_children(&name, connection, &children);
        let queue = QueueView::Children(children);
        Ok(Some(Seen::new(connection, queue, sent)))
    }

    /// Creates the lock's node and a claim's node in one transaction: the servers never delete a container that has had no
    /// children. `None` if the state of the lock's node or of the chroot was not as expected.
    async fn create_with_lock_node(
        &self,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
        new: &NewNode<'_>,
    ) -> Result<Option<Seen>, Failure> {
        let lock_node = &*entry.lock_node;
        let mut writer = connection.client().new_multi_writer();
        let container = CreateMode::Container.with_acls(self.config.acls());
        let written = writer
            .add_create(&lock_node.path, LOCK_NODE_DATA, &container)
            .and_then(|()| writer.add_create(&new.path, &new.data, &new.options));
        written.map_err(|error| self.forget_if_refused(entry, Failure::Refused(error)))?;
        let sent = Clock::Boot.now();
        let commit = writer.commit();
        let results = match connection.write(sent, commit.map_err(Refusal::from)).await {
            Ok(results) => results,
            Err(Failure::Refused(Refusal::NodeExists)) => {
                self.note_lock_node(entry, false);
                return Ok(None);
            }
            Err(Failure::Refused(Refusal::NoNode)) => {
                create_root(&self.config, connection).await?;
                return Ok(None);
            }
            Err(failure) => return Err(self.forget_if_refused(entry, failure)),
        };
        let path = results.into_iter().find_map(|result| match result {
            MultiWriteResult::Create { path, .. } if path.starts_with(&new.path) => Some(path),
            _ => None,
        });
        let path = path.ok_or_else(|| {
            Failure::Unanswered("the server did not say which node it created".into())
        })?;
        self.note_lock_node(entry, true);
        // Servers before 3.8.2 do not send the node's stat with the reply.
        let stat = connection.client().check_stat(&path);
        let list = self.children(connection, &lock_node.path);
        let (stat, children) = tokio::join!(connection.read(stat), list);
        let Some(stat) = stat? else {
            return Ok(None);
        };
        let node = Node {
            name: path[lock_node.path.len() + 1..].to_owned(),
            czxid: stat.czxid,
            version: stat.version,
        };
        let name = node.name.clone();
        note_created(entry, connection, node);
        let children = children?;
        lock_node.hint.note_children(&name, connection, &children);
        let queue = QueueView::Children(children);
        Ok(Some(Seen::new(connection, queue, sent)))
    }

    /// Removes the entry of a claim whose node was refused: the servers have nothing of it.
    fn forget_if_refused(&self, entry: &Arc<Entry>, failure: Failure) -> Failure {
        if matches!(failure, Failure::Refused(_)) {
            self.remove(entry);
        }
        failure
    }

    /// Finds out the position of a claim that was placed before.
    async fn check_again(&self, entry: &Arc<Entry>, claim: &Claim) -> Result<Position> {
        let failure = |failure| self.error(taking(claim), failure);
        if entry.known.lock().uncertain {
            self.settle(entry).await.map_err(failure)?;
        }
        if entry.known.lock().has_ended() {
            // An ended hold does not come back: a new grant needs a new node.
            return Ok(Position::Gone);
        }
        let (managed, session, node) = {
            let known = entry.known.lock();
            let (managed, session) = (&known.managed, &known.session);
            (Arc::clone(managed), Arc::clone(session), known.node.clone())
        };
        let Some(node) = node else {
            return Ok(Position::Gone);
        };
        let connection = managed.connection().await.map_err(failure)?;
        if !Arc::ptr_eq(&connection.session, &session) {
            return Ok(Position::Gone);
        }
        let node = match self.downgrade(entry, claim, &connection, node).await {
            Ok(node) => node,
            Err(Failure::Refused(Refusal::NoNode)) => return Ok(Position::Gone),
            Err(other) => return Err(failure(other)),
        };
        match names::mode_of(&node.name) {
            Some(mode) if mode != claim.mode && mode != Mode::Exclusive => {
                return Err(Error::stronger_mode(&self.config.store, mode));
            }
            _ => {}
        }
        let sent = Clock::Boot.now();
        let confirm = confirm(&connection, &entry.lock_node.child(&node.name));
        let list = self.children(&connection, &entry.lock_node.path);
        let (confirmed, children) = tokio::join!(connection.write(sent, confirm), list);
        match confirmed {
            Ok(()) => {}
            Err(Failure::Refused(Refusal::NoNode)) => return Ok(Position::Gone),
            Err(other) => return Err(failure(other)),
        }
        let queue = QueueView::Children(children.map_err(failure)?);
        let seen = Seen::new(&connection, queue, sent);
        self.decide_without_ghosts(entry, claim, seen).await
    }

    /// Decides a claim's position after the leader has checked the nodes for which the claim waits. A claim that is placed
    /// again has waited for long or lost its connection, so those nodes may be ghosts (see `rollback_repair.rs`).
    async fn decide_without_ghosts(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        mut seen: Seen,
    ) -> Result<Position> {
        let failure = |failure| self.error(taking(claim), failure);
        let (connection, confirmed) = (Arc::clone(&seen.connection), seen.confirmed);
        let mut checked = Vec::new();
        loop {
            let position = self.decide(entry, claim, seen).await?;
            let waits_for = entry.known.lock().waits_for.clone();
            if !matches!(position, Position::Waiting(_)) || waits_for == checked {
                return Ok(position);
            }
            let deleted = self.delete_ghosts(&connection, &waits_for).await;
            deleted.map_err(failure)?;
            let children = self.children(&connection, &entry.lock_node.path).await;
            let queue = QueueView::Children(children.map_err(failure)?);
            seen = Seen::new(&connection, queue, confirmed);
            checked = waits_for;
        }
    }

    /// Decides a claim's position from the queue that it saw. The grant is made here.
    pub(crate) async fn decide(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        seen: Seen,
    ) -> Result<Position> {
        let Seen {
            connection,
            queue,
            confirmed,
        } = seen;
        if let QueueView::Children(children) = queue
            && let Some(position) = self.position_if_waiting(entry, claim, children)?
        {
            return Ok(position);
        }
        // Read after the reply that the claim's node exists.
        let bases = self.bases(&connection).await;
        let bases = bases.map_err(|failure| self.error(taking(claim), failure))?;
        let (first, session, timeout) = {
            let mut known = entry.known.lock();
            let Some(czxid) = known.node.as_ref().map(|node| node.czxid) else {
                return Ok(Position::Gone);
            };
            if !known.held {
                known.first = bases.first_token(czxid);
                known.recorded = known.first;
            }
            let session = Arc::clone(&known.session);
            (known.first, session, known.managed.timeout)
        };
        let mut granted = (confirmed, session);
        // With a lock-delay it holds only in a session that lasts long enough.
        let wanted = self.sessions.timeout(claim);
        if !claim.lock_delay.is_zero() && timeout < wanted {
            match Box::pin(self.move_to(entry, claim, wanted, first)).await {
                Ok(moved) => granted = moved,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(Position::Gone),
                Err(failure) => return Err(self.error(taking(claim), failure)),
            }
        }
        let (counted_from, session) = granted;
        let lease = self.sessions.lease(claim, &session);
        if !self.hold_until(entry, counted_from + (lease + claim.lock_delay), false) {
            return Ok(Position::Gone);
        }
        self.watch_if_recorded(entry, claim, &connection);
        let count = entry.known.lock().count;
        Ok(Position::Held(Grant::new(
            Tokens::new(first, count),
            counted_from,
            lease,
        )))
    }

    /// A claim's position in the queue that these children form; `None` if it holds.
    fn position_if_waiting(
        &self,
        entry: &Entry,
        claim: &Claim,
        children: Vec<String>,
    ) -> Result<Option<Position>> {
        let queue = self.queue(&claim.name, children)?;
        let node = entry
            .known
            .lock()
            .node
            .as_ref()
            .map(|node| node.name.clone());
        let Some(at) = node.and_then(|node| queue.find(&node)) else {
            return Ok(Some(Position::Gone));
        };
        let Turn::WaitsFor(others) = queue.turn(at) else {
            return Ok(None);
        };
        let paths = others
            .into_iter()
            .map(|other| entry.lock_node.child(&queue.0[other].node));
        entry.known.lock().waits_for = paths.collect();
        Ok(Some(Position::Waiting(
            Place::new(Clock::Boot.now() + RECHECK).ahead((at - queue.holding()) as u64),
        )))
    }
}

/// Notes that a claim's node exists, before later replies can fail.
fn note_created(entry: &Entry, connection: &Connection, node: Node) {
    let mut known = entry.known.lock();
    known.uncertain = false;
    known.session = Arc::clone(&connection.session);
    known.node = Some(node);
}

fn taking(claim: &Claim) -> String {
    format!("taking lock {}", claim.name)
}
