//! What all calls of one store share: its servers, the waiters, the highest tokens seen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fencelock_core::engine::{Claim, Event};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Promises, Result};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::mpsc;

use crate::cluster::{Cluster, Turns};
use crate::config::{Config, Servers};
use crate::connection::Connection;
use crate::contention::Contention;
use crate::entry::{Entries, PushedGrant};
use crate::error::explain;
use crate::keys::{Keys, SLOTS};
use crate::node::{Node, Target};
use crate::scripts::{Script, Scripts};
use crate::sentinel::{self, Sentinels};
use crate::server::ServerInfo;
use crate::stored::{Message, mark};

/// The servers of the store.
#[derive(Debug)]
enum Topology {
    /// One, or whichever is the master.
    One(Arc<Node>),
    Cluster(Cluster),
}

/// Whether a server may grant.
#[derive(Debug)]
pub(crate) enum Gate {
    Open,
    /// It was started or promoted a moment ago and may have forgotten who holds.
    ShutUntil(BootInstant),
    /// It may be the master no more.
    Unsure(Error),
}

/// What a script that may serve a line goes by.
#[derive(Debug)]
pub(crate) struct Terms {
    /// The highest token seen.
    floor: u64,
    /// Whether nobody may be granted the lock.
    shut: bool,
}

impl Terms {
    /// As the scripts expect them.
    pub(crate) fn push(&self, command: &mut Cmd) {
        command.arg(self.floor).arg(u8::from(self.shut));
    }
}

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) config: Config,
    pub(crate) scripts: Scripts,
    /// What this process listens to is `fencelock:` and this.
    pub(crate) channel: String,
    pub(crate) entries: Entries,
    pub(crate) contention: Contention,
    topology: OnceLock<Topology>,
    sentinels: Option<Arc<Sentinels>>,
    /// The highest token seen, of the store or of each slot: the floor of whatever is drawn later.
    highest: Box<[AtomicU64]>,
    events: mpsc::UnboundedSender<Event>,
    generations: AtomicU64,
    /// Claims of which a place had no answer: the first connection such a one went over, and when even a late one is
    /// over. A grant changes nothing here: the claim may be withdrawn, and the place run then.
    unsettled: Mutex<HashMap<ClaimId, (u64, BootInstant)>>,
    unsettled_count: AtomicUsize,
    promises: OnceLock<Promises>,
}

impl Hub {
    /// Connects for the first time. The connections are restored behind from then on, as long as the hub lives.
    pub(crate) async fn open(
        config: Config,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let (events, heard) = mpsc::unbounded_channel();
        let sentinels = match &config.servers {
            Servers::Sentinel { master, sentinels } => {
                let strict = !config.promotion_delay.is_zero() && !config.inspect_only;
                Some(Arc::new(Sentinels::new(master, sentinels, strict)))
            }
            _ => None,
        };
        let counters = if config.is_cluster() { SLOTS } else { 1 };
        let hub = Arc::new(Self {
            scripts: Scripts::new(config.timed()),
            config,
            channel: format!("{:016x}", random_u64()?),
            entries: Entries::default(),
            contention: Contention::default(),
            topology: OnceLock::new(),
            sentinels,
            highest: (0..counters).map(|_| AtomicU64::new(0)).collect(),
            events,
            generations: AtomicU64::new(0),
            unsettled: Mutex::default(),
            unsettled_count: AtomicUsize::new(0),
            promises: OnceLock::new(),
        });
        let facts = match &hub.config.servers {
            Servers::Cluster(seeds) => {
                let cluster = Cluster::new(seeds.clone());
                let cluster = Topology::Cluster(cluster);
                let Topology::Cluster(cluster) = hub.topology.get_or_init(|| cluster) else {
                    unreachable!("set a moment ago");
                };
                cluster.open(&hub).await?
            }
            _ => {
                let node = Node::new(match &hub.sentinels {
                    Some(sentinels) => Target::Master(Arc::clone(sentinels)),
                    None => Target::Fixed(Box::new(hub.config.client.clone())),
                });
                let facts = node.connect(&hub).await?;
                node.keep(&hub);
                if let Some(sentinels) = &hub.sentinels {
                    sentinel::watch(sentinels, &hub, &node);
                }
                hub.topology.get_or_init(|| Topology::One(node));
                vec![facts]
            }
        };
        let _ = hub.promises.set(ServerInfo::promises(&facts, &hub.config));
        Ok((hub, heard))
    }

    pub(crate) fn store(&self) -> &str {
        &self.config.store
    }

    pub(crate) fn promises(&self) -> Promises {
        let promises = self.promises.get().cloned();
        promises.unwrap_or_else(|| ServerInfo::promises(&[], &self.config))
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The cluster, if it is one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self.topology.get() {
            Some(Topology::Cluster(cluster)) => Some(cluster),
            _ => None,
        }
    }

