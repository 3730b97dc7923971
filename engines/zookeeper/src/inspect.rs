//! Looking at locks as the servers have them, and evicting holders.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Cursor, Evict, Finding, Grant, HolderView, Inspect, LockView, Page, WaiterView,
};
use fencelock_core::{Clock, Error, LockName, Result, Token, Tokens};
use futures_util::future::join_all;
use zookeeper_client::{Error as Refusal, MultiReadResult, OneshotWatcher, Stat};

use crate::connection::Connection;
use crate::diagnose::diagnose;
use crate::error::{Failure, ReadError};
use crate::names;
use crate::queue::QueuedNode;
use crate::state::State;
use crate::stored::{ClaimData, Unreadable};

/// How many nodes are read in one request.
const BATCH: usize = 200;

/// How often a queue that changes while it is read is read again.
const ATTEMPTS: usize = 10;

/// How long a change stays unseen that fires no watch on the lock's node: a token that is handed on inside a process.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A node in the queue, with what it contains.
pub(crate) struct ReadNode {
    pub(crate) queued: QueuedNode,
    pub(crate) stat: Stat,
    /// The first token, which follows from the node's creation.
    pub(crate) first: Token,
    pub(crate) bytes: Vec<u8>,
}

impl ReadNode {
    pub(crate) fn holder(&self, data: Option<ClaimData>) -> HolderView {
        let Some(data) = data else {
            return HolderView::new(self.foreign_owner(), self.queued.mode).token(self.first);
        };
        let (_, token) = data.tokens(self.first);
        HolderView::new(data.owner, self.queued.mode)
            .claim(names::claim_id(&self.queued.node))
            .token(token)
            // A session shows no remaining time, so this is the time that the claim asked for.
            .ttl_left(data.ttl + data.lock_delay)
            .lock_delay(data.lock_delay)
            .label(data.label)
    }

    fn waiter(&self, data: Option<ClaimData>) -> WaiterView {
        let (owner, label) = match data {
            Some(data) => (data.owner, data.label),
            None => (self.foreign_owner(), None),
        };
        let mode = self.queued.mode;
        WaiterView::new(owner, mode).label(label)
    }

    /// The owner of another library's node: what it wrote, or the node's name.
    fn foreign_owner(&self) -> String {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
            _ => self.queued.node.clone(),
        }
    }
}

