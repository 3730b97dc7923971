//! The nodes of a Redis Cluster, and which of them has which slot.
//!
//! No request is sent twice behind anybody's back: only answers that say that nothing was done are followed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::config::{Address, Config};
use crate::connection::Connection;
use crate::error::explain;
use crate::hub::Hub;
use crate::keys::SLOTS;
use crate::node::{Node, Target};
use crate::server::ServerInfo;

/// How often one request follows a lock that has moved.
const MOVES: u8 = 5;
/// The pause while keys are on their way from one node to another, or the cluster is without a master for a slot.
const PAUSE: Duration = Duration::from_millis(10);
/// The cluster is not asked about itself more often than this.
const SELDOM: Duration = Duration::from_millis(100);
/// How long others may take to answer at open after the first one did.
const LAGGARDS: Duration = Duration::from_secs(1);

/// Which node has which slot, as far as is known.
#[derive(Debug, Default)]
struct Map {
    nodes: BTreeMap<Address, Arc<Node>>,
    owners: Vec<Option<Arc<Node>>>,
    /// The cluster's epoch when it was read.
    epoch: u64,
}

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<redis::Client>,
    map: RwLock<Map>,
    /// When the cluster was asked about itself last.
    refreshed: tokio::sync::Mutex<Option<BootInstant>>,
    refreshing: AtomicBool,
    /// Whether new nodes are connected as soon as they are known.
    opened: AtomicBool,
}

/// What one node says: the epoch, and which node has which slots.
struct Layout {
    epoch: u64,
    ranges: Vec<(u16, u16, Address)>,
}

/// How long and how often one request is asked again.
#[derive(Debug)]
pub(crate) struct Turns {
    until: BootInstant,
    moves: u8,
}

impl Turns {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            until: Clock::Boot.now() + config.response_timeout,
            moves: 0,
        }
    }
}

/// Where a lock is while its slot is on its way, if the answer tells.
pub(crate) fn asks(error: &RedisError) -> Option<Address> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
        return None;
    }
    split(error.redirect_node()?.0)
}

/// Whether an answer means that nothing was done because the lock is, or will be, elsewhere.
pub(crate) fn is_redirection(error: &RedisError) -> bool {
    let ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    matches!(
        kind,
        ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
    )
}

