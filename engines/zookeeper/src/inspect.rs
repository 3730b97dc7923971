//! Looking at locks as the servers have them, and taking them from their holders.

use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, HolderView, LockView, Page, WaiterView};
use fencelock_core::{Clock, Error, LockName, Result, Token};
use zookeeper_client::{Error as Refusal, MultiReadResult, Stat};

use crate::names;
use crate::queue::{Queue, QueuedNode};
use crate::state::State;
use crate::stored::{ClaimData, Unreadable, first_token};
use crate::{
    connection::Connection,
    error::{Failure, ReadError},
};

/// How many of those who wait are shown.
const MAX_WAITERS_SHOWN: usize = 1000;

/// How many nodes are read in one request.
const READ_BATCH: usize = 200;

/// How often a line that changes while it is read is read again.
const ATTEMPTS: usize = 10;

/// A change that no watch tells of (a token handed on inside a process) is seen after so long.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// One in line, with what its node holds.
pub(crate) struct ReadNode {
    pub(crate) queued: QueuedNode,
    pub(crate) stat: Stat,
    pub(crate) bytes: Vec<u8>,
}

impl ReadNode {
    /// Somebody who holds.
    pub(crate) fn holder(&self, data: Option<ClaimData>) -> HolderView {
        let Some(data) = data else {
            return HolderView {
                claim: None,
                owner: foreign(self),
                token: Some(first_token(self.stat.czxid)),
                mode: self.queued.mode,
                ttl_left: None,
                lock_delay: Duration::ZERO,
                held: None,
                label: None,
            };
        };
        HolderView {
            claim: names::claim(&self.queued.node),
            token: Some(data.tokens(self.stat.czxid).1),
            owner: data.owner,
            mode: self.queued.mode,
            // Sessions show no countdown: this is what was asked for.
            ttl_left: Some(data.ttl + data.lock_delay),
            lock_delay: data.lock_delay,
            held: None,
            label: data.label,
        }
    }
}

