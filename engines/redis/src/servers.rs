//! The servers of a store: which one has a lock, whether it may grant, and how a request reaches it.

use std::sync::{Arc, Weak};

use fencelock_core::engine::{Claim, EventSource};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Promises, Result};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::mpsc;

use crate::cluster::{Cluster, Retries};
use crate::config::{Config, Deployment};
use crate::connection::Connection;
use crate::keys::Keys;
use crate::node::{Node, Target, follow_master};
use crate::promises;
use crate::scripts::Script;
use crate::sentinel::Sentinels;
use crate::state::{State, Task};
use crate::stored::mark;
use crate::unanswered::Unanswered;

#[derive(Debug)]
enum Topology {
    One(Arc<Node>),
    /// The node is the present master.
    Sentinel(Arc<Node>, Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

#[derive(Debug)]
pub(crate) enum Gate {
    Open,
    /// It was started or promoted recently, and may have lost locks.
    ClosedUntil(BootInstant),
    /// It may no longer be the master.
    Unconfirmed(Error),
}

/// What limits the grants of a script that serves a queue.
#[derive(Debug)]
pub(crate) struct GrantRules {
    /// The highest token seen.
    floor: u64,
    /// The script must not grant the lock.
    no_grants: bool,
}

impl GrantRules {
    /// Appends the arguments that the scripts expect.
    pub(crate) fn push(&self, command: &mut Cmd) {
        command.arg(self.floor).arg(u8::from(self.no_grants));
    }
}

/// The servers of a store, and the state that all calls share.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) state: Arc<State>,
    topology: Topology,
    unanswered: Unanswered,
    pub(crate) promises: Promises,
}

impl Servers {
    /// Connects for the first time. From then on connections are replaced in the background.
    pub(crate) async fn open(config: Config) -> Result<(Arc<Self>, EventSource)> {
        let (events, heard) = EventSource::channel();
        let (tasks, to_do) = mpsc::unbounded_channel();
        let state = Arc::new(State::new(config, events, tasks)?);
        let config = &state.config;
        let one = |target| async {
            let node = Node::new(target);
            let info = node.connect(&state).await?;
            node.maintain(&state);
            Ok::<_, Error>((node, vec![info]))
        };
        let (topology, infos) = match &config.deployment {
            Deployment::One => {
                let client = Box::new(config.client.clone());
                let (node, infos) = one(Target::Fixed(client)).await?;
                (Topology::One(node), infos)
            }
            Deployment::Sentinel { master, sentinels } => {
                let strict = !config.promotion_delay.is_zero() && !config.inspect_only;
                let sentinels = Arc::new(Sentinels::new(master, sentinels, strict));
                let (node, infos) = one(Target::Master(Arc::clone(&sentinels))).await?;
                follow_master(&sentinels, &state, &node);
                (Topology::Sentinel(node, sentinels), infos)
            }
            Deployment::Cluster(seeds) => {
                let cluster = Cluster::new(seeds.clone());
                let infos = cluster.open(&state).await?;
                (Topology::Cluster(cluster), infos)
            }
        };
        let servers = Arc::new(Self {
            topology,
            unanswered: Unanswered::default(),
            promises: promises::of(&infos, config),
            state,
        });
        tokio::spawn(run_tasks(Arc::downgrade(&servers), to_do));
        Ok((servers, heard))
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.topology {
            Topology::Cluster(cluster) => Some(cluster),
            Topology::One(_) | Topology::Sentinel(..) => None,
        }
    }

    /// The server of a slot, and its current connection. Waits for one for at most the response timeout.
    pub(crate) async fn connection(&self, slot: u16) -> Result<(Arc<Node>, Arc<Connection>)> {
        match &self.topology {
            Topology::One(node) | Topology::Sentinel(node, _) => {
                let connection = node.connection(&self.state).await?;
                Ok((Arc::clone(node), connection))
            }
            Topology::Cluster(cluster) => cluster.connection(&self.state, slot).await,
        }
    }

    /// The server of a slot for a renewal. In a cluster it must be connected: the renewals at other nodes must not wait.
    pub(crate) async fn connection_to_renew(
        &self,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>)> {
        match self.cluster() {
            Some(cluster) => cluster.connection_if_up(&self.state, slot),
            None => self.connection(slot).await,
        }
    }

    /// Every server that has locks.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.topology {
            Topology::One(node) | Topology::Sentinel(node, _) => vec![Arc::clone(node)],
            Topology::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Whether the server still counts as the master.
    ///
    /// # Errors
    /// If too few of the Sentinels have said so recently.
    pub(crate) fn check_master(&self, node: &Node) -> Result<()> {
        match &self.topology {
            Topology::Sentinel(_, sentinels) => {
                sentinels.check(self.state.store(), node.address().as_ref())
            }
            Topology::One(_) | Topology::Cluster(_) => Ok(()),
        }
    }

    /// Whether the server may grant now over this connection. Every way to a grant is checked here: placing a claim, a pushed
    /// grant, and each script that serves a queue.
    pub(crate) fn gate(&self, node: &Node, connection: &Connection) -> Gate {
        match connection.grants_from {
            Some(from) if Clock::Boot.now() < from => Gate::ClosedUntil(from),
            _ => match self.check_master(node) {
                Ok(()) => Gate::Open,
                Err(error) => Gate::Unconfirmed(error),
            },
        }
    }

