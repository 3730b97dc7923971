//! What a process may believe of a hold that it joins.
//!
//! A ZooKeeper session shows no countdown, and a node exists until its session expires, however long its holder has been dead.
//! So a process that joins a hold asks the holder: it writes a number (a ping) into the hold's node. The holder watches the
//! node and writes the answer there: what is left of its own validity. That counts from before the ping was written.

use std::sync::Arc;

use fencelock_core::engine::{Grant, HolderView};
use fencelock_core::{Clock, LockName, Result, Tokens};
use zookeeper_client::Error as Refusal;

use crate::connection::Connection;
use crate::entry::Entry;
use crate::error::{Failure, ReadError};
use crate::inspect::ReadNode;
use crate::state::State;
use crate::stored::ClaimData;

/// The result of one ping.
enum Pinged {
    NotHeld,
    Answered(HolderView, Grant),
    /// Another client wrote into the node before the holder answered.
    Overwritten,
}

impl State {
    /// The hold of this owner, with what its process attests.
    pub(crate) async fn attested(
        &self,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<(HolderView, Grant)>> {
        let failure = |failure| self.error(format!("joining the hold of lock {name}"), failure);
        let limit = self.config.response_timeout;
        let attesting = async {
            let connection = self.sessions.waiting.connection().await?;
            loop {
                // A ping is repeated only if the node is replaced, or another process pings too.
                match self.ping(&connection, name, owner).await? {
                    Pinged::Answered(holder, grant) => return Ok(Some((holder, grant))),
                    Pinged::NotHeld => return Ok(None),
                    Pinged::Overwritten => {}
                }
            }
        };
        match tokio::time::timeout(limit, attesting).await {
            Ok(Ok(attested)) => Ok(attested),
            Ok(Err(ReadError::Failure(other))) => Err(failure(other)),
            Ok(Err(ReadError::Error(error))) => Err(error),
            Err(_) => {
                let why = format!("the process that holds it has not answered within {limit:?}");
                Err(failure(Failure::Unanswered(why)))
            }
        }
    }

    async fn ping(
        &self,
        connection: &Arc<Connection>,
        name: &LockName,
        owner: &str,
    ) -> Result<Pinged, ReadError> {
        let Some((node, data)) = self.hold_of(connection, name, owner).await? else {
            return Ok(Pinged::NotHeld);
        };
        let path = self.claim_node_path(name, &node.queued.node);
        let number = fastrand::u64(..);
        let data = ClaimData {
            ping: Some(number),
            ..data
        };
        let counted_from = Clock::Boot.now();
        let version = Some(node.stat.version);
        let set = connection.client().set_data(&path, &data.write(), version);
        match connection.write(counted_from, set).await {
            Ok(_) => {}
            Err(Failure::Refused(Refusal::NoNode | Refusal::BadVersion)) => {
                return Ok(Pinged::Overwritten);
            }
            Err(other) => return Err(other.into()),
        }
        loop {
            let get = connection.client().get_and_watch_data(&path);
            let (bytes, _, watcher) = match connection.read(get).await {
                Ok(read) => read,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(Pinged::Overwritten),
                Err(other) => return Err(other.into()),
            };
            let Some(data) = self.read_data(name, &bytes)? else {
                return Ok(Pinged::Overwritten);
            };
            if let Some((answered, lease)) = data.pong
                && answered == number
            {
                let grant = Grant::new(Tokens::one(data.tokens(node.first).1), counted_from, lease);
                return Ok(Pinged::Answered(node.holder(Some(data)), grant));
            }
            if data.ping != Some(number) {
                return Ok(Pinged::Overwritten);
            }
            let changed = connection.unless_lost(watcher.changed()).await;
            changed.ok_or_else(|| Failure::Unanswered("the connection was lost".into()))?;
        }
    }

    /// The node of this owner's hold, with its data.
    async fn hold_of(
        &self,
        connection: &Connection,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<(ReadNode, ClaimData)>, ReadError> {
        let (queue, holding) = self.read_queue(connection, name, 0).await?;
        for node in queue.into_iter().take(holding) {
            let data = self.read_data(name, &node.bytes)?;
            if let Some(data) = data.filter(|data| data.owner == owner) {
                return Ok(Some((node, data)));
            }
        }
        Ok(None)
    }

    /// Answers a ping in the data of a hold's node, if there is one and the hold is valid.
    pub(crate) async fn answer_ping(
        &self,
        entry: &Arc<Entry>,
        bytes: &[u8],
        version: i32,
    ) -> Result<(), Failure> {
        let Ok(data) = ClaimData::read(bytes) else {
            return Ok(());
        };
        let Some(number) = data.ping else {
            return Ok(());
        };
        let (left, managed, node) = {
            let known = entry.known.lock();
            if !known.held || known.ended || known.uncertain {
                return Ok(());
            }
            let left = known.ends_at.since(Clock::Boot.now() + known.lock_delay);
            (left, Arc::clone(&known.managed), known.node.clone())
        };
        let Some(node) = node.filter(|_| !left.is_zero()) else {
            return Ok(());
        };
        let answer = ClaimData {
            ping: None,
            pong: Some((number, left)),
            ..data
        };
        let connection = managed.connection().await?;
        let sent = Clock::Boot.now();
        let path = entry.lock_node.child(&node.name);
        let set = connection
            .client()
            .set_data(&path, &answer.write(), Some(version));
        match connection.write(sent, set).await {
            // Another client wrote first: that fired the watch, so the node is read again.
            Ok(_) | Err(Failure::Refused(Refusal::BadVersion | Refusal::NoNode)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
