//! A claim's node.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, Clock, Mode, Token};
use futures_util::TryFutureExt;
use zookeeper_client::{CreateMode, Error as Refusal, MultiWriteError};

use crate::connection::{Connection, Session};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::names;
use crate::session::ManagedSession;
use crate::state::State;
use crate::stored;

/// How often the nodes above may vanish while a claim's is made.
pub(crate) const ATTEMPTS: usize = 10;

impl State {
    /// Moves a claim's node to another session; it keeps its place, and its lease counts from the instant returned.
    pub(crate) async fn move_to(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        wanted: Duration,
        token: Token,
    ) -> Result<(BootInstant, Arc<Session>), Failure> {
        let managed = self.session_for(wanted).await?;
        let connection = managed.connection().await?;
        let Some(node) = entry.known().node.clone() else {
            return Err(Failure::Refused(Refusal::NoNode));
        };
        let name = node.name.clone();
        let replaced = self.replace(entry, claim, &connection, (&managed, node), &name, token);
        let sent = replaced.await?;
        Ok((sent, Arc::clone(&connection.session)))
    }

    /// A weaker mode on a hold: another node in the same place, with a token above the one before.
    pub(crate) async fn downgrade(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        connection: &Arc<Connection>,
        node: Node,
    ) -> Result<Node, Failure> {
        let Some((before, number)) = names::split(&node.name) else {
            return Ok(node);
        };
        let prefix = names::prefix(claim.id, claim.mode);
        let exclusive = names::prefix(claim.id, Mode::Exclusive);
        if before == prefix || before != exclusive || !entry.known().held {
            return Ok(node);
        }
        let name = format!("{prefix}{number}");
        let managed = Arc::clone(&entry.known().managed);
        let token = {
            let mut known = entry.known();
            known.first = stored::downgraded(known.first);
            known.count = 1;
            known.first
        };
        self.replace(entry, claim, connection, (&managed, node), &name, token)
            .await?;
        let node = entry.known().node.clone();
        node.ok_or(Failure::Refused(Refusal::NoNode))
    }

    /// Puts another node in the place of a claim's, in one transaction, in the session of `link`.
    async fn replace(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        connection: &Arc<Connection>,
        (managed, mut node): (&Arc<ManagedSession>, Node),
        name: &str,
        token: Token,
    ) -> Result<BootInstant, Failure> {
        let (old, new) = (
            entry.lock_node.child(&node.name),
            entry.lock_node.child(name),
        );
        for _ in 0..ATTEMPTS {
            let data = entry.known().data(claim, token);
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = connection.client().new_multi_writer();
            // Not if somebody has written into it meanwhile, to ask for the lock.
            let added = writer
                .add_delete(&old, Some(node.version))
                .and_then(|()| writer.add_create(&new, &data.write(), &options));
            added.map_err(Failure::Refused)?;
            {
                let mut known = entry.known();
                if !Arc::ptr_eq(&known.managed, managed) {
                    known.moved_from =
                        Some((Arc::clone(&known.managed), Arc::clone(&known.session)));
                }
                known.managed = Arc::clone(managed);
                known.session = Arc::clone(&connection.session);
                known.uncertain = true;
            }
            let sent = Clock::Boot.now();
            let commit = writer.commit();
            let committed = connection.write(sent, commit.map_err(Refusal::from)).await;
            match committed {
                Ok(_) => {
                    let mut known = entry.known();
                    known.uncertain = false;
                    known.moved_from = None;
                    known.recorded = token;
                    known.node = Some(Node {
                        name: name.to_owned(),
                        // It keeps the place of the node before; its tokens stand in its data.
                        czxid: node.czxid,
                        version: 0,
                    });
                    drop(known);
                    self.watch_if_recorded(entry, claim, connection);
                    return Ok(sent);
                }
                Err(failure @ Failure::Unanswered(_)) => return Err(failure),
                Err(refused) => {
                    let mut known = entry.known();
                    known.uncertain = false;
                    if let Some((managed, session)) = known.moved_from.take() {
                        known.managed = managed;
                        known.session = session;
                    }
                    if !matches!(refused, Failure::Refused(Refusal::BadVersion)) {
                        return Err(refused);
                    }
                }
            }
            let (bytes, stat) = connection.read(connection.client().get_data(&old)).await?;
            node.version = stat.version;
            self.note_written(entry, &bytes);
        }
        Err(Failure::Unanswered(
            "somebody keeps writing into its node".into(),
        ))
    }

    /// Finds out what became of what was asked without an answer.
    pub(crate) async fn settle(&self, entry: &Arc<Entry>) -> Result<(), Failure> {
        let known = entry.known().clone();
        let connection = known.managed.connection().await?;
        let children = self.fresh_children(&connection, &entry.name).await?;
        let mut mine = Vec::new();
        for name in children {
            if !names::is_of(&name, entry.id) {
                continue;
            }
            let path = entry.lock_node.child(&name);
            if let Some(stat) = connection
                .read(connection.client().check_stat(&path))
                .await?
            {
                mine.push((name, stat));
            }
        }
        let mut settled = entry.known();
        settled.uncertain = false;
        settled.node = None;
        // One of a session that has ended may stand there, too, and goes by itself.
        let of = |session: &Session| {
            mine.iter()
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
                // Replaced in its place, or not.
                Some(node) => node.czxid,
                None => stat.czxid,
            },
            version: stat.version,
        });
        Ok(())
    }

    /// Deletes a claim's own node, and never another one: no two claims have nodes of the same name.
    pub(crate) async fn delete_node(&self, entry: &Arc<Entry>) -> Result<bool, Failure> {
        let (node, managed, session) = {
            let mut known = entry.known();
            // Nobody is to be told of its end.
            known.ended |= known.held;
            let node = known.node.as_ref().map(|node| node.name.clone());
            (node, Arc::clone(&known.managed), Arc::clone(&known.session))
        };
        let Some(node) = node else {
            return Ok(false);
        };
        if session.is_expired() {
            entry.known().node = None;
            return Ok(false);
        }
        let connection = managed.connection().await?;
        let path = entry.lock_node.child(&node);
        let sent = Clock::Boot.now();
        let deleted = connection
            .write(sent, connection.client().delete(&path, None))
            .await;
        match deleted {
            Ok(()) => {}
            Err(Failure::Refused(Refusal::NoNode)) => {
                entry.known().node = None;
                return Ok(false);
            }
            Err(failure) => return Err(failure),
        }
        entry.lock_node.hint.note_deleted(&node);
        entry.known().node = None;
        Ok(true)
    }
}

/// A write that changes nothing, and says whether a node is there.
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