#[async_trait]
impl Inspect for State {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.check_open()?;
        let connection = self.sessions.waiting.connection().await;
        let connection = connection.map_err(|failure| self.looking_error(name, failure))?;
        self.view(&connection, name).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.check_open()?;
        let failure = |failure| self.looking_error(name, failure);
        loop {
            let connection = self.sessions.waiting.connection().await.map_err(failure)?;
            // The watch is set before the lock is read, so that no change is missed.
            let watcher = self.watch_lock(&connection, name).await.map_err(failure)?;
            let view = self.view(&connection, name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            let changed = connection.unless_lost(watcher.changed());
            drop(tokio::time::timeout(POLL_INTERVAL, changed).await);
        }
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.check_open()?;
        let after = at.map(|at| at.name(prefix)).transpose()?;
        let failure = |failure| self.error("listing locks", failure);
        let connection = self.sessions.waiting.connection().await.map_err(failure)?;
        let root = self.config.root_path();
        let nodes = self.fresh_children(&connection, root).await;
        let nodes = nodes.map_err(failure)?;
        let mut names: Vec<_> = nodes
            .iter()
            .filter_map(|node| names::decode(node))
            .collect();
        names.retain(|name| {
            let later = after.as_ref();
            let later = later.is_none_or(|after| name.as_str() > after.as_str());
            later && name.as_str().starts_with(prefix)
        });
        names.sort_unstable();
        let limit = limit.max(1);
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().filter(|_| more);
        let next = next.map(|name| Cursor(name.as_str().to_owned()));
        let mut items = Vec::new();
        for names in names.chunks(BATCH) {
            let used = self
                .with_claims(&connection, names)
                .await
                .map_err(failure)?;
            // All at once: a page must not cost one round trip for each lock.
            let views = used.into_iter().map(|name| self.view(&connection, name));
            for view in join_all(views).await {
                let view = view?;
                if !view.holders.is_empty() {
                    items.push(view);
                }
            }
        }
        Ok(Page::new(items, next))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_open()?;
        let failure = |failure| self.error(format!("evicting the holder of lock {name}"), failure);
        let connection = self.sessions.waiting.connection().await.map_err(failure)?;
        for _ in 0..ATTEMPTS {
            let holder = self.holder_by_token(&connection, name, token).await;
            let holder = holder.map_err(|error| match error {
                ReadError::Failure(other) => failure(other),
                ReadError::Error(error) => error,
            })?;
            let Some((node, data)) = holder else {
                return Ok(false);
            };
            let path = self.claim_node_path(name, &node.queued.node);
            let version = Some(node.stat.version);
            let sent = Clock::Boot.now();
            let client = connection.client();
            let done = match (how, data) {
                (Evict::Release, _) => connection.write(sent, client.delete(&path, version)).await,
                (Evict::Ask, Some(data)) => {
                    let asked = ClaimData {
                        asked: true,
                        ..data
                    };
                    let set = client.set_data(&path, &asked.write(), version);
                    connection.write(sent, set).await.map(drop)
                }
                (Evict::Ask, None) => {
                    let why =
                        "another library holds it, which cannot be asked; evict it without asking";
                    let store = &self.config.store;
                    return Err(Error::unsupported(store, "asking this holder", why));
                }
            };
            match done {
                Ok(()) => return Ok(true),
                // It changed since it was read.
                Err(Failure::Refused(Refusal::NoNode | Refusal::BadVersion)) => {}
                Err(other) => return Err(failure(other)),
            }
        }
        let changing = "its node keeps changing";
        Err(failure(Failure::Unanswered(changing.into())))
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.check_open()?;
        self.attested(name, owner).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.check_open()?;
        Ok(diagnose(&self.config).await)
    }
}

impl State {
    /// Watches the children of a lock's node, or its creation.
    async fn watch_lock(
        &self,
        connection: &Connection,
        name: &LockName,
    ) -> Result<OneshotWatcher, Failure> {
        let lock_node = self.lock_node_path(name);
        let list = connection.client().list_and_watch_children(&lock_node);
        match connection.read(list).await {
            Ok((_, watcher)) => Ok(watcher),
            Err(Failure::Refused(Refusal::NoNode)) => {
                let check = connection.client().check_and_watch_stat(&lock_node);
                Ok(connection.read(check).await?.1)
            }
            Err(other) => Err(other),
        }
    }

    async fn view(&self, connection: &Connection, name: &LockName) -> Result<LockView> {
        let read = self
            .read_queue(connection, name, LockView::MOST_WAITERS)
            .await;
        let (queue, holding) = read.map_err(|error| match error {
            ReadError::Failure(failure) => self.looking_error(name, failure),
            ReadError::Error(error) => error,
        })?;
        let mut view = LockView::free(name.clone());
        for (at, node) in queue.into_iter().enumerate() {
            let data = self.read_data(name, &node.bytes)?;
            if at < holding {
                view.holders.push(node.holder(data));
            } else {
                view.waiters.push(node.waiter(data));
            }
        }
        Ok(view)
    }

    fn looking_error(&self, name: &LockName, failure: Failure) -> Error {
        self.error(format!("looking at lock {name}"), failure)
    }

    /// The data of this library's node; `None` if the node is another library's.
    pub(crate) fn read_data(&self, name: &LockName, bytes: &[u8]) -> Result<Option<ClaimData>> {
        match ClaimData::read(bytes) {
            Ok(data) => Ok(Some(data)),
            Err(Unreadable::Foreign) => Ok(None),
            Err(Unreadable::Newer(version)) => Err(Error::not_a_lock(
                &self.config.store,
                name,
                format!(
                    "its format is version {version}, and this fencelock knows version 1; use a newer fencelock"
                ),
            )),
        }
    }

