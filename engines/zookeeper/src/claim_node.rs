//! The life of a claim's node after it is created: it is confirmed, replaced, found again and deleted.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, Clock, Mode, Token};
use futures_util::{FutureExt, TryFutureExt};
use zookeeper_client::{CreateMode, Error as Refusal, MultiWriteError, Stat};

use crate::connection::{Connection, Session};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::names;
use crate::session::ManagedSession;
use crate::state::State;
use crate::stored;

/// How often a node is replaced again because another client wrote into it.
const ATTEMPTS: usize = 10;

struct Replacement {
    managed: Arc<ManagedSession>,
    connection: Arc<Connection>,
    name: String,
    token: Token,
}

impl State {
    /// Moves a claim's node to another session. It keeps its place in the queue, and its lease counts from the returned
    /// instant.
    pub(crate) async fn move_to(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        timeout: Duration,
        token: Token,
    ) -> Result<(BootInstant, Arc<Session>), Failure> {
        let managed = self.sessions.with_timeout(timeout).await?;
        let connection = managed.connection().await?;
        let Some(node) = entry.known.lock().node.clone() else {
            return Err(Failure::Refused(Refusal::NoNode));
        };
        let session = Arc::clone(&connection.session);
        let new = Replacement {
            managed,
            connection,
            name: node.name.clone(),
            token,
        };
        let sent = self.replace(entry, claim, node, new).await?;
        Ok((sent, session))
    }

    /// Gives a hold a weaker mode, if the claim asks for one: a new node in the same place, with a higher token.
    pub(crate) async fn downgrade(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        connection: &Arc<Connection>,
        node: Node,
    ) -> Result<Node, Failure> {
        let Some((before, number)) = names::split_number(&node.name) else {
            return Ok(node);
        };
        let prefix = names::claim_prefix(claim.id, claim.mode);
        let exclusive = names::claim_prefix(claim.id, Mode::Exclusive);
        if before == prefix || before != exclusive || !entry.known.lock().held {
            return Ok(node);
        }
        let name = format!("{prefix}{number}");
        let new = {
            let mut known = entry.known.lock();
            known.first = stored::downgraded(known.first);
            known.count = 1;
            Replacement {
                managed: Arc::clone(&known.managed),
                connection: Arc::clone(connection),
                name,
                token: known.first,
            }
        };
        self.replace(entry, claim, node, new).await?;
        let node = entry.known.lock().node.clone();
        node.ok_or(Failure::Refused(Refusal::NoNode))
    }

    /// Replaces a claim's node in one transaction. Returns when the transaction was sent.
    async fn replace(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        mut node: Node,
        new: Replacement,
    ) -> Result<BootInstant, Failure> {
        let connection = &new.connection;
        let old_path = entry.lock_node.child(&node.name);
        let new_path = entry.lock_node.child(&new.name);
        for _ in 0..ATTEMPTS {
            let data = entry.known.lock().data(claim, new.token);
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = connection.client().new_multi_writer();
            // With the node's version, so that nothing is lost that another client has written into it meanwhile.
            let added = writer
                .add_delete(&old_path, Some(node.version))
                .and_then(|()| writer.add_create(&new_path, &data.write(), &options));
            added.map_err(Failure::Refused)?;
            new.note_sent(entry);
            let sent = Clock::Boot.now();
            let commit = writer.commit();
            match connection.write(sent, commit.map_err(Refusal::from)).await {
                Ok(_) => {
                    new.note_done(entry, node.czxid);
                    self.watch_if_recorded(entry, claim, connection);
                    return Ok(sent);
                }
                Err(unanswered @ Failure::Unanswered(_)) => return Err(unanswered),
                Err(refused) => {
                    note_not_replaced(entry);
                    if !matches!(refused, Failure::Refused(Refusal::BadVersion)) {
                        return Err(refused);
                    }
                }
            }
            let get = connection.client().get_data(&old_path);
            let (bytes, stat) = connection.read(get).await?;
            node.version = stat.version;
            self.note_written(entry, &bytes);
        }
        Err(Failure::Unanswered(
            "other clients keep writing into its node".into(),
        ))
    }

    /// Finds out whether a request without a reply took effect.
    pub(crate) async fn settle(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let known = entry.known.lock().clone();
        let connection = known.managed.connection().await?;
        let nodes = self.nodes_of(entry, &connection).await?;
        let mut settled = entry.known.lock();
        settled.uncertain = false;
        settled.node = None;
        // A node of an expired session may still be there; the servers delete it.
        let of = |session: &Session| {
            nodes
                .iter()
                .find(|(_, stat)| stat.ephemeral_owner == session.id)
        };
        let found = match (of(&known.session), known.moved_from) {
            (Some(found), _) => Some(found),
            (None, Some((managed, session))) => {
                let found = of(&session);
                if found.is_some() {
                    (settled.managed, settled.session) = (managed, session);
                }
                found
            }
            (None, None) => None,
        };
        let Some((name, stat)) = found else {
            return Ok(());
        };
        settled.moved_from = None;
        settled.node = Some(Node {
            name: name.clone(),
            czxid: match &known.node {
                // The found node is the known one or its replacement.
                Some(node) => node.czxid,
                None => stat.czxid,
            },
            version: stat.version,
        });
        Ok(())
    }

