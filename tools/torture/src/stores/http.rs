//! Two replicas of the lock service before one server. The nodes are the replicas: the workers reach them through their own
//! proxies, and each replica reaches the store through a proxy of its own.

use std::ops::RangeInclusive;
use std::process::Command;

use fencelock_testbed::{
    Etcd, Failure, Flow, MariaDb, Port, Postgres, Proxy, Redis, Result, Worker, ZooKeeper,
};

use super::etcd::keys_left as etcd_left;
use super::redis::COUNTER;
use super::sql::{end_connections, end_sessions};
use super::store::{STALE_QUEUE, TestStore, keys_left, kill_clients, loopback, unknown};
use crate::Relaunch;
use crate::fault::FaultKind;
use crate::history::{Late, Rule};
use crate::late::{Again, Found};
use crate::replica;

/// How long a replica is stopped, in milliseconds. The shortest time is less than its clients wait for an answer, the
/// longest one is more than their leases.
const PAUSES: RangeInclusive<u64> = 500..=10_000;

/// The store behind the replicas.
trait Behind: Send {
    /// The name of the whole at `--start`.
    fn name(&self) -> &'static str;
    fn port(&self) -> u16;
    /// Its URL at a proxy's port, with a short claim window, so that more happens in the same time.
    fn url_at(&self, port: u16) -> String;
    fn kill9(&self);
    fn restart(&mut self) -> Result<()>;
    /// Ends the connections as an administrator does.
    fn kill_connections(&self) -> Result<()>;
    /// See [`TestStore::window`]: by default that of a database.
    fn window(&self) -> u64 {
        6000
    }
    /// See [`TestStore::forgets_after`].
    fn forgets_after(&self) -> u64 {
        0
    }
    /// See [`TestStore::left`]: by default nothing, since `list`, which is called for every store, sees what is held.
    fn left(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Behind for Redis {
    fn name(&self) -> &'static str {
        "http-redis"
    }

    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn url_at(&self, port: u16) -> String {
        format!("{}?claim-window=1s", Self::url_at(self, port))
    }

    fn kill9(&self) {
        Self::kill9(self);
    }

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn kill_connections(&self) -> Result<()> {
        kill_clients(self)
    }

    fn window(&self) -> u64 {
        1000
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&self) -> Result<Vec<String>> {
        keys_left(std::slice::from_ref(self), |key| key == COUNTER)
    }
}

impl Behind for Postgres {
    fn name(&self) -> &'static str {
        "http-postgres"
    }

    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn url_at(&self, port: u16) -> String {
        Self::url_at(self, port, "lock")
    }

    fn kill9(&self) {
        Self::kill9(self);
    }

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn kill_connections(&self) -> Result<()> {
        end_sessions(self)
    }
}

impl Behind for MariaDb {
    fn name(&self) -> &'static str {
        "http-mysql"
    }

    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn url_at(&self, port: u16) -> String {
        Self::url_at(self, port, "lock")
    }

    fn kill9(&self) {
        Self::kill9(self);
    }

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn kill_connections(&self) -> Result<()> {
        end_connections(self)
    }
}

/// A claim belongs to the replica that took it, and ends with that replica.
impl Behind for Etcd {
    fn name(&self) -> &'static str {
        "http-etcd"
    }

    fn port(&self) -> u16 {
        Self::port(self, 0)
    }

    fn url_at(&self, port: u16) -> String {
        format!("{}?claim-window=2s", Self::url_at(self, &[port]))
    }

    fn kill9(&self) {
        self.kill9_all();
    }

    fn restart(&mut self) -> Result<()> {
        Self::launch(self, 0)
    }

    fn kill_connections(&self) -> Result<()> {
        // An administrator cannot end connections here.
        Ok(())
    }

    fn window(&self) -> u64 {
        // A session of two seconds, and the time in which a server notices its end.
        3000
    }

    fn forgets_after(&self) -> u64 {
        // The session of a killed replica.
        3000
    }

    fn left(&self) -> Result<Vec<String>> {
        etcd_left(self)
    }
}

/// A claim belongs to the replica that took it, and ends with that replica.
impl Behind for ZooKeeper {
    fn name(&self) -> &'static str {
        "http-zookeeper"
    }

    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn url_at(&self, port: u16) -> String {
        format!("zookeeper://127.0.0.1:{port}")
    }

    fn kill9(&self) {
        Self::kill9(self);
    }

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn kill_connections(&self) -> Result<()> {
        // An administrator cannot end connections here.
        Ok(())
    }

    fn window(&self) -> u64 {
        // A session of six seconds, and the time in which a server notices its end.
        6500
    }

    fn forgets_after(&self) -> u64 {
        // The session of a killed replica.
        6500
    }
}

struct Node {
    relaunch: Relaunch,
    /// The URL of the store through `to_store`.
    store: String,
    port: Port,
    process: Option<Worker>,
    to_store: Proxy,
    /// The proxy between the workers' proxies and the replica. It repeats requests.
    before: Proxy,
}

impl Node {
    fn start(relaunch: &Relaunch, behind: &dyn Behind) -> Result<Self> {
        let to_store = Proxy::start(behind.port())?;
        let port = Port::free()?;
        let mut node = Self {
            relaunch: relaunch.clone(),
            store: behind.url_at(to_store.port()),
            before: Proxy::start(port.number())?,
            port,
            process: None,
            to_store,
        };
        node.begin()?;
        Ok(node)
    }