    pub(crate) fn keys<'a>(&self, name: &'a LockName) -> Keys<'a> {
        Keys::new(name, self.config.is_cluster())
    }

    /// The server of a slot, and the connection of the moment; waits for one no longer than for an answer.
    pub(crate) async fn link(self: &Arc<Self>, slot: u16) -> Result<(Arc<Node>, Arc<Connection>)> {
        match self.topology.get() {
            Some(Topology::One(node)) => Ok((Arc::clone(node), node.link(self).await?)),
            Some(Topology::Cluster(cluster)) => cluster.link(self, slot).await,
            // Not before `open` has returned.
            None => Err(Error::Closed),
        }
    }

    /// The server of a slot for a renewal. Of a cluster, only one that is connected: the renewals of the others' locks must
    /// not wait for it.
    pub(crate) async fn link_to_renew(
        self: &Arc<Self>,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        match self.cluster() {
            Some(cluster) => cluster.link_if_up(self, slot),
            None => self.link(slot).await,
        }
    }

    /// Every server that has locks.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self.topology.get() {
            Some(Topology::One(node)) => vec![Arc::clone(node)],
            Some(Topology::Cluster(cluster)) => cluster.masters(),
            None => Vec::new(),
        }
    }

    /// Whether the server may be believed to be the master still.
    ///
    /// # Errors
    /// If too few of the Sentinels have said so lately.
    pub(crate) fn check_master(&self, node: &Node) -> Result<()> {
        match &self.sentinels {
            Some(sentinels) => sentinels.check(self.store(), node),
            None => Ok(()),
        }
    }

    /// A server does not answer: perhaps another has taken its place.
    pub(crate) fn look_around(self: &Arc<Self>) {
        if let Some(cluster) = self.cluster() {
            cluster.refresh_behind(self);
        }
    }

    /// Whether the server behind a connection may grant now. Every way to a grant asks here: a claim that is placed, a
    /// grant that was pushed, and each script that may serve a line.
    pub(crate) fn gate(&self, node: &Node, link: &Connection) -> Gate {
        match link.grants_from {
            Some(from) if Clock::Boot.now() < from => Gate::ShutUntil(from),
            _ => match self.check_master(node) {
                Ok(()) => Gate::Open,
                Err(error) => Gate::Unsure(error),
            },
        }
    }

    /// What a script that may serve a line goes by, if it is run over this connection.
    pub(crate) fn terms(&self, slot: u16, node: &Node, link: &Connection) -> Terms {
        Terms {
            floor: self.highest(slot),
            shut: !matches!(self.gate(node, link), Gate::Open),
        }
    }

    /// Runs a script about a lock at the server that has it.
    ///
    /// # Errors
    /// If there is no answer, or another than the script's.
    pub(crate) async fn run(
        self: &Arc<Self>,
        action: &str,
        keys: &Keys<'_>,
        script: &Script,
        fill: impl Fn(&mut Cmd, &Terms) + Send + Sync,
    ) -> Result<(Value, Arc<Node>, Arc<Connection>)> {
        let mut turns = None;
        loop {
            let (node, link) = self.link(keys.slot).await?;
            let terms = self.terms(keys.slot, &node, &link);
            match link.run(script, |command| fill(command, &terms)).await {
                Ok(answer) => return Ok((answer, node, link)),
                Err(error) => {
                    let turns = turns.get_or_insert_with(|| Turns::new(&self.config));
                    if !self.turn(turns, keys.slot, &error).await {
                        return Err(explain(self.store(), action, Some(keys.name), error));
                    }
                }
            }
        }
    }

    /// Asks the server that has a lock several questions at once, without a script.
    ///
    /// # Errors
    /// If there is no answer, or one is an error.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        action: &str,
        keys: &Keys<'_>,
        questions: &Pipeline,
    ) -> Result<Vec<Value>> {
        let mut turns = Turns::new(&self.config);
        loop {
            let (_, link) = self.link(keys.slot).await?;
            let answers = link.send_all(questions).await.and_then(|answers| {
                let answers = answers.into_iter().map(|answer| match answer {
                    Value::ServerError(error) => Err(RedisError::from(error)),
                    answer => Ok(answer),
                });
                answers.collect::<Result<Vec<Value>, _>>()
            });
            match answers {
                Ok(answers) => return Ok(answers),
                Err(error) if self.turn(&mut turns, keys.slot, &error).await => {}
                Err(error) => return Err(explain(self.store(), action, Some(keys.name), error)),
            }
        }
    }

    /// That nothing can be taken or changed, if the store was opened to look only.
    ///
    /// # Errors
    /// If it was.
    pub(crate) fn check_whole(&self, what: &'static str) -> Result<()> {
        if !self.config.inspect_only {
            return Ok(());
        }
        let why = "it was opened to look only; open it anew";
        Err(Error::unsupported(self.store(), what, why))
    }

    /// Whether an answer means to ask again, elsewhere or a little later; then it is time to.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        turns: &mut Turns,
        slot: u16,
        error: &RedisError,
    ) -> bool {
        match self.cluster() {
            Some(cluster) => cluster.turn(self, turns, slot, error).await,
            None => false,
        }
    }

    pub(crate) fn highest(&self, slot: u16) -> u64 {
        self.highest[usize::from(slot)].load(Ordering::SeqCst)
    }

    /// A token, or the counter, was seen.
    pub(crate) fn saw(&self, slot: u16, token: u64) {
        self.highest[usize::from(slot)].fetch_max(token, Ordering::SeqCst);
    }

    /// A place went out over this connection, and no answer came.
    pub(crate) fn unsettle(&self, claim: &Claim, generation: u64) {
        let now = Clock::Boot.now();
        // The core gives up after one lease from the last try; twice that is enough to remember.
        let over = now + claim.ttl.saturating_add(claim.lock_delay).saturating_mul(2);
        let mut unsettled = self
            .unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unsettled.retain(|_, (_, over)| *over > now);
        let (first, _) = *unsettled.entry(claim.id).or_insert((generation, over));
        unsettled.insert(claim.id, (first.min(generation), over));
        self.unsettled_count
            .store(unsettled.len(), Ordering::SeqCst);
    }

    fn unsettled(&self, id: &ClaimId) -> Option<(u64, BootInstant)> {
        if self.unsettled_count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let unsettled = self.unsettled.lock();
        let unsettled = unsettled.unwrap_or_else(PoisonError::into_inner);
        unsettled.get(id).copied()
    }

    /// Before a withdrawal: ends what may still have an earlier place of the claim in hand, as far as that can be done.
    pub(crate) async fn end_earlier(self: &Arc<Self>, id: &ClaimId, slot: u16) {
        let Some((first, _)) = self.unsettled(id) else {
            return;
        };
        if let Ok((node, link)) = self.link(slot).await
            && node.has_old(first, &link)
        {
            node.end_old(&link).await;
        }
    }

    /// A withdrawal went through over this connection: is it sure that no earlier place of the claim can still take
    /// effect?
    ///
    /// Those that went to another server than this one can not: that one has the lock no more, and scripts come with a
    /// deadline.
    pub(crate) fn settle(&self, id: &ClaimId, node: &Node, link: &Connection) -> bool {
        let Some((first, over)) = self.unsettled(id) else {
            return true;
        };
        let lives = Clock::Boot.now() < over && node.has_old(first, link);
        if !lives {
            let unsettled = self.unsettled.lock();
            let mut unsettled = unsettled.unwrap_or_else(PoisonError::into_inner);
            unsettled.remove(id);
            self.unsettled_count
                .store(unsettled.len(), Ordering::SeqCst);
        }
        !lives
    }

    /// Ends the connections for good.
    pub(crate) fn close(&self) {
        match self.topology.get() {
            Some(Topology::One(node)) => node.close(),
            Some(Topology::Cluster(cluster)) => cluster.close(),
            None => {}
        }
        self.entries.wake_all();
    }

    /// A message came over the connection of this generation.
    pub(crate) fn hear(self: &Arc<Self>, message: Message, node: &Node, generation: u64) {
        match message {
            Message::Granted {
                claim,
                first,
                count,
                name,
            } => {
                let slot = self.keys(&name).slot;
                self.saw(slot, first + u64::from(count.max(1)) - 1);
                if !node.is_newest(generation) {
                    // The same message may come over the newer connection; all who wait place again over that one.
                    return;
                }
                if let Some(waiter) = self.entries.find(&claim) {
                    waiter.push(PushedGrant { first, count });
                } else {
                    // Nobody waits for it here any more: give it back at once.
                    let hub = Arc::clone(self);
                    tokio::spawn(async move { hub.give_back(claim, first, name).await });
                }
            }
            Message::Lost(claim) => {
                let _ = self.events.send(Event::Lost(claim));
            }
            Message::Asked(claim) => {
                let _ = self.events.send(Event::Asked(claim));
            }
        }
    }

    /// Gives back the grant with this token, unless there was a sign of life from the claim since: it may hold by an answer
    /// that came before the message did.
    async fn give_back(self: &Arc<Self>, claim: ClaimId, first: u64, name: LockName) {
        let keys = self.keys(&name);
        let args = |command: &mut Cmd, terms: &Terms| {
            keys.push_all(command);
            command.arg(&mark(&claim)[..]).arg("");
            terms.push(command);
            command.arg(first);
        };
        let script = &self.scripts.withdraw;
        if let Err(error) = self.run("giving back a grant", &keys, script, args).await {
            tracing::debug!(%name, %error, "a grant nobody waits for stays until its window is over");
        }
    }
}

/// Unlike that of any other process.
fn random_u64() -> Result<u64> {
    let id = fencelock_core::ClaimIds::new()?.next();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id.as_bytes()[..8]);
    Ok(u64::from_be_bytes(bytes))
}
