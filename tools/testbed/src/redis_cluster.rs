//! A Redis Cluster.

use crate::failure::{Failure, Result};
use crate::redis::Redis;
use crate::redis_sentinel::until;

/// The number of slots.
const SLOTS: usize = 16_384;

/// A cluster of masters with the same number of replicas each; killed when dropped.
#[derive(Debug)]
pub struct RedisCluster {
    /// The initial masters, then their replicas in the same order.
    nodes: Vec<Redis>,
    masters: usize,
    password: String,
}

impl RedisCluster {
    /// Starts it, and waits until every node reports that the cluster is up: about two seconds. A master that does not
    /// answer for `node_timeout` (in ms) is replaced. With `fsync` the nodes keep append-only files.
    ///
    /// # Errors
    /// If redis-server is not installed, or the cluster does not come up.
    pub fn start(
        masters: usize,
        replicas: usize,
        node_timeout: u32,
        fsync: Option<&str>,
    ) -> Result<Self> {
        let password = "testbed".to_owned();
        let mut nodes: Vec<Redis> = Vec::new();
        for _ in 0..masters * (1 + replicas) {
            let mut builder = Redis::builder()
                .password(&password)
                .config("masterauth", &password)
                .cluster()
                .config("cluster-node-timeout", &node_timeout.to_string())
                .config("cluster-require-full-coverage", "no")
                .config("cluster-allow-replica-migration", "no")
                .config("repl-diskless-sync-delay", "0")
                .config("repl-ping-replica-period", "1");
            if let Some(fsync) = fsync {
                builder = builder.append_only(fsync);
            }
            nodes.push(builder.start()?);
        }
        for (at, node) in nodes.iter().enumerate() {
            node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            if at < masters {
                let share = |part: usize| part * SLOTS / masters;
                let (first, last) = (share(at).to_string(), (share(at + 1) - 1).to_string());
                node.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            }
            if let Some(bus) = nodes[0].bus_port().filter(|_| at > 0) {
                let port = nodes[0].port();
                let (port, bus) = (port.to_string(), bus.to_string());
                node.command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        let cluster = Self {
            nodes,
            masters,
            password,
        };
        for at in masters..cluster.nodes.len() {
            let master = cluster.id(at % masters)?;
            until("a node to replicate", || {
                cluster.nodes[at].command::<()>(&["CLUSTER", "REPLICATE", &master])
            })?;
        }
        cluster.await_ready()?;
        Ok(cluster)
    }

    /// The store's URL with the addresses of all initial masters.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_with(&self.password)
    }

    /// The same with another password.
    #[must_use]
    pub fn url_with(&self, password: &str) -> String {
        let hosts: Vec<String> = self.nodes[..self.masters]
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://:{password}@{}", hosts.join(","))
    }

    /// The nodes: the initial masters, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes, mutable, for a restart.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    fn id(&self, at: usize) -> Result<String> {
        self.nodes[at].command(&["CLUSTER", "MYID"])
    }

    /// Waits until every master serves, knows the other nodes, and has its replicas in sync.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn await_ready(&self) -> Result<()> {
        let replicas = self.nodes.len() / self.masters - 1;
        until("the cluster", || {
            for node in &self.nodes {
                let info: String = node.command(&["CLUSTER", "INFO"])?;
                let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
                let assigned = format!("cluster_slots_ok:{SLOTS}\r");
                let well = info.contains("cluster_state:ok\r");
                if !(well && info.contains(&known) && info.contains(&assigned)) {
                    return Err(Failure::new(info));
                }
                let slots: Vec<redis::Value> = node.command(&["CLUSTER", "SLOTS"])?;
                if slots.is_empty() {
                    return Err(Failure::new("no node has slots"));
                }
                let info: String = node.command(&["INFO", "replication"])?;
                let online = info.matches("state=online").count();
                let linked = info.contains("master_link_status:up");
                if info.contains("role:master") && online != replicas
                    || info.contains("role:slave") && !linked
                {
                    return Err(Failure::new(info));
                }
            }
            Ok(())
        })
    }

    /// The node that has a slot, according to the node `witness`.
    ///
    /// # Errors
    /// If it does not answer, or no node has the slot.
    pub fn owner(&self, witness: usize, slot: u16) -> Result<usize> {
        type Range = (u16, u16, redis::Value);
        let rows: Vec<Vec<redis::Value>> = self.nodes[witness].command(&["CLUSTER", "SLOTS"])?;
        for row in rows {
            let row = redis::Value::Array(row.into_iter().take(3).collect());
            let read = redis::from_redis_value::<Range>(row);
            let (first, last, node) = read.map_err(Failure::to("read CLUSTER SLOTS"))?;
            if !(first..=last).contains(&slot) {
                continue;
            }
            let redis::Value::Array(node) = node else {
                continue;
            };
            let port = match node.get(1) {
                Some(redis::Value::Int(port)) => u16::try_from(*port).unwrap_or(0),
                _ => 0,
            };
            let found = self.nodes.iter().position(|node| node.port() == port);
            return found
                .ok_or_else(|| Failure::new(format!("port {port} is not one of the cluster")));
        }
        Err(Failure::new(format!("no node has the slot {slot}")))
    }

    /// Begins to move a slot: from now on a key may be on either node.
    ///
    /// # Errors
    /// If a node refuses.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let (source, target, slot) = (self.id(from)?, self.id(to)?, slot.to_string());
        self.nodes[to].command::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source])?;
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target])
    }

    /// Moves all keys of the slot that is being moved.
    ///
    /// # Errors
    /// If a node refuses.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let (text, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let get = ["CLUSTER", "GETKEYSINSLOT", &text, "100"];
            let keys: Vec<String> = self.nodes[from].command(&get)?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "AUTH"];
            migrate.extend([self.password.as_str(), "KEYS"]);
            migrate.extend(keys.iter().map(String::as_str));
            self.nodes[from].command::<()>(&migrate)?;
        }
    }

    /// Ends the move of a slot: it belongs to the target.
    ///
    /// # Errors
    /// If a node refuses.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let (target, slot) = (self.id(to)?, slot.to_string());
        for at in [to, from] {
            self.nodes[at].command::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target])?;
        }
        Ok(())
    }

    /// Waits until another node than `before` has the slot and serves it, according to the node `witness`.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn await_failover(&self, witness: usize, slot: u16, before: usize) -> Result<usize> {
        until("a fail-over", || {
            let owner = self.owner(witness, slot)?;
            let info: String = self.nodes[witness].command(&["CLUSTER", "INFO"])?;
            match owner != before && info.contains("cluster_state:ok\r") {
                true => Ok(owner),
                false => Err(Failure::new(format!("node {owner} has it; {info}"))),
            }
        })
    }
}
