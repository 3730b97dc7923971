//! Redis servers with replicas: a master watched by Sentinels, and a Cluster. Who leads may change.

use std::time::Duration;

use fencelock_testbed::{Redis, RedisCluster, RedisSentinel, Result};

use crate::beds::{Bed, FORGOTTEN_LINE, TWO_HOLDERS, keys_left, kill_clients, unknown};
use crate::harm::Harm;
use crate::history::Rule;

/// In milliseconds; how long both kinds take to find a new master is part of it.
const WINDOW: u64 = 8000;

/// After so long without an answer the Sentinels replace a master. So that a busy machine has none replaced that nobody
/// harmed, they are patient until one is killed.
const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(500);

/// `address-map` for servers that are reached by other ports than their own.
fn address_map(servers: &[Redis], ports: &[u16]) -> Option<String> {
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
    /// Who was killed as the master.
    dead: Option<usize>,
}

pub(super) fn start_sentinel() -> Result<Box<dyn Bed>> {
    watched(true)
}

pub(super) fn start_sentinel_async() -> Result<Box<dyn Bed>> {
    watched(false)
}

fn watched(waits: bool) -> Result<Box<dyn Bed>> {
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

impl Bed for Watched {
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

    fn harms(&self) -> Vec<Harm> {
        vec![
            Harm::Pause,
            Harm::Restart,
            Harm::KillLeader,
            Harm::SwitchOver,
            Harm::KillConnections,
        ]
    }

    fn begin(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.group.servers()[node].pause(),
            Harm::Restart => {
                self.group.servers()[node].kill9();
                Ok(())
            }
            Harm::KillLeader => {
                // While the Sentinels disagree there is none.
                self.dead = self.group.master().ok();
                if let Some(dead) = self.dead {
                    self.group.servers()[dead].kill9();
                    self.be(IMPATIENT)?;
                }
                Ok(())
            }
            Harm::SwitchOver => {
                let failover = ["SENTINEL", "FAILOVER", "main"];
                // Refused while one is under way, or with no replica that could take over.
                drop(self.group.sentinels()[0].command::<()>(&failover));
                Ok(())
            }
            Harm::KillConnections => kill_clients(&self.group.servers()[node]),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.group.servers()[node].resume(),
            // As its configuration says, which the Sentinels rewrote if it was the master.
            Harm::Restart => self.group.servers_mut()[node].restart(),
            Harm::KillLeader => match self.dead.take() {
                Some(dead) => {
                    self.group.await_failover(dead)?;
                    self.be(PATIENT)?;
                    self.group.servers_mut()[dead].restart()
                }
                None => Ok(()),
            },
            Harm::SwitchOver | Harm::KillConnections => Ok(()),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str) {
        match harm {
            Harm::KillConnections => (Vec::new(), ""),
            _ if harm.whom() == crate::Whom::Server && !self.waits => (
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
        FORGOTTEN_LINE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        let master = self.group.master()?;
        let master = &self.group.servers()[master..=master];
        keys_left(master, |key| key == super::redis::COUNTER)
    }
}

struct Sharded(RedisCluster);

/// After so many milliseconds a master that does not answer is replaced.
const NODE_TIMEOUT: u32 = 1000;

pub(super) fn start_cluster() -> Result<Box<dyn Bed>> {
    let cluster = RedisCluster::start(3, 1, NODE_TIMEOUT, Some("always"))?;
    Ok(Box::new(Sharded(cluster)))
}

impl Bed for Sharded {
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

    fn harms(&self) -> Vec<Harm> {
        vec![Harm::Pause, Harm::Restart, Harm::KillConnections]
    }

    fn begin(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.0.nodes()[node].pause(),
            Harm::Restart => {
                self.0.nodes()[node].kill9();
                Ok(())
            }
            Harm::KillConnections => kill_clients(&self.0.nodes()[node]),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.0.nodes()[node].resume(),
            Harm::Restart => self.0.nodes_mut()[node].restart(),
            Harm::KillConnections => Ok(()),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, _harm: Harm) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        FORGOTTEN_LINE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // A replica has what its master has, and may be late with what that deletes: the callers ask again.
        keys_left(self.0.nodes(), |key| key.starts_with("fencelock:counter:{"))
    }
}
