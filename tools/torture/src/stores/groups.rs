//! Redis servers with replicas: a master watched by Sentinels, and a Cluster.

use std::time::Duration;

use fencelock_testbed::{Redis, RedisCluster, RedisSentinel, Result};

use super::store::{STALE_QUEUE, TWO_HOLDERS, TestStore, begin_at, heal_at, keys_left, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

/// In milliseconds, with the time that both kinds take to promote a new master.
const WINDOW: u64 = 8000;

/// The Sentinels replace a master after this time without an answer. It is long until a master is killed, so that a
/// busy machine causes no fail-over.
const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(500);

/// The option `address-map` for servers behind proxies.
pub(super) fn address_map(servers: &[Redis], ports: &[u16]) -> Option<String> {
    let pairs = servers.iter().map(Redis::port).zip(ports);
    let pairs: Vec<String> = pairs
        .filter(|(own, port)| own != *port)
        .map(|(own, port)| format!("127.0.0.1:{own}=127.0.0.1:{port}"))
        .collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

struct Watched {
    group: RedisSentinel,
    /// Whether every grant waits for both replicas.
    waits: bool,
    /// The killed master.
    dead: Option<usize>,
}

pub(super) fn start_sentinel() -> Result<Box<dyn TestStore>> {
    watched(true)
}

pub(super) fn start_sentinel_async() -> Result<Box<dyn TestStore>> {
    watched(false)
}

fn watched(waits: bool) -> Result<Box<dyn TestStore>> {
    let group = RedisSentinel::builder()
        .append_only("always")
        .down_after(PATIENT)
        .start()?;
    Ok(Box::new(Watched {
        group,
        waits,
        dead: None,
    }))
}

impl Watched {
    fn be(&self, patience: Duration) -> Result<()> {
        let millis = patience.as_millis().to_string();
        let set = [
            "SENTINEL",
            "SET",
            "main",
            "down-after-milliseconds",
            &millis,
        ];
        let mut all = self.group.sentinels().iter();
        all.try_for_each(|sentinel| sentinel.command::<()>(&set))
    }
}

impl TestStore for Watched {
    fn name(&self) -> &'static str {
        match self.waits {
            true => "sentinel",
            false => "sentinel-async",
        }
    }

    fn ports(&self) -> Vec<u16> {
        self.group.servers().iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let replicas = if self.waits { 2 } else { 0 };
        let url = format!("{}&replicas={replicas}&claim-window=1s", self.group.url());
        match address_map(self.group.servers(), ports) {
            Some(map) => format!("{url}&address-map={map}"),
            None => url,
        }
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillLeader,
            FaultKind::SwitchOver,
            FaultKind::KillConnections,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::KillLeader => {
                // No master while the Sentinels disagree.
                self.dead = self.group.master().ok();
                if let Some(dead) = self.dead {
                    self.group.servers()[dead].kill9();
                    self.be(IMPATIENT)?;
                }
                Ok(())
            }
            FaultKind::SwitchOver => {
                let failover = ["SENTINEL", "FAILOVER", "main"];
                // Refused during another fail-over, or without a replica that could take over.
                drop(self.group.sentinels()[0].command::<()>(&failover));
                Ok(())
            }
            _ => {
                let begun = begin_at(&self.group.servers()[node], kind);
                begun.unwrap_or_else(|| Err(unknown(self, kind)))
            }
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::KillLeader => match self.dead.take() {
                Some(dead) => {
                    self.group.await_failover(dead)?;
                    self.be(PATIENT)?;
                    self.group.servers_mut()[dead].restart()
                }
                None => Ok(()),
            },
            FaultKind::SwitchOver => Ok(()),
            // It restarts with its configuration, which the Sentinels have rewritten if it was the master.
            _ => {
                let healed = heal_at(&mut self.group.servers_mut()[node], kind);
                healed.unwrap_or_else(|| Err(unknown(self, kind)))
            }
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::KillConnections => (Vec::new(), ""),
            _ if kind.whom() == crate::Whom::Server && !self.waits => (
                TWO_HOLDERS.into(),
                "without replicas=N a new master may not have got the last grants",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        let master = self.group.master()?;
        let master = &self.group.servers()[master..=master];
        keys_left(master, |key| key == super::redis::COUNTER)
    }
}

struct Sharded(RedisCluster);

/// The time in milliseconds after which a silent master is replaced.
const NODE_TIMEOUT: u32 = 1000;

pub(super) fn start_cluster() -> Result<Box<dyn TestStore>> {
    let cluster = RedisCluster::start(3, 1, NODE_TIMEOUT, Some("always"))?;
    Ok(Box::new(Sharded(cluster)))
}

impl TestStore for Sharded {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn ports(&self) -> Vec<u16> {
        self.0.nodes().iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let url = format!("{}?replicas=1&claim-window=1s", self.0.url());
        match address_map(self.0.nodes(), ports) {
            Some(map) => format!("{url}&address-map={map}"),
            None => url,
        }
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillConnections,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        let begun = begin_at(&self.0.nodes()[node], kind);
        begun.unwrap_or_else(|| Err(unknown(self, kind)))
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        let healed = heal_at(&mut self.0.nodes_mut()[node], kind);
        healed.unwrap_or_else(|| Err(unknown(self, kind)))
    }

    fn excuses(&self, _harm: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // A replica may delete keys late; the caller retries.
        keys_left(self.0.nodes(), |key| key.starts_with("fencelock:counter:{"))
    }
}