impl State {
    pub(crate) async fn look(
        &self,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let failure = |failure| self.error(format!("looking at lock {name}"), failure);
        loop {
            let connection = self.waiting_session.connection().await.map_err(failure)?;
            let Some(seen) = unlike else {
                return self.view(&connection, name).await;
            };
            // Watched before it is looked at, so that nothing between is missed.
            let lock_node = self.lock_node_path(name);
            let children = connection
                .read(connection.client().list_and_watch_children(&lock_node))
                .await;
            let watcher = match children {
                Ok((_, watcher)) => watcher,
                Err(Failure::Refused(Refusal::NoNode)) => {
                    let stat = connection
                        .read(connection.client().check_and_watch_stat(&lock_node))
                        .await;
                    stat.map_err(failure)?.1
                }
                Err(other) => return Err(failure(other)),
            };
            let view = self.view(&connection, name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            // In this order: a watcher must not be asked once its connection is gone.
            tokio::select! {
                biased;
                () = connection.lost() => {}
                _ = watcher.changed() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn view(&self, connection: &Connection, name: &LockName) -> Result<LockView> {
        let failure = |failure| self.error(format!("looking at lock {name}"), failure);
        let (queue, holding) = self
            .read_line(connection, name, MAX_WAITERS_SHOWN)
            .await
            .map_err(|e| match e {
                ReadError::Failure(other) => failure(other),
                ReadError::Error(error) => error,
            })?;
        let mut view = LockView::free(name.clone());
        for (at, seen) in queue.into_iter().enumerate() {
            let data = self.read_data(name, &seen.bytes)?;
            if at < holding {
                view.holders.push(seen.holder(data));
            } else {
                let (owner, label) = match data {
                    Some(data) => (data.owner, data.label),
                    None => (foreign(&seen), None),
                };
                let mode = seen.queued.mode;
                view.waiters.push(WaiterView { owner, mode, label });
            }
        }
        Ok(view)
    }

    /// What a node of ours holds; `None` if it is another library's.
    pub(crate) fn read_data(&self, name: &LockName, bytes: &[u8]) -> Result<Option<ClaimData>> {
        match ClaimData::read(bytes) {
            Ok(data) => Ok(Some(data)),
            Err(Unreadable::Foreign) => Ok(None),
            Err(Unreadable::Newer(version)) => Err(Error::NotALock {
                store: self.config.store.clone(),
                name: name.clone(),
                why: format!(
                    "its format is version {version}, and this fencelock knows version 1; use the newer one"
                ),
            }),
        }
    }

    /// Those in line with their nodes, at most so many that wait, and how many of them hold.
    pub(crate) async fn read_line(
        &self,
        connection: &Connection,
        name: &LockName,
        most: usize,
    ) -> Result<(Vec<ReadNode>, usize), ReadError> {
        for _ in 0..ATTEMPTS {
            let children = self.fresh_children(connection, name).await?;
            let queue: Queue = self.sorted(name, children).map_err(ReadError::Error)?;
            let holding = queue.holding();
            let mut wanted = queue.0;
            wanted.truncate(holding + most);
            let lock_node = self.lock_node_path(name);
            let paths: Vec<_> = wanted
                .iter()
                .map(|s| format!("{lock_node}/{}", s.node))
                .collect();
            let read = self.read_nodes(connection, &paths).await?;
            let seen: Vec<_> = wanted
                .into_iter()
                .zip(read)
                .map(|(queued, read)| {
                    read.map(|(bytes, stat)| ReadNode {
                        queued,
                        stat,
                        bytes,
                    })
                })
                .collect();
            // Who waits and has gone is no matter; without a holder another may hold by now.
            if seen.iter().take(holding).all(Option::is_some) {
                return Ok((seen.into_iter().flatten().collect(), holding));
            }
        }
        let busy = "it changes hands faster than it can be looked at";
        Err(ReadError::Failure(Failure::Unanswered(busy.into())))
    }

    /// What nodes hold; `None` for one that is not there.
    async fn read_nodes(
        &self,
        connection: &Connection,
        paths: &[String],
    ) -> Result<Vec<Option<(Vec<u8>, Stat)>>, Failure> {
        let mut read = Vec::with_capacity(paths.len());
        for paths in paths.chunks(READ_BATCH) {
            let mut reader = connection.client().new_multi_reader();
            for path in paths {
                reader.add_get_data(path).map_err(Failure::Refused)?;
            }
            for result in connection.read(reader.commit()).await? {
                read.push(match result {
                    MultiReadResult::Data { data, stat } => Some((data, stat)),
                    MultiReadResult::Error { err } if err == Refusal::NoAuth => {
                        return Err(Failure::Refused(err));
                    }
                    _ => None,
                });
            }
        }
        Ok(read)
    }

    pub(crate) async fn list(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let failure = |failure| self.error("listing locks", failure);
        let connection = self.waiting_session.connection().await.map_err(failure)?;
        let sync = connection.client().sync(self.config.root_path());
        let list = connection.client().list_children(self.config.root_path());
        let (synced, nodes) = tokio::join!(connection.read(sync), self.children(&connection, list));
        if let Err(other @ Failure::Unanswered(_)) = synced {
            return Err(failure(other));
        }
        let nodes = nodes.map_err(failure)?;
        let mut names: Vec<_> = nodes
            .iter()
            .filter_map(|node| names::decode(node))
            .collect();
        names.retain(|name| {
            let later = at
                .as_ref()
                .is_none_or(|Cursor(at)| name.as_str() > at.as_str());
            later && name.as_str().starts_with(prefix)
        });
        names.sort_unstable();
        let more = names.len() > limit.max(1);
        names.truncate(limit.max(1));
        let next = names.last().filter(|_| more);
        let next = next.map(|name| Cursor(name.as_str().to_owned()));
        let mut items = Vec::new();
        for names in names.chunks(READ_BATCH) {
            let mut reader = connection.client().new_multi_reader();
            for name in names {
                let added = reader.add_get_children(&self.lock_node_path(name));
                added.map_err(|refusal| failure(Failure::Refused(refusal)))?;
            }
            let results = connection.read(reader.commit()).await.map_err(failure)?;
            for (name, result) in names.iter().zip(results) {
                let MultiReadResult::Children { children } = result else {
                    continue;
                };
                if children.iter().any(|node| names::split(node).is_some()) {
                    let view = self.view(&connection, name).await?;
                    if !view.holders.is_empty() {
                        items.push(view);
                    }
                }
            }
        }
        Ok(Page { items, next })
    }

    pub(crate) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let failure = |failure| self.error(format!("evicting the holder of lock {name}"), failure);
        let connection = self.waiting_session.connection().await.map_err(failure)?;
        for _ in 0..ATTEMPTS {
            let (queue, holding) =
                self.read_line(&connection, name, 0)
                    .await
                    .map_err(|e| match e {
                        ReadError::Failure(other) => failure(other),
                        ReadError::Error(error) => error,
                    })?;
            let mut meant = None;
            for seen in queue.into_iter().take(holding) {
                let data = self.read_data(name, &seen.bytes)?;
                let tokens = match &data {
                    Some(data) => data.tokens(seen.stat.czxid).0,
                    None => fencelock_core::Tokens::one(first_token(seen.stat.czxid)),
                };
                if tokens.contains(token) {
                    meant = Some((seen, data));
                }
            }
            let Some((seen, data)) = meant else {
                return Ok(false);
            };
            let path = self.claim_node_path(name, &seen.queued.node);
            let version = Some(seen.stat.version);
            let sent = Clock::Boot.now();
            let done = match (how, data) {
                (Evict::Release, _) => {
                    connection
                        .write(sent, connection.client().delete(&path, version))
                        .await
                }
                (Evict::Ask, Some(data)) => {
                    let asked = ClaimData {
                        asked: true,
                        ..data
                    };
                    let set = connection.client().set_data(&path, &asked.write(), version);
                    connection.write(sent, set).await.map(drop)
                }
                (Evict::Ask, None) => {
                    let why =
                        "another library holds it, which cannot be asked; take it without asking";
                    return Err(Error::unsupported(
                        &self.config.store,
                        "asking this holder",
                        why,
                    ));
                }
            };
            match done {
                Ok(()) => return Ok(true),
                // It changed since it was read: look again.
                Err(Failure::Refused(Refusal::NoNode | Refusal::BadVersion)) => {}
                Err(other) => return Err(failure(other)),
            }
        }
        Err(failure(Failure::Unanswered(
            "its node keeps changing".into(),
        )))
    }
}

/// What is known of a claim of another library: what it wrote, or its node's name.
fn foreign(seen: &ReadNode) -> String {
    match std::str::from_utf8(&seen.bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => seen.queued.node.clone(),
    }
}