    /// The rules for a script that serves a queue, run over this connection.
    pub(crate) fn grant_rules(
        &self,
        slot: u16,
        node: &Node,
        connection: &Connection,
    ) -> GrantRules {
        GrantRules {
            floor: self.state.highest(slot),
            no_grants: !matches!(self.gate(node, connection), Gate::Open),
        }
    }

    /// Runs a script about a lock at the server that has it.
    pub(crate) async fn run(
        &self,
        action: &str,
        keys: &Keys<'_>,
        script: &Script,
        fill: impl Fn(&mut Cmd, &GrantRules) + Send + Sync,
    ) -> Result<(Value, Arc<Node>, Arc<Connection>)> {
        let mut retries = None;
        loop {
            let (node, connection) = self.connection(keys.slot).await?;
            let turn = connection.turn().await;
            let rules = self.grant_rules(keys.slot, &node, &connection);
            let ran = connection.run(script, |command| fill(command, &rules));
            let ran = ran.await;
            drop(turn);
            match ran {
                Ok(answer) => return Ok((answer, node, connection)),
                Err(error) => {
                    let retries = retries.get_or_insert_with(|| Retries::new(&self.state.config));
                    if !self.should_retry(retries, keys.slot, &error).await {
                        return Err(self.state.failed(action, Some(keys.name), error));
                    }
                }
            }
        }
    }

    /// Sends several commands at once to the server that has a lock, without a script.
    pub(crate) async fn ask(
        &self,
        action: &str,
        keys: &Keys<'_>,
        questions: &Pipeline,
    ) -> Result<Vec<Value>> {
        let mut retries = Retries::new(&self.state.config);
        loop {
            let (_, connection) = self.connection(keys.slot).await?;
            let turn = connection.turn().await;
            let answers = connection.send_all(questions).await;
            drop(turn);
            let answers = answers.and_then(|answers| {
                let answers = answers.into_iter().map(|answer| match answer {
                    Value::ServerError(error) => Err(RedisError::from(error)),
                    answer => Ok(answer),
                });
                answers.collect::<Result<Vec<Value>, _>>()
            });
            match answers {
                Ok(answers) => return Ok(answers),
                Err(error) if self.should_retry(&mut retries, keys.slot, &error).await => {}
                Err(error) => return Err(self.state.failed(action, Some(keys.name), error)),
            }
        }
    }

    /// Whether to send a request again after this error, to another server or a little later. If so, it returns when it is time
    /// to do so.
    pub(crate) async fn should_retry(
        &self,
        retries: &mut Retries,
        slot: u16,
        error: &RedisError,
    ) -> bool {
        match self.cluster() {
            Some(cluster) => {
                let retry = cluster.should_retry(&self.state, retries, slot, error);
                retry.await
            }
            None => false,
        }
    }

    /// Notes that a request to place a claim failed. If there was no reply, it may still take effect.
    pub(crate) fn place_failed(
        &self,
        claim: &Claim,
        connection: &Connection,
        error: RedisError,
    ) -> Error {
        let error = self.state.failed("taking lock", Some(&claim.name), error);
        if error.is_retryable() {
            self.unanswered.note(claim, connection.generation);
        }
        error
    }

    /// Ends, as far as possible, earlier requests that may still place the claim. Called before a withdrawal.
    pub(crate) async fn end_unanswered(&self, id: &ClaimId, slot: u16) {
        let Some((first, _)) = self.unanswered.find(id) else {
            return;
        };
        if let Ok((node, connection)) = self.connection(slot).await
            && node.has_earlier(first, &connection)
        {
            node.end_earlier(&connection).await;
        }
    }

    /// After a withdrawal over this connection: whether it is certain that no earlier request can still place the claim.
    ///
    /// A request to another server cannot place it: that server no longer has the lock, and scripts have a deadline.
    pub(crate) fn is_final(&self, id: &ClaimId, node: &Node, connection: &Connection) -> bool {
        let Some((first, over)) = self.unanswered.find(id) else {
            return true;
        };
        let may_run = Clock::Boot.now() < over && node.has_earlier(first, connection);
        if !may_run {
            self.unanswered.forget(id);
        }
        !may_run
    }

    pub(crate) fn close(&self) {
        match &self.topology {
            Topology::One(node) | Topology::Sentinel(node, _) => node.close(),
            Topology::Cluster(cluster) => cluster.close(),
        }
        self.state.entries.wake_all();
    }

    /// Releases the grant with this token, unless the claim has confirmed it since. A reply that came before the message may
    /// have granted the lock to the claim.
    async fn give_back(&self, claim: ClaimId, first: u64, name: LockName) {
        let keys = self.state.keys(&name);
        let args = |command: &mut Cmd, rules: &GrantRules| {
            keys.push_all(command);
            command.arg(&mark(&claim)[..]).arg("");
            rules.push(command);
            command.arg(first);
        };
        let script = &self.state.scripts.withdraw;
        if let Err(error) = self.run("giving back a grant", &keys, script, args).await {
            tracing::debug!(%name, %error, "a grant without a waiter stays until its claim window is over");
        }
    }
}

/// Does the tasks of connections and nodes, until the store is dropped.
async fn run_tasks(servers: Weak<Servers>, mut tasks: mpsc::UnboundedReceiver<Task>) {
    while let Some(task) = tasks.recv().await {
        let Some(servers) = servers.upgrade() else {
            return;
        };
        match task {
            Task::GiveBack { claim, first, name } => {
                tokio::spawn(async move { servers.give_back(claim, first, name).await });
            }
            Task::FindServers => {
                if let Some(cluster) = servers.cluster() {
                    cluster.refresh_in_background(&servers.state);
                }
            }
        }
    }
}
