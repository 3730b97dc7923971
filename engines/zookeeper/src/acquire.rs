//! A claim's way into the line, to its turn.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Tokens};
use futures_util::TryFutureExt;
use futures_util::future::join3;
use zookeeper_client::{CreateMode, CreateOptions, Error as Refusal, MultiWriteResult};

use crate::alone_hint::Plan;
use crate::claim_node::{ATTEMPTS, confirm};
use crate::connection::{Connection, create_root};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::lock_node::LOCK_NODE_DATA;
use crate::names;
use crate::queue::Turn;
use crate::state::State;
use crate::stored::{self, ClaimData};

/// A waiter asks again after so long at the latest. Its watch tells it before; this is for what nobody foresaw.
const RECHECK: Duration = Duration::from_secs(15);

/// Over which connection a claim's node was made, the line then, and when that was asked for.
type Created = (Arc<Connection>, QueueView, BootInstant);

/// What is known of the line that a claim stands in.
pub(crate) enum QueueView {
    /// There is nobody else in it.
    Alone,
    /// The children of the node above it.
    Children(Vec<String>),
}

/// Where a claim stands.
pub(crate) enum Position {
    Held(Grant),
    Waiting(Place),
    /// Its node is gone.
    Gone,
}

impl State {
    pub(crate) async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_delay(claim)?;
        let entry = match self.entry(claim.id) {
            // Boxed, as all that is rare, so that the future of an uncontended lock stays small.
            Some(entry) => match Box::pin(self.check_again(&entry, claim)).await? {
                Position::Held(grant) => return Ok(Standing::Held(grant)),
                Position::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&entry, claim, place)).await;
                }
                Position::Gone => entry,
            },
            None => {
                let failure = |failure| self.error(taking(claim), failure);
                let managed = self.session_for_waiting(claim).await.map_err(failure)?;
                let connection = managed.connection().await.map_err(failure)?;
                if !claim.wait && !Box::pin(self.is_free(&connection, claim)).await? {
                    return Ok(Standing::Busy);
                }
                self.add(claim, managed, Arc::clone(&connection.session))
            }
        };
        for _ in 0..ATTEMPTS {
            let created_node = self.create_node(&entry, claim).await;
            let (connection, seen, sent) =
                created_node.map_err(|failure| self.error(taking(claim), failure))?;
            match self
                .decide(&entry, claim, (&connection, seen), sent)
                .await?
            {
                Position::Held(grant) => return Ok(Standing::Held(grant)),
                Position::Waiting(place) => {
                    return Box::pin(self.wait_or_leave(&entry, claim, place)).await;
                }
                // Deleted as soon as it was there; by an administrator, one must think.
                Position::Gone => {}
            }
        }
        let vanishes = Failure::Unanswered("its node vanishes as soon as it is made".into());
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
    async fn is_free(&self, connection: &Connection, claim: &Claim) -> Result<bool> {
        let children = self.fresh_children(connection, &claim.name).await;
        let children = children.map_err(|failure| self.error(taking(claim), failure))?;
        let mut queue = self.sorted(&claim.name, children)?;
        Ok(queue.admits(claim.mode))
    }

    async fn wait_or_leave(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        place: Place,
    ) -> Result<Standing> {
        if claim.wait {
            return Ok(Standing::Waiting(place));
        }
        let left = self.leave(entry).await;
        left.map_err(|failure| self.error(taking(claim), failure))?;
        Ok(Standing::Busy)
    }

    /// Makes a claim's node, and sees the line with it.
    async fn create_node(&self, entry: &Arc<Entry>, claim: &Claim) -> Result<Created, Failure> {
        // A node that this connection's server does not show may be there all the same.
        if entry.known().node.is_some() {
            Box::pin(self.delete_node(entry)).await?;
        }
        let managed = Arc::clone(&entry.known().managed);
        let connection = managed.connection().await?;
        {
            let mut known = entry.known();
            known.session = Arc::clone(&connection.session);
            known.node = None;
            known.moved_from = None;
            known.held = false;
            known.ended = false;
            known.asked = false;
            known.uncertain = true;
            known.count = match claim.mode {
                Mode::Exclusive => claim.reserve.clamp(1, stored::MAX_TOKENS),
                Mode::Shared | Mode::Permit { .. } => 1,
            };
        }
        let data = ClaimData::of(claim, entry.known().count).write();
        let lock_node = &*entry.lock_node;
        let before = names::prefix(claim.id, claim.mode);
        let prefix = lock_node.child(&before);
        let options = CreateMode::EphemeralSequential.with_acls(self.config.acls());
        for _ in 0..ATTEMPTS {
            if !lock_node.exists() {
                let first =
                    self.create_with_lock_node(entry, &connection, (&prefix, &data, &options));
                if let Some(created_node) = Box::pin(first).await? {
                    return Ok(created_node);
                }
                continue;
            }
            let sent = Clock::Boot.now();
            let ask = lock_node.hint.plan(&connection);
            let create = async {
                let create = connection.client().create(&prefix, &data, &options);
                connection.write(sent, create).await
            };
            let (watched, created, children) = match ask {
                Plan::ReadUnless(_) => (Ok(None), create.await, Ok(None)),
                Plan::Read | Plan::WatchAndRead => {
                    let alarm = async {
                        if ask != Plan::WatchAndRead {
                            return Ok(None);
                        }
                        let watch = connection.client().check_and_watch_stat(&lock_node.path);
                        connection.read(watch).await.map(Some)
                    };
                    let list = self.children_now(&connection, &lock_node.path).map_ok(Some);
                    // Polled in this order, so sent in this order.
                    Box::pin(join3(alarm, create, list)).await
                }
            };
            let (stat, sequence) = match created {
                Ok(created) => created,
                Err(Failure::Refused(Refusal::NoNode)) => {
                    lock_node.set_exists(false);
                    continue;
                }
                Err(failure) => return Err(self.forget_if_refused(entry, failure)),
            };
            let node = format!("{before}{sequence}");
            let found = Node {
                name: node.clone(),
                czxid: stat.czxid,
                version: 0,
            };
            self.note_created(entry, &connection, found);
            if let Ok(Some((Some(_), watcher))) = watched {
                lock_node.hint.set_watch(&connection, watcher);
            }
            let number = sequence.into_i64();
            if ask == Plan::ReadUnless(number) && lock_node.hint.confirms(number, &connection) {
                return Ok((connection, QueueView::Alone, sent));
            }
            let children = match children? {
                Some(children) => children,
                None => Box::pin(self.children_now(&connection, &lock_node.path)).await?,
            };
            lock_node.hint.note_children(&node, &connection, &children);
            return Ok((connection, QueueView::Children(children), sent));
        }
        Err(Failure::Unanswered(
            "the node of its name comes and goes".into(),
        ))
    }

    /// Makes a claim's node and the one above it in the same breath, so that none is ever left without children but by its
    /// server. `None` if something else is to be tried now.
    async fn create_with_lock_node(
        &self,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
        (prefix, data, options): (&str, &[u8], &CreateOptions<'_>),
    ) -> Result<Option<Created>, Failure> {
        let lock_node = &*entry.lock_node;
        let mut writer = connection.client().new_multi_writer();
        let container = CreateMode::Container.with_acls(self.config.acls());
        let written = writer
            .add_create(&lock_node.path, LOCK_NODE_DATA, &container)
            .and_then(|()| writer.add_create(prefix, data, options));
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
            MultiWriteResult::Create { path, .. } if path.starts_with(prefix) => Some(path),
            _ => None,
        });
        let path =
            path.ok_or_else(|| Failure::Unanswered("the server did not say what it made".into()))?;
        self.note_lock_node(entry, true);
        // Servers before 3.8.2 do not say here when it was made.
        let stat = connection.client().check_stat(&path);
        let list = self.children_now(connection, &lock_node.path);
        let (stat, children) = tokio::join!(connection.read(stat), list);
        let Some(stat) = stat? else {
            return Ok(None);
        };
        let found = Node {
            name: path[lock_node.path.len() + 1..].to_owned(),
            czxid: stat.czxid,
            version: stat.version,
        };
        let node = found.name.clone();
        self.note_created(entry, connection, found);
        let children = children?;
        lock_node.hint.note_children(&node, connection, &children);
        Ok(Some((
            Arc::clone(connection),
            QueueView::Children(children),
            sent,
        )))
    }

    /// The children of a name's node, by its path; none if it is gone.
    pub(crate) async fn children_now(
        &self,
        connection: &Connection,
        lock_node: &str,
    ) -> Result<Vec<String>, Failure> {
        self.children(connection, connection.client().list_children(lock_node))
            .await
    }

    /// A claim's node is there, whatever becomes of the answers to come.
    fn note_created(&self, entry: &Entry, connection: &Connection, node: Node) {
        let mut known = entry.known();
        known.uncertain = false;
        known.session = Arc::clone(&connection.session);
        known.node = Some(node);
    }

    /// A refusal leaves nothing behind.
    fn forget_if_refused(&self, entry: &Arc<Entry>, failure: Failure) -> Failure {
        if matches!(failure, Failure::Refused(_)) {
            self.remove(entry);
        }
        failure
    }

    /// Looks again at a claim that was placed before.
    async fn check_again(&self, entry: &Arc<Entry>, claim: &Claim) -> Result<Position> {
        let failure = |failure| self.error(taking(claim), failure);
        if entry.known().uncertain {
            self.settle(entry).await.map_err(failure)?;
        }
        if entry.known().ended {
            // What is over stays over; a new grant needs a new node.
            self.delete_node(entry).await.map_err(failure)?;
            return Ok(Position::Gone);
        }
        let (managed, session, node) = {
            let known = entry.known();
            (
                Arc::clone(&known.managed),
                Arc::clone(&known.session),
                known.node.clone(),
            )
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
        let sent = Clock::Boot.now();
        let confirm = confirm(&connection, &entry.lock_node.child(&node.name));
        let list = self.children_now(&connection, &entry.lock_node.path);
        let (confirmed, children) = tokio::join!(connection.write(sent, confirm), list);
        match confirmed {
            Ok(()) => {}
            Err(Failure::Refused(Refusal::NoNode)) => return Ok(Position::Gone),
            Err(other) => return Err(failure(other)),
        }
        let mut children = children.map_err(failure)?;
        let mut checked = Vec::new();
        loop {
            let seen = (&connection, QueueView::Children(children));
            let position = self.decide(entry, claim, seen, sent).await?;
            let waits_for = entry.known().waits_for.clone();
            if !matches!(position, Position::Waiting(_)) || waits_for == checked {
                return Ok(position);
            }
            // Whoever looks again has waited for long, or lost a connection: are those ahead there at all?
            self.delete_ghosts(&connection, &waits_for)
                .await
                .map_err(failure)?;
            let list = self.children_now(&connection, &entry.lock_node.path);
            children = list.await.map_err(failure)?;
            checked = waits_for;
        }
    }

    /// Whether it is a claim's turn in the line that was seen. `sent`: when its session was last confirmed.
    pub(crate) async fn decide(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        (connection, seen): (&Arc<Connection>, QueueView),
        sent: BootInstant,
    ) -> Result<Position> {
        if let QueueView::Children(children) = seen
            && let Some(position) = self.position_if_waiting(entry, claim, children, sent)?
        {
            return Ok(position);
        }
        let Some(czxid) = entry.known().node.as_ref().map(|node| node.czxid) else {
            return Ok(Position::Gone);
        };
        let (session, held, from) = {
            let known = entry.known();
            (Arc::clone(&known.session), known.held, known.first)
        };
        let first = if held {
            from
        } else {
            stored::first_token(czxid)
        };
        {
            let mut known = entry.known();
            known.first = first;
            if !held {
                known.recorded = first;
            }
        }
        let mut granted = (sent, session);
        // With a lock-delay it holds only in a session that lasts for it.
        let wanted = self.session_timeout(claim);
        if !claim.lock_delay.is_zero() && entry.known().managed.timeout < wanted {
            match Box::pin(self.move_to(entry, claim, wanted, first)).await {
                Ok(moved) => granted = moved,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(Position::Gone),
                Err(failure) => return Err(self.error(taking(claim), failure)),
            }
        }
        let (counted_from, session) = granted;
        let lease = self.lease(claim, &session);
        self.hold_until(entry, counted_from + (lease + claim.lock_delay));
        self.watch_if_recorded(entry, claim, connection);
        let count = entry.known().count;
        Ok(Position::Held(Grant {
            tokens: Tokens { first, count },
            counted_from,
            lease,
            recorded: true,
        }))
    }

    /// Where a claim stands in the line that these children are, unless it holds.
    fn position_if_waiting(
        &self,
        entry: &Entry,
        claim: &Claim,
        children: Vec<String>,
        sent: BootInstant,
    ) -> Result<Option<Position>> {
        let queue = self.sorted(&claim.name, children)?;
        let node = entry.known().node.as_ref().map(|node| node.name.clone());
        let Some(at) = node.and_then(|node| queue.find(&node)) else {
            return Ok(Some(Position::Gone));
        };
        let Turn::WaitsFor(others) = queue.turn(at) else {
            return Ok(None);
        };
        let waits_for = others
            .into_iter()
            .map(|other| entry.lock_node.child(&queue.0[other].node));
        entry.known().waits_for = waits_for.collect();
        Ok(Some(Position::Waiting(Place {
            ahead: Some((at - queue.holding()) as u64),
            recheck: Clock::Boot.now() + RECHECK,
            asked_at: sent,
            mark: 0,
        })))
    }
}

fn taking(claim: &Claim) -> String {
    format!("taking lock {}", claim.name)
}
