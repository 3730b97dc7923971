//! Looking at locks as the servers have them, and taking them from their holders.

use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, HolderView, LockView, Page, WaiterView};
use fencelock_core::{Clock, Error, LockName, Result, Token};
use zookeeper_client::{Error as Refusal, MultiReadResult, Stat};

use crate::names;
use crate::queue::{Line, Stander};
use crate::state::Store;
use crate::stored::{Data, Unread, first_token};
use crate::{
    connection::Link,
    error::{Read, Trouble},
};

/// How many of those who wait are shown.
const SHOWN: usize = 1000;

/// How many nodes are read in one request.
const AT_ONCE: usize = 200;

/// How often a line that changes while it is read is read again.
const TRIES: usize = 10;

/// A change that no watch tells of (a token handed on inside a process) is seen after so long.
const LOOK: Duration = Duration::from_secs(1);

/// One in line, with what its node holds.
pub(crate) struct Seen {
    pub(crate) stander: Stander,
    pub(crate) stat: Stat,
    pub(crate) bytes: Vec<u8>,
}

impl Seen {
    /// Somebody who holds.
    pub(crate) fn holder(&self, data: Option<Data>) -> HolderView {
        let Some(data) = data else {
            return HolderView {
                claim: None,
                owner: foreign(self),
                token: Some(first_token(self.stat.czxid)),
                mode: self.stander.mode,
                ttl_left: None,
                lock_delay: Duration::ZERO,
                held: None,
                label: None,
            };
        };
        HolderView {
            claim: names::claim(&self.stander.node),
            token: Some(data.tokens(self.stat.czxid).1),
            owner: data.owner,
            mode: self.stander.mode,
            // Sessions show no countdown: this is what was asked for.
            ttl_left: Some(data.ttl + data.lock_delay),
            lock_delay: data.lock_delay,
            held: None,
            label: data.label,
        }
    }
}