    /// Starts the process, and waits until it serves.
    fn begin(&mut self) -> Result<()> {
        let mut command = Command::new(&self.relaunch.program);
        command.args(&self.relaunch.args);
        let mut process = Worker::spawn(&command)?;
        let job = replica::Replica {
            serve: self.store.clone(),
            port: self.port.number(),
        };
        let job = serde_json::to_string(&job).map_err(Failure::to("write a replica's job"))?;
        process.send(&job)?;
        // The store may be down for now, so do not wait for the other lines.
        let mut lines = process.take_lines();
        std::thread::spawn(move || while lines.blocking_recv().is_some() {});
        self.process = Some(process);
        Ok(())
    }

    /// The proxies that lose everything in a fault of this kind.
    fn cut(&self, kind: FaultKind) -> Vec<&Proxy> {
        match kind {
            FaultKind::CutOff => vec![&self.to_store],
            FaultKind::Unreachable => vec![&self.before],
            _ => vec![&self.to_store, &self.before],
        }
    }

    fn process(&self) -> Result<&Worker> {
        let ended = || Failure::new("the replica is not running");
        self.process.as_ref().ok_or_else(ended)
    }
}

struct Replicas {
    behind: Box<dyn Behind>,
    nodes: Vec<Node>,
    /// The only address that workers know, if there is one. It does not notice which replicas serve.
    balancer: Option<Proxy>,
    late: Found,
}

pub(super) fn start_redis(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    start(relaunch, Redis::builder().append_only("always").start()?)
}

/// Behind a load balancer.
pub(super) fn start_balanced(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    let redis = Redis::builder().append_only("always").start()?;
    let mut replicas = replicas(relaunch, redis)?;
    let ports = replicas.nodes.iter().map(|node| node.before.port());
    replicas.balancer = Some(Proxy::balance(&ports.collect::<Vec<_>>())?);
    Ok(Box::new(replicas))
}

pub(super) fn start_postgres(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    start(relaunch, Postgres::start()?)
}

pub(super) fn start_mariadb(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    start(relaunch, MariaDb::start()?)
}

pub(super) fn start_etcd(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    start(relaunch, Etcd::start()?)
}

pub(super) fn start_zookeeper(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    start(relaunch, ZooKeeper::start()?)
}

fn start(relaunch: &Relaunch, behind: impl Behind + 'static) -> Result<Box<dyn TestStore>> {
    Ok(Box::new(replicas(relaunch, behind)?))
}

fn replicas(relaunch: &Relaunch, behind: impl Behind + 'static) -> Result<Replicas> {
    let nodes = (0..2).map(|_| Node::start(relaunch, &behind));
    let nodes = nodes.collect::<Result<_>>()?;
    Ok(Replicas {
        behind: Box::new(behind),
        nodes,
        balancer: None,
        late: Found::default(),
    })
}

impl TestStore for Replicas {
    fn name(&self) -> &'static str {
        match self.balancer {
            Some(_) => "http-balanced",
            None => self.behind.name(),
        }
    }

    fn ports(&self) -> Vec<u16> {
        match &self.balancer {
            Some(balancer) => vec![balancer.port()],
            None => self.nodes.iter().map(|node| node.before.port()).collect(),
        }
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn url(&self, ports: &[u16]) -> String {
        // Each replica reaches the store by another port.
        let hosts = loopback(ports);
        format!(
            "fencelock+http://{hosts}?spread=request&same-store=confirmed&response-timeout=500ms"
        )
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillLeader,
            FaultKind::CutOff,
            FaultKind::Unreachable,
            FaultKind::Isolate,
            FaultKind::KillConnections,
            FaultKind::Repeat,
            FaultKind::Revive,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.nodes[node].process()?.process().pause(),
            FaultKind::Restart => {
                // Killed when dropped.
                self.nodes[node].process = None;
                Ok(())
            }
            FaultKind::KillLeader => {
                self.behind.kill9();
                Ok(())
            }
            FaultKind::CutOff | FaultKind::Unreachable | FaultKind::Isolate => {
                for proxy in self.nodes[node].cut(kind) {
                    proxy.both(Flow::Lose);
                }
                Ok(())
            }
            FaultKind::KillConnections => {
                self.nodes[node].before.reset();
                self.behind.kill_connections()
            }
            FaultKind::Repeat => {
                self.nodes[node].before.keep();
                Ok(())
            }
            FaultKind::Revive => {
                self.nodes.iter().for_each(|node| node.before.keep());
                Ok(())
            }
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.nodes[node].process()?.process().resume(),
            FaultKind::Restart => self.nodes[node].begin(),
            FaultKind::KillLeader => self.behind.restart(),
            FaultKind::CutOff | FaultKind::Unreachable | FaultKind::Isolate => {
                for proxy in self.nodes[node].cut(kind) {
                    proxy.both(Flow::Pass);
                    // A connection that has lost bytes is useless.
                    proxy.reset();
                }
                Ok(())
            }
            FaultKind::KillConnections => Ok(()),
            FaultKind::Repeat => self.nodes[node].before.repeat(),
            FaultKind::Revive => {
                let requests = self.nodes.iter().flat_map(|node| node.before.take_kept());
                let port = self.nodes[node].port.number();
                let again = Again::among(requests.collect());
                let mut again = again.into_iter();
                again.try_for_each(|again| again.start(port, &self.late))
            }
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, _kind: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn pauses(&self, _ttl: u64) -> RangeInclusive<u64> {
        PAUSES
    }

    fn window(&self) -> u64 {
        self.behind.window()
    }

    fn late(&mut self) -> Vec<Late> {
        self.late.take()
    }

    fn forgets_after(&self) -> u64 {
        self.behind.forgets_after()
    }

    fn left(&mut self) -> Result<Vec<String>> {
        self.behind.left()
    }
}
