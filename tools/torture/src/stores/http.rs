//! Two replicas of the lock service before one Redis. The nodes are the replicas: the workers reach them through their own
//! proxies, and each replica reaches the store through a proxy of its own.

use std::process::Command;

use fencelock_testbed::{Failure, Flow, Port, Proxy, Redis, Result, Worker};

use super::redis::COUNTER;
use super::store::{STALE_QUEUE, TestStore, keys_left, kill_clients, loopback, unknown};
use crate::Relaunch;
use crate::fault::FaultKind;
use crate::history::Rule;
use crate::replica;
use crate::revived::Revived;

/// A short ttl, so that more happens in the same time.
const WINDOW: u64 = 1000;

struct Node {
    relaunch: Relaunch,
    /// The URL of the store through `to_store`.
    store: String,
    port: Port,
    process: Option<Worker>,
    to_store: Proxy,
    /// Between the workers' proxies and the replica; repeats requests.
    before: Proxy,
}

impl Node {
    fn start(relaunch: &Relaunch, redis: &Redis) -> Result<Self> {
        let to_store = Proxy::start(redis.port())?;
        let port = Port::free()?;
        let url = redis.url_at(to_store.port());
        let mut node = Self {
            relaunch: relaunch.clone(),
            store: format!("{url}?claim-window={WINDOW}ms"),
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
        // The store may be down for now: what comes later is not waited for.
        let mut lines = process.take_lines();
        std::thread::spawn(move || while lines.blocking_recv().is_some() {});
        self.process = Some(process);
        Ok(())
    }

    fn process(&self) -> Result<&Worker> {
        let ended = || Failure::new("the replica is not running");
        self.process.as_ref().ok_or_else(ended)
    }
}

struct Replicas {
    redis: Redis,
    nodes: Vec<Node>,
}

pub(super) fn start(relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    let redis = Redis::builder().append_only("always").start()?;
    let nodes = (0..2).map(|_| Node::start(relaunch, &redis));
    let nodes = nodes.collect::<Result<_>>()?;
    Ok(Box::new(Replicas { redis, nodes }))
}

impl TestStore for Replicas {
    fn name(&self) -> &'static str {
        "http-redis"
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.before.port()).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        // Each replica reaches the store by another port.
        let hosts = loopback(ports);
        format!("fencelock+http://{hosts}?spread=request&same-store=vouched&response-timeout=500ms")
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillLeader,
            FaultKind::CutOff,
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
                self.redis.kill9();
                Ok(())
            }
            FaultKind::CutOff => {
                self.nodes[node].to_store.both(Flow::Lose);
                Ok(())
            }
            FaultKind::KillConnections => {
                self.nodes[node].before.reset();
                kill_clients(&self.redis)
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
            FaultKind::KillLeader => self.redis.restart(),
            FaultKind::CutOff => {
                let proxy = &self.nodes[node].to_store;
                proxy.both(Flow::Pass);
                // A connection that has lost bytes is useless.
                proxy.reset();
                Ok(())
            }
            FaultKind::KillConnections => Ok(()),
            FaultKind::Repeat => self.nodes[node].before.repeat(),
            FaultKind::Revive => {
                let requests = self.nodes.iter().flat_map(|node| node.before.take_kept());
                match Revived::find(requests.collect()) {
                    Some(revived) => revived.start(self.nodes[node].port.number()),
                    // Nothing was taken and released meanwhile.
                    None => Ok(()),
                }
            }
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, _kind: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(std::slice::from_ref(&self.redis), |key| key == COUNTER)
    }
}