impl Store {
    pub(crate) async fn look(
        &self,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let trouble = |trouble| self.error(format!("looking at lock {name}"), trouble);
        loop {
            let link = self.line.link().await.map_err(trouble)?;
            let Some(seen) = unlike else {
                return self.view(&link, name).await;
            };
            // Watched before it is looked at, so that nothing between is missed.
            let parent = self.parent(name);
            let children = link
                .read(link.client().list_and_watch_children(&parent))
                .await;
            let watcher = match children {
                Ok((_, watcher)) => watcher,
                Err(Trouble::Answered(Refusal::NoNode)) => {
                    let stat = link.read(link.client().check_and_watch_stat(&parent)).await;
                    stat.map_err(trouble)?.1
                }
                Err(other) => return Err(trouble(other)),
            };
            let view = self.view(&link, name).await?;
            if view.token() != seen {
                return Ok(view);
            }
            // In this order: a watcher must not be asked once its connection is gone.
            tokio::select! {
                biased;
                () = link.ended() => {}
                _ = watcher.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn view(&self, link: &Link, name: &LockName) -> Result<LockView> {
        let trouble = |trouble| self.error(format!("looking at lock {name}"), trouble);
        let (line, holding) = self
            .read_line(link, name, SHOWN)
            .await
            .map_err(|e| match e {
                Read::Trouble(other) => trouble(other),
                Read::Error(error) => error,
            })?;
        let mut view = LockView::free(name.clone());
        for (at, seen) in line.into_iter().enumerate() {
            let data = self.read_data(name, &seen.bytes)?;
            if at < holding {
                view.holders.push(seen.holder(data));
            } else {
                let (owner, label) = match data {
                    Some(data) => (data.owner, data.label),
                    None => (foreign(&seen), None),
                };
                let mode = seen.stander.mode;
                view.waiters.push(WaiterView { owner, mode, label });
            }
        }
        Ok(view)
    }

    /// What a node of ours holds; `None` if it is another library's.
    pub(crate) fn read_data(&self, name: &LockName, bytes: &[u8]) -> Result<Option<Data>> {
        match Data::read(bytes) {
            Ok(data) => Ok(Some(data)),
            Err(Unread::Foreign) => Ok(None),
            Err(Unread::Newer(version)) => Err(Error::NotALock {
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
        link: &Link,
        name: &LockName,
        most: usize,
    ) -> Result<(Vec<Seen>, usize), Read> {
        for _ in 0..TRIES {
            let children = self.fresh_children(link, name).await?;
            let line: Line = self.sorted(name, children).map_err(Read::Error)?;
            let holding = line.holding();
            let mut wanted = line.0;
            wanted.truncate(holding + most);
            let parent = self.parent(name);
            let paths: Vec<_> = wanted
                .iter()
                .map(|s| format!("{parent}/{}", s.node))
                .collect();
            let read = self.read_nodes(link, &paths).await?;
            let seen: Vec<_> = wanted
                .into_iter()
                .zip(read)
                .map(|(stander, read)| {
                    read.map(|(bytes, stat)| Seen {
                        stander,
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
        Err(Read::Trouble(Trouble::Silent(busy.into())))
    }

    /// What nodes hold; `None` for one that is not there.
    async fn read_nodes(
        &self,
        link: &Link,
        paths: &[String],
    ) -> Result<Vec<Option<(Vec<u8>, Stat)>>, Trouble> {
        let mut read = Vec::with_capacity(paths.len());
        for paths in paths.chunks(AT_ONCE) {
            let mut reader = link.client().new_multi_reader();
            for path in paths {
                reader.add_get_data(path).map_err(Trouble::Answered)?;
            }
            for result in link.read(reader.commit()).await? {
                read.push(match result {
                    MultiReadResult::Data { data, stat } => Some((data, stat)),
                    MultiReadResult::Error { err } if err == Refusal::NoAuth => {
                        return Err(Trouble::Answered(err));
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
        let trouble = |trouble| self.error("listing locks", trouble);
        let link = self.line.link().await.map_err(trouble)?;
        let sync = link.client().sync(self.config.root_path());
        let list = link.client().list_children(self.config.root_path());
        let (synced, nodes) = tokio::join!(link.read(sync), self.children(&link, list));
        if let Err(other @ Trouble::Silent(_)) = synced {
            return Err(trouble(other));
        }
        let nodes = nodes.map_err(trouble)?;
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
        for names in names.chunks(AT_ONCE) {
            let mut reader = link.client().new_multi_reader();
            for name in names {
                let added = reader.add_get_children(&self.parent(name));
                added.map_err(|refusal| trouble(Trouble::Answered(refusal)))?;
            }
            let results = link.read(reader.commit()).await.map_err(trouble)?;
            for (name, result) in names.iter().zip(results) {
                let MultiReadResult::Children { children } = result else {
                    continue;
                };
                if children.iter().any(|node| names::split(node).is_some()) {
                    let view = self.view(&link, name).await?;
                    if !view.holders.is_empty() {
                        items.push(view);
                    }
                }
            }
        }
        Ok(Page { items, next })
    }

    pub(crate) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let trouble = |trouble| self.error(format!("evicting the holder of lock {name}"), trouble);
        let link = self.line.link().await.map_err(trouble)?;
        for _ in 0..TRIES {
            let (line, holding) = self.read_line(&link, name, 0).await.map_err(|e| match e {
                Read::Trouble(other) => trouble(other),
                Read::Error(error) => error,
            })?;
            let mut meant = None;
            for seen in line.into_iter().take(holding) {
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
            let path = self.path(name, &seen.stander.node);
            let version = Some(seen.stat.version);
            let sent = Clock::Boot.now();
            let done = match (how, data) {
                (Evict::Release, _) => link.write(sent, link.client().delete(&path, version)).await,
                (Evict::Ask, Some(data)) => {
                    let asked = Data {
                        asked: true,
                        ..data
                    };
                    let set = link.client().set_data(&path, &asked.write(), version);
                    link.write(sent, set).await.map(drop)
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
                Err(Trouble::Answered(Refusal::NoNode | Refusal::BadVersion)) => {}
                Err(other) => return Err(trouble(other)),
            }
        }
        Err(trouble(Trouble::Silent("its node keeps changing".into())))
    }
}

/// What is known of a claim of another library: what it wrote, or its node's name.
fn foreign(seen: &Seen) -> String {
    match std::str::from_utf8(&seen.bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => seen.stander.node.clone(),
    }
}
