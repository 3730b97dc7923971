//! What a process may believe of a hold that it joins.
//!
//! Sessions show no countdown, and a node is there until its session ends, however long its holder has been dead. So
//! who wants to believe asks the holder: it writes a number into the hold's node, which the holder watches and answers
//! there with what is left of its own validity. That counts from before the number was written.

use std::sync::Arc;

use fencelock_core::engine::{Grant, HolderView};
use fencelock_core::{Clock, LockName, Result, Tokens};
use zookeeper_client::Error as Refusal;

use crate::error::ReadError;
use crate::stored::ClaimData;
use crate::{connection::Connection, error::Failure};
use crate::{entry::Entry, state::State};

impl State {
    /// The hold of this owner, which its process vouches for.
    pub(crate) async fn attest(
        &self,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<(HolderView, Grant)>> {
        let failure = |failure| self.error(format!("joining the hold of lock {name}"), failure);
        let limit = self.config.response_timeout;
        let asking = async {
            let connection = self.waiting_session.connection().await?;
            loop {
                // It changes only while its node is replaced, or another process asks, too.
                if let Some(asked) = self.attest_once(&connection, name, owner).await? {
                    return Ok::<_, ReadError>(asked);
                }
            }
        };
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(vouched)) => Ok(vouched),
            Ok(Err(ReadError::Failure(other))) => Err(failure(other)),
            Ok(Err(ReadError::Error(error))) => Err(error),
            Err(_) => {
                let why = format!("the process that holds it has not answered within {limit:?}");
                Err(failure(Failure::Unanswered(why)))
            }
        }
    }

    /// Asks under a number of its own; `None` if somebody else wrote into the node before the answer.
    async fn attest_once(
        &self,
        connection: &Arc<Connection>,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<Option<(HolderView, Grant)>>, ReadError> {
        let (queue, holding) = self.read_line(connection, name, 0).await?;
        let mut found = None;
        for seen in queue.into_iter().take(holding) {
            let data = self
                .read_data(name, &seen.bytes)
                .map_err(ReadError::Error)?;
            if let Some(data) = data.filter(|data| data.owner == owner) {
                found = Some((seen, data));
                break;
            }
        }
        let Some((seen, data)) = found else {
            return Ok(Some(None));
        };
        let path = self.claim_node_path(name, &seen.queued.node);
        let number = fastrand::u64(..);
        let asking = ClaimData {
            ping: Some(number),
            ..data
        };
        let counted_from = Clock::Boot.now();
        let version = Some(seen.stat.version);
        let set = connection
            .client()
            .set_data(&path, &asking.write(), version);
        match connection.write(counted_from, set).await {
            Ok(_) => {}
            Err(Failure::Refused(Refusal::NoNode | Refusal::BadVersion)) => return Ok(None),
            Err(other) => return Err(other.into()),
        }
        loop {
            let got = connection
                .read(connection.client().get_and_watch_data(&path))
                .await;
            let (bytes, _, watcher) = match got {
                Ok(got) => got,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(None),
                Err(other) => return Err(other.into()),
            };
            let Some(data) = self.read_data(name, &bytes).map_err(ReadError::Error)? else {
                return Ok(None);
            };
            if let Some((answered, lease)) = data.pong
                && answered == number
            {
                let token = data.tokens(seen.stat.czxid).1;
                let grant = Grant {
                    tokens: Tokens::one(token),
                    counted_from,
                    lease,
                    recorded: true,
                };
                return Ok(Some(Some((seen.holder(Some(data)), grant))));
            }
            if data.ping != Some(number) {
                return Ok(None);
            }
            // In this order: a watcher must not be asked once its connection is gone.
            tokio::select! {
                biased;
                () = connection.lost() => {
                    return Err(Failure::Unanswered("the connection was lost".into()).into());
                }
                _ = watcher.changed() => {}
            }
        }
    }

    /// Answers who asked whether the holder of this node is there, if somebody did.
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
        let left = {
            let known = entry.known();
            let left = known.ends_at.since(Clock::Boot.now() + known.lock_delay);
            (known.held && !known.ended && !known.uncertain).then_some(left)
        };
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            return Ok(());
        };
        let answer = ClaimData {
            ping: None,
            pong: Some((number, left)),
            ..data
        };
        let (managed, node) = {
            let known = entry.known();
            (Arc::clone(&known.managed), known.node.clone())
        };
        let Some(node) = node else { return Ok(()) };
        let connection = managed.connection().await?;
        let path = entry.lock_node.child(&node.name);
        let sent = Clock::Boot.now();
        let set = connection
            .client()
            .set_data(&path, &answer.write(), Some(version));
        match connection.write(sent, set).await {
            // Whoever was quicker has woken the watch again.
            Ok(_) | Err(Failure::Refused(Refusal::BadVersion | Refusal::NoNode)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