fn split(address: &str) -> Option<Address> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<redis::Client>) -> Self {
        Self {
            seeds,
            map: RwLock::default(),
            refreshed: tokio::sync::Mutex::default(),
            refreshing: AtomicBool::new(false),
            opened: AtomicBool::new(false),
        }
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the masters and connects to all of them. Answers with what they say about themselves.
    pub(crate) async fn open(&self, hub: &Arc<Hub>) -> Result<Vec<ServerInfo>> {
        self.refresh(hub).await?;
        let masters = self.masters();
        let connected = masters.iter().map(|node| node.connect(hub));
        let mut connected: FuturesUnordered<_> = connected.collect();
        let (mut facts, mut failed) = (Vec::new(), None);
        let mut patience = hub.config.connect_timeout * 2;
        while let Ok(Some(came)) = tokio::time::timeout(patience, connected.next()).await {
            match came {
                Ok(came) => {
                    facts.push(came);
                    patience = LAGGARDS;
                }
                // Not for one that is down while others serve; but rights and configurations are the same for all.
                Err(error) if error.is_transient() => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        drop(connected);
        if facts.is_empty() {
            let cause = "no master answers";
            let nobody = || Error::unavailable(hub.store(), "connecting", cause);
            return Err(failed.unwrap_or_else(nobody));
        }
        self.opened.store(true, Ordering::SeqCst);
        for node in self.masters() {
            node.keep(hub);
        }
        Ok(facts)
    }

    /// The nodes that have slots, in the order of their addresses.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }

    pub(crate) fn close(&self) {
        for node in self.masters() {
            node.close();
        }
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().owners.get(usize::from(slot)).cloned().flatten()
    }

    /// A slot that this node has.
    pub(crate) fn slot_of(&self, node: &Arc<Node>) -> Option<u16> {
        let map = self.map();
        let has = |owner: &Option<Arc<Node>>| owner.as_ref().is_some_and(|o| Arc::ptr_eq(o, node));
        let found = map.owners.iter().position(has);
        found.and_then(|slot| u16::try_from(slot).ok())
    }

    /// The node of a slot, and its connection; waits for one no longer than for an answer.
    pub(crate) async fn link(
        &self,
        hub: &Arc<Hub>,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        let begun = Clock::Boot.now();
        loop {
            let owner = self.owner(slot);
            if let Some(node) = &owner
                && let Some(link) = node.link_if_up()
            {
                return Ok((Arc::clone(node), link));
            }
            self.refresh_behind(hub);
            if Clock::Boot.now().since(begun) < hub.config.response_timeout {
                // Another may take its place meanwhile.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let Some(node) = owner else {
                let cause = format!("no master has the slot {slot} of this lock");
                return Err(Error::unavailable(hub.store(), "finding a node", cause));
            };
            let link = node.link(hub).await?;
            return Ok((node, link));
        }
    }

    /// The node of a slot, and its connection, if there is one at the moment.
    pub(crate) fn link_if_up(
        &self,
        hub: &Arc<Hub>,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        if let Some(node) = self.owner(slot)
            && let Some(link) = node.link_if_up()
        {
            return Ok((node, link));
        }
        self.refresh_behind(hub);
        let cause = format!("the master that has the slot {slot} of this lock is not connected");
        Err(Error::unavailable(hub.store(), "finding a node", cause))
    }

    /// The node at an address, known or not, for what is on its way to it.
    pub(crate) fn node_at(&self, hub: &Arc<Hub>, address: &Address) -> Result<Arc<Node>> {
        if let Some(node) = self.map().nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let node = Node::new(Target::Fixed(Box::new(hub.config.client_at(address)?)));
        let mut map = self.map_mut();
        let node = map.nodes.entry(address.clone()).or_insert(node);
        node.keep(hub);
        Ok(Arc::clone(node))
    }

    /// Whether to ask again; then it is time to.
    pub(crate) async fn turn(
        &self,
        hub: &Arc<Hub>,
        turns: &mut Turns,
        slot: u16,
        error: &RedisError,
    ) -> bool {
        if !is_redirection(error) {
            return false;
        }
        if error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
            && turns.moves < MOVES
            && let Some((address, _)) = error.redirect_node()
            && let Some(address) = split(address)
            && let Ok(node) = self.node_at(hub, &address)
        {
            turns.moves += 1;
            if let Some(owner) = self.map_mut().owners.get_mut(usize::from(slot)) {
                *owner = Some(node);
            }
            self.refresh_behind(hub);
            return true;
        }
        if Clock::Boot.now() >= turns.until {
            return false;
        }
        self.refresh_behind(hub);
        tokio::time::sleep(PAUSE).await;
        true
    }

    /// Has the map read again, soon.
    pub(crate) fn refresh_behind(&self, hub: &Arc<Hub>) {
        if self.refreshing.swap(true, Ordering::SeqCst) {
            return;
        }
        let hub = Arc::clone(hub);
        tokio::spawn(async move {
            let Some(cluster) = hub.cluster() else { return };
            if let Err(error) = cluster.refresh(&hub).await {
                tracing::debug!(store = hub.store(), %error, "the cluster does not say who has which slot");
            }
            cluster.refreshing.store(false, Ordering::SeqCst);
        });
    }

    async fn refresh(&self, hub: &Arc<Hub>) -> Result<()> {
        let mut refreshed = self.refreshed.lock().await;
        if let Some(before) = *refreshed {
            let since = Clock::Boot.now().since(before);
            tokio::time::sleep(SELDOM.saturating_sub(since)).await;
        }
        let layout = self.ask_around(hub).await;
        *refreshed = Some(Clock::Boot.now());
        self.take(hub, layout?)
    }

    /// Of what all nodes say that answer, the newest.
    async fn ask_around(&self, hub: &Arc<Hub>) -> Result<Layout> {
        let links: Vec<_> = self
            .masters()
            .iter()
            .filter_map(|node| node.link_if_up())
            .collect();
        let asked = links.iter().map(|link| async {
            let host = link.client.get_connection_info().addr().to_string();
            Layout::read(link.send_all(&questions()).await, &host)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut best: Option<Layout> = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(layout) if best.as_ref().is_none_or(|best| best.epoch < layout.epoch) => {
                    best = Some(layout);
                }
                Ok(_) | Err(_) => {}
            }
        }
        match best {
            Some(best) => Ok(best),
            None => self.ask_seeds(hub).await,
        }
    }

    async fn ask_seeds(&self, hub: &Arc<Hub>) -> Result<Layout> {
        let patience = hub.config.connect_timeout;
        let asked = self.seeds.iter().map(|seed| async move {
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(patience))
                .set_response_timeout(Some(patience));
            let host = seed.get_connection_info().addr().to_string();
            let connected = seed.get_multiplexed_async_connection_with_config(&settings);
            let mut connection = connected.await?;
            let questions = questions();
            let answers = connection.send_packed_commands(&questions, 0, questions.len());
            Layout::read(answers.await, &host)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut failed = None;
        let first = async {
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(layout) => return Some(layout),
                    Err(error) => failed = Some(error),
                }
            }
            None
        };
        if let Ok(Some(layout)) = tokio::time::timeout(patience, first).await {
            return Ok(layout);
        }
        let action = "asking the cluster who has which slot";
        Err(match failed {
            Some(error) if error.to_string().contains("cluster support disabled") => {
                let why = "it is no node of a Redis Cluster; write redis://HOST:PORT";
                Error::config(hub.store(), why)
            }
            Some(error) => explain(hub.store(), action, None, error),
            None => {
                let cause = format!(
                    "no answer within {patience:?}; is the cluster up and reachable (connect-timeout)?"
                );
                Error::unavailable(hub.store(), action, cause)
            }
        })
    }

    fn take(&self, hub: &Arc<Hub>, layout: Layout) -> Result<()> {
        let mut fresh = Vec::new();
        {
            let mut map = self.map_mut();
            if layout.epoch < map.epoch {
                return Ok(());
            }
            map.epoch = layout.epoch;
            let mut nodes: BTreeMap<Address, Arc<Node>> = BTreeMap::new();
            let mut owners = vec![None; usize::from(SLOTS)];
            for (first, last, address) in layout.ranges {
                let node = match nodes.get(&address).or_else(|| map.nodes.get(&address)) {
                    Some(node) => Arc::clone(node),
                    None => {
                        let node =
                            Node::new(Target::Fixed(Box::new(hub.config.client_at(&address)?)));
                        fresh.push(Arc::clone(&node));
                        node
                    }
                };
                nodes.insert(address, Arc::clone(&node));
                let range = usize::from(first)..=usize::from(last).min(owners.len() - 1);
                for owner in &mut owners[range] {
                    *owner = Some(Arc::clone(&node));
                }
            }
            map.nodes = nodes;
            map.owners = owners;
        }
        // Those of the first layout are connected by `open`.
        if self.opened.load(Ordering::SeqCst) {
            for node in fresh {
                node.keep(hub);
            }
        }
        Ok(())
    }
}

fn questions() -> Pipeline {
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("CLUSTER").arg("INFO");
    questions.cmd("CLUSTER").arg("SLOTS");
    questions
}

impl Layout {
    /// From the answers to [`questions`] by the node at `host:port`.
    fn read(answers: Result<Vec<Value>, RedisError>, asked: &str) -> Result<Self, RedisError> {
        let answers = answers?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(error.clone().into());
            }
        }
        let unexpected = || {
            RedisError::from((
                ErrorKind::UnexpectedReturnType,
                "CLUSTER SLOTS is unreadable",
            ))
        };
        let [info, Value::Array(slots)] = &answers[..] else {
            return Err(unexpected());
        };
        let info = text(info).unwrap_or_default();
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        let epoch = lines.find(|(key, _)| *key == "cluster_current_epoch");
        let epoch = epoch.and_then(|(_, epoch)| epoch.trim().parse().ok());
        let ranges: Option<Vec<_>> = slots.iter().map(|range| range_of(range, asked)).collect();
        Ok(Self {
            epoch: epoch.unwrap_or(0),
            ranges: ranges.ok_or_else(unexpected)?,
        })
    }
}

fn range_of(value: &Value, asked: &str) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &parts[..]
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else {
        return None;
    };
    // A node that does not know its own address says nothing, or `?`.
    let host = text(host).filter(|host| !host.is_empty() && host != "?");
    let host = match host {
        Some(host) => host,
        None => split(asked)?.0,
    };
    let number = |number: &i64| u16::try_from(*number).ok();
    Some((number(first)?, number(last)?, (host, number(port)?)))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}
