//! The nodes of a Redis Cluster. A request is sent again only if the reply says that it had no effect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{AsyncConnectionConfig, RedisError};

use crate::config::{Address, Config};
use crate::connection::Connection;
use crate::error::explain;
use crate::keys::SLOTS;
use crate::node::{Node, Target};
use crate::server::ServerInfo;
use crate::slot_map::{SlotMap, is_redirection, moved_to, questions};
use crate::state::State;

/// How often one request follows a slot that has moved.
const MOVES: u8 = 5;
/// The pause before a retry while a slot is being moved, or has no master.
const PAUSE: Duration = Duration::from_millis(10);
/// The least pause between two requests for the cluster's slots.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// While a store is opened: how long to wait for further masters after one has answered.
const LATE_ANSWERS: Duration = Duration::from_secs(1);

/// The known nodes, and their slots.
#[derive(Debug, Default)]
struct Nodes {
    all: BTreeMap<Address, Arc<Node>>,
    owners: Vec<Option<Arc<Node>>>,
    /// The cluster's epoch when the slots were read.
    epoch: u64,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<redis::Client>,
    nodes: RwLock<Nodes>,
    /// When the cluster was asked for its slots last.
    refreshed: tokio::sync::Mutex<Option<BootInstant>>,
    refreshing: AtomicBool,
    /// Whether new nodes are connected as soon as they are known.
    opened: AtomicBool,
}

/// Until when and how often one request is sent again.
#[derive(Debug)]
pub(crate) struct Retries {
    until: BootInstant,
    moves: u8,
}