    /// The nodes on the servers that bear this claim's id.
    async fn nodes_of(
        &self,
        entry: &Entry,
        connection: &Connection,
    ) -> Result<Vec<(String, Stat)>, Failure> {
        let lock_node = &entry.lock_node;
        let children = self.fresh_children(connection, &lock_node.path).await?;
        let mut nodes = Vec::new();
        for name in children {
            if names::claim_id(&name) != Some(entry.id) {
                continue;
            }
            let check = connection.client().check_stat(&lock_node.child(&name));
            if let Some(stat) = connection.read(check).await? {
                nodes.push((name, stat));
            }
        }
        Ok(nodes)
    }

    /// Deletes a claim's node; `false` if it did not exist. No two claims ever have nodes of the same name, so this never
    /// deletes the node of another one.
    pub(crate) async fn delete_node(&self, entry: &Arc<Entry>) -> Result<bool, Failure> {
        let (node, managed, session, tells) = {
            let mut known = entry.known.lock();
            let tells = known.tells_of_release(entry.id);
            // The end of this hold must not be reported as a loss.
            known.ended |= known.held;
            let node = known.node.as_ref().map(|node| node.name.clone());
            let (managed, session) = (&known.managed, &known.session);
            (node, Arc::clone(managed), Arc::clone(session), tells)
        };
        let Some(node) = node else {
            return Ok(false);
        };
        if session.is_expired() {
            entry.known.lock().node = None;
            return Ok(false);
        }
        let connection = managed.connection().await?;
        let sent = Clock::Boot.now();
        let path = entry.lock_node.child(&node);
        let mut deleted = None;
        if tells {
            let delete = self.delete_with_notice(&connection, entry, &node)?;
            deleted = Some(connection.write(sent, delete).await);
        }
        let deleted = match deleted {
            // Without a notice the waiter reads the queue.
            None | Some(Err(Failure::Refused(Refusal::NoAuth | Refusal::QuotaExceeded))) => {
                let delete = connection.client().delete(&path, None);
                connection.write(sent, delete).await
            }
            Some(deleted) => deleted,
        };
        match deleted {
            Ok(()) => {}
            Err(Failure::Refused(Refusal::NoNode)) => {
                entry.known.lock().node = None;
                return Ok(false);
            }
            Err(failure) => return Err(failure),
        }
        entry.lock_node.hint.note_deleted(&node);
        entry.known.lock().node = None;
        Ok(true)
    }

    /// Deletes the node of a hold, and tells the claim behind it (see the module `wait`).
    fn delete_with_notice<'a>(
        &self,
        connection: &'a Connection,
        entry: &Entry,
        node: &str,
    ) -> Result<impl Future<Output = Result<(), Refusal>> + use<'a>, Failure> {
        let (path, notice) = (entry.lock_node.child(node), self.release_notice_path(node));
        let options = CreateMode::Ephemeral.with_acls(self.config.acls());
        let mut writer = connection.client().new_multi_writer();
        // In this order, so that the notice is seen before the end of the node.
        let added = writer
            .add_create(&notice, b"", &options)
            .and_then(|()| writer.add_delete(&notice, None))
            .and_then(|()| writer.add_delete(&path, None));
        added.map_err(Failure::Refused)?;
        let commit = writer.commit();
        Ok(commit.map(|committed| committed.map(drop).map_err(Refusal::from)))
    }
}

impl Replacement {
    /// Notes, before the transaction is sent, that the node may belong to either session.
    fn note_sent(&self, entry: &Entry) {
        let mut known = entry.known.lock();
        if !Arc::ptr_eq(&known.managed, &self.managed) {
            let (managed, session) = (&known.managed, &known.session);
            known.moved_from = Some((Arc::clone(managed), Arc::clone(session)));
        }
        known.managed = Arc::clone(&self.managed);
        known.session = Arc::clone(&self.connection.session);
        known.uncertain = true;
    }

    /// Notes that the node was replaced. The new one keeps the place of the old one, and names its tokens in its data.
    fn note_done(&self, entry: &Entry, czxid: i64) {
        let mut known = entry.known.lock();
        known.uncertain = false;
        known.moved_from = None;
        known.recorded = self.token;
        known.node = Some(Node {
            name: self.name.clone(),
            czxid,
            version: 0,
        });
    }
}

/// Notes that the servers refused the replacement.
fn note_not_replaced(entry: &Entry) {
    let mut known = entry.known.lock();
    known.uncertain = false;
    if let Some((managed, session)) = known.moved_from.take() {
        known.managed = managed;
        known.session = session;
    }
}

/// A write that changes nothing. It is refused if the node does not exist.
pub(crate) fn confirm<'a>(
    connection: &'a Connection,
    path: &str,
) -> impl Future<Output = Result<(), Refusal>> + use<'a> {
    let mut writer = connection.client().new_multi_writer();
    let added = writer.add_check_version(path, -1);
    let commit = added.map(|()| writer.commit());
    async {
        let committed: Result<_, MultiWriteError> = commit?.await;
        committed.map(drop).map_err(Refusal::from)
    }
}