    /// The nodes in the queue, with at most `max_waiters` waiters, and how many of the nodes hold.
    pub(crate) async fn read_queue(
        &self,
        connection: &Connection,
        name: &LockName,
        max_waiters: usize,
    ) -> Result<(Vec<ReadNode>, usize), ReadError> {
        let lock_node = self.lock_node_path(name);
        for _ in 0..ATTEMPTS {
            let children = self.fresh_children(connection, &lock_node).await?;
            let queue = self.queue(name, children)?;
            let holding = queue.holding();
            let mut queued = queue.0;
            queued.truncate(holding + max_waiters);
            let paths: Vec<_> = queued
                .iter()
                .map(|queued| format!("{lock_node}/{}", queued.node))
                .collect();
            let contents = self.read_nodes(connection, &paths).await?;
            let bases = self.bases(connection).await?;
            let nodes: Vec<_> = queued
                .into_iter()
                .zip(contents)
                .map(|(queued, content)| {
                    content.map(|(bytes, stat)| ReadNode {
                        queued,
                        first: bases.first_token(stat.czxid),
                        stat,
                        bytes,
                    })
                })
                .collect();
            // A waiter that has left does not matter. If a holder has left, another claim may hold.
            if nodes.iter().take(holding).all(Option::is_some) {
                return Ok((nodes.into_iter().flatten().collect(), holding));
            }
        }
        let busy = "it changes hands faster than it can be read";
        Err(ReadError::Failure(Failure::Unanswered(busy.into())))
    }

    /// The contents of nodes; `None` for a node that does not exist.
    async fn read_nodes(
        &self,
        connection: &Connection,
        paths: &[String],
    ) -> Result<Vec<Option<(Vec<u8>, Stat)>>, Failure> {
        let mut contents = Vec::with_capacity(paths.len());
        for paths in paths.chunks(BATCH) {
            let mut reader = connection.client().new_multi_reader();
            for path in paths {
                reader.add_get_data(path).map_err(Failure::Refused)?;
            }
            for result in connection.read(reader.commit()).await? {
                contents.push(match result {
                    MultiReadResult::Data { data, stat } => Some((data, stat)),
                    MultiReadResult::Error { err } if err == Refusal::NoAuth => {
                        return Err(Failure::Refused(err));
                    }
                    _ => None,
                });
            }
        }
        Ok(contents)
    }

    async fn with_claims<'a>(
        &self,
        connection: &Connection,
        names: &'a [LockName],
    ) -> Result<Vec<&'a LockName>, Failure> {
        let mut reader = connection.client().new_multi_reader();
        for name in names {
            let added = reader.add_get_children(&self.lock_node_path(name));
            added.map_err(Failure::Refused)?;
        }
        let results = connection.read(reader.commit()).await?;
        let used = names
            .iter()
            .zip(results)
            .filter(|(_, result)| match result {
                MultiReadResult::Children { children } => children
                    .iter()
                    .any(|node| names::split_number(node).is_some()),
                _ => false,
            });
        Ok(used.map(|(name, _)| name).collect())
    }

    async fn holder_by_token(
        &self,
        connection: &Connection,
        name: &LockName,
        token: Token,
    ) -> Result<Option<(ReadNode, Option<ClaimData>)>, ReadError> {
        let (queue, holding) = self.read_queue(connection, name, 0).await?;
        let mut found = None;
        for node in queue.into_iter().take(holding) {
            let data = self.read_data(name, &node.bytes)?;
            let tokens = match &data {
                Some(data) => data.tokens(node.first).0,
                None => Tokens::one(node.first),
            };
            if tokens.contains(token) {
                found = Some((node, data));
            }
        }
        Ok(found)
    }
}