impl Retries {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            until: Clock::Boot.now() + config.response_timeout,
            moves: 0,
        }
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<redis::Client>) -> Arc<Self> {
        Arc::new(Self {
            seeds,
            nodes: RwLock::default(),
            refreshed: tokio::sync::Mutex::default(),
            refreshing: AtomicBool::new(false),
            opened: AtomicBool::new(false),
        })
    }

    fn nodes(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes_mut(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the masters and connects to all of them. Returns the information that they give.
    pub(crate) async fn open(&self, state: &Arc<State>) -> Result<Vec<ServerInfo>> {
        self.refresh(state).await?;
        let masters = self.masters();
        let connecting = masters.iter().map(|node| node.connect(state));
        let mut connecting: FuturesUnordered<_> = connecting.collect();
        let (mut infos, mut failed) = (Vec::new(), None);
        let mut timeout = state.config.connect_timeout * 2;
        while let Ok(Some(connected)) = tokio::time::timeout(timeout, connecting.next()).await {
            match connected {
                Ok(info) => {
                    infos.push(info);
                    timeout = LATE_ANSWERS;
                }
                // A master that is down does not make this fail. Wrong rights and settings do, since they are the same at all
                // masters.
                Err(error) if error.is_retryable() => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        drop(connecting);
        if infos.is_empty() {
            let cause = "no master answers";
            let silent = || Error::unavailable(state.store(), "connecting", cause);
            return Err(failed.unwrap_or_else(silent));
        }
        self.opened.store(true, Ordering::SeqCst);
        for node in self.masters() {
            node.maintain(state);
        }
        Ok(infos)
    }

    /// The nodes that have slots, ordered by address.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.nodes().all.values().cloned().collect()
    }

    pub(crate) fn close(&self) {
        for node in self.masters() {
            node.close();
        }
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.nodes()
            .owners
            .get(usize::from(slot))
            .cloned()
            .flatten()
    }

    pub(crate) fn slot_of(&self, node: &Arc<Node>) -> Option<u16> {
        let nodes = self.nodes();
        let owns = |owner: &Option<Arc<Node>>| owner.as_ref().is_some_and(|o| Arc::ptr_eq(o, node));
        let found = nodes.owners.iter().position(owns);
        found.and_then(|slot| u16::try_from(slot).ok())
    }

    /// The node of a slot, and its connection. Waits for one for at most the response timeout.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        state: &Arc<State>,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        let begun = Clock::Boot.now();
        loop {
            let owner = self.owner(slot);
            if let Some(node) = &owner
                && let Some(connection) = node.connection_if_up()
            {
                return Ok((Arc::clone(node), connection));
            }
            self.refresh_in_background(state);
            if Clock::Boot.now().since(begun) < state.config.response_timeout {
                // Another node may take over the slot meanwhile.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let Some(node) = owner else {
                let cause = format!(
                    "no master has the slot {slot} of this lock; check the cluster (redis-cli --cluster check HOST:PORT)"
                );
                return Err(Error::unavailable(state.store(), "finding a node", cause));
            };
            let connection = node.connection(state).await?;
            return Ok((node, connection));
        }
    }

    pub(crate) fn connection_if_up(
        self: &Arc<Self>,
        state: &Arc<State>,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        if let Some(node) = self.owner(slot)
            && let Some(connection) = node.connection_if_up()
        {
            return Ok((node, connection));
        }
        self.refresh_in_background(state);
        let cause = format!("the master that has the slot {slot} of this lock is not connected");
        Err(Error::unavailable(state.store(), "finding a node", cause))
    }

    /// The node at an address that a redirection named. It may be new.
    pub(crate) fn node_at(&self, state: &Arc<State>, address: &Address) -> Result<Arc<Node>> {
        if let Some(node) = self.nodes().all.get(address) {
            return Ok(Arc::clone(node));
        }
        let node = new_node(state, address)?;
        let mut nodes = self.nodes_mut();
        let node = nodes.all.entry(address.clone()).or_insert(node);
        node.maintain(state);
        Ok(Arc::clone(node))
    }

    /// Whether to send a request again after this error. If so, it returns when it is time to do so.
    pub(crate) async fn should_retry(
        self: &Arc<Self>,
        state: &Arc<State>,
        retries: &mut Retries,
        slot: u16,
        error: &RedisError,
    ) -> bool {
        if !is_redirection(error) {
            return false;
        }
        if retries.moves < MOVES
            && let Some(address) = moved_to(error)
            && let Ok(node) = self.node_at(state, &address)
        {
            retries.moves += 1;
            if let Some(owner) = self.nodes_mut().owners.get_mut(usize::from(slot)) {
                *owner = Some(node);
            }
            self.refresh_in_background(state);
            return true;
        }
        if Clock::Boot.now() >= retries.until {
            return false;
        }
        self.refresh_in_background(state);
        tokio::time::sleep(PAUSE).await;
        true
    }

    /// Reads the slots again in the background.
    pub(crate) fn refresh_in_background(self: &Arc<Self>, state: &Arc<State>) {
        if self.refreshing.swap(true, Ordering::SeqCst) {
            return;
        }
        let (cluster, state) = (Arc::clone(self), Arc::clone(state));
        tokio::spawn(async move {
            if let Err(error) = cluster.refresh(&state).await {
                tracing::debug!(store = state.store(), %error, "the cluster does not say which node has which slot");
            }
            cluster.refreshing.store(false, Ordering::SeqCst);
        });
    }

    async fn refresh(&self, state: &Arc<State>) -> Result<()> {
        let mut refreshed = self.refreshed.lock().await;
        if let Some(before) = *refreshed {
            let since = Clock::Boot.now().since(before);
            tokio::time::sleep(REFRESH_INTERVAL.saturating_sub(since)).await;
        }
        let read = match self.ask_masters().await {
            Some(newest) => Ok(newest),
            None => self.ask_seeds(&state.config).await,
        };
        *refreshed = Some(Clock::Boot.now());
        self.adopt(state, read?)
    }

    /// The newest map among those of all connected masters.
    async fn ask_masters(&self) -> Option<SlotMap> {
        let masters = self.masters();
        let connections = masters.iter().filter_map(|node| node.connection_if_up());
        let asked = connections.map(|connection| async move {
            let answers = connection.send_all(&questions()).await;
            SlotMap::read(answers, &connection.address())
        });
        let asked: FuturesUnordered<_> = asked.collect();
        let maps: Vec<_> = asked.collect().await;
        maps.into_iter().flatten().max_by_key(|map| map.epoch)
    }

    /// The first map that a node of the URL returns.
    async fn ask_seeds(&self, config: &Config) -> Result<SlotMap> {
        let timeout = config.connect_timeout;
        let asked = self.seeds.iter().map(|seed| async move {
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(timeout))
                .set_response_timeout(Some(timeout));
            let host = seed.get_connection_info().addr().to_string();
            let connected = seed.get_multiplexed_async_connection_with_config(&settings);
            let mut connection = connected.await?;
            let questions = questions();
            let answers = connection.send_packed_commands(&questions, 0, questions.len());
            SlotMap::read(answers.await, &host)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut failed = None;
        let first = async {
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(map) => return Some(map),
                    Err(error) => failed = Some(error),
                }
            }
            None
        };
        if let Ok(Some(map)) = tokio::time::timeout(timeout, first).await {
            return Ok(map);
        }
        let (store, action) = (
            &config.store,
            "asking the cluster which node has which slot",
        );
        Err(match failed {
            Some(error) if error.to_string().contains("cluster support disabled") => {
                let why = "it is not a node of a Redis Cluster; write redis://HOST:PORT";
                Error::config(store, ConfigPart::Server, why)
            }
            Some(error) => explain(store, action, None, error),
            None => {
                let cause = format!(
                    "no answer within {timeout:?}; is the cluster up and reachable (connect-timeout)?"
                );
                Error::unavailable(store, action, cause)
            }
        })
    }

    /// Takes over a map, unless a newer one is known.
    fn adopt(&self, state: &Arc<State>, map: SlotMap) -> Result<()> {
        let mut new = Vec::new();
        {
            let mut nodes = self.nodes_mut();
            if map.epoch < nodes.epoch {
                return Ok(());
            }
            nodes.epoch = map.epoch;
            let mut all: BTreeMap<Address, Arc<Node>> = BTreeMap::new();
            let mut owners = vec![None; usize::from(SLOTS)];
            for (first, last, address) in map.ranges {
                let node = match all.get(&address).or_else(|| nodes.all.get(&address)) {
                    Some(node) => Arc::clone(node),
                    None => {
                        let node = new_node(state, &address)?;
                        new.push(Arc::clone(&node));
                        node
                    }
                };
                all.insert(address, Arc::clone(&node));
                let range = usize::from(first)..=usize::from(last).min(owners.len() - 1);
                owners[range].fill(Some(node));
            }
            nodes.all = all;
            nodes.owners = owners;
        }
        // `open` connects the nodes of the first map.
        if self.opened.load(Ordering::SeqCst) {
            for node in new {
                node.maintain(state);
            }
        }
        Ok(())
    }
}

fn new_node(state: &State, address: &Address) -> Result<Arc<Node>> {
    let client = state.config.client_at(address)?;
    Ok(Node::new(Target::Fixed(Box::new(client))))
}
