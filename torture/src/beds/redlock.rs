//! Five redis-servers of which a majority decides; each goes by a clock of its own.

use std::sync::Arc;
use std::time::Duration;

use fencelock_testbed::{ClockShim, Redis, Result, seen_long_ago};

use crate::beds::{Bed, TWO_HOLDERS, unknown};
use crate::harm::Harm;
use crate::history::Rule;

/// Stands there however many names were locked.
const MEMORY: &str = "fencelock:redlock";

const NODES: usize = 5;

/// By how much clocks jump.
const JUMP: Duration = Duration::from_secs(3600);

struct FiveNodes {
    nodes: Vec<Redis>,
    clocks: Vec<Arc<ClockShim>>,
}

pub(super) fn start() -> Result<Box<dyn Bed>> {
    let (mut nodes, mut clocks) = (Vec::new(), Vec::new());
    for _ in 0..NODES {
        let clock = ClockShim::new()?;
        let node = Redis::builder().clock(&clock).start()?;
        seen_long_ago(&node, 0)?;
        nodes.push(node);
        clocks.push(clock);
    }
    Ok(Box::new(FiveNodes { nodes, clocks }))
}

impl Bed for FiveNodes {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let hosts = hosts.collect::<Vec<_>>().join(",");
        // Short leases, so that a node that was restarted votes again within the run.
        format!("redlock://{hosts}?node-timeout=100ms&max-ttl=2s")
    }

    fn harms(&self) -> Vec<Harm> {
        vec![
            Harm::Pause,
            Harm::RestartEmpty,
            Harm::ClockForward,
            Harm::ClockBack,
            Harm::KillConnections,
        ]
    }

    fn begin(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.nodes[node].pause(),
            Harm::RestartEmpty => {
                self.nodes[node].kill9();
                Ok(())
            }
            Harm::ClockForward => self.clocks[node].forward(JUMP),
            Harm::ClockBack => self.clocks[node].back(JUMP),
            Harm::KillConnections => {
                let kill = |kind| {
                    let words = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
                    self.nodes[node].command::<()>(&words)
                };
                kill("pubsub")?;
                kill("normal")
            }
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.nodes[node].resume(),
            Harm::RestartEmpty => self.nodes[node].restart_empty(),
            Harm::ClockForward => self.clocks[node].back(JUMP),
            Harm::ClockBack => self.clocks[node].forward(JUMP),
            Harm::KillConnections => Ok(()),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str) {
        match harm {
            Harm::ClockForward | Harm::ClockBack => (
                TWO_HOLDERS.into(),
                "a client that was not connected to a node before its clock was set cannot tell",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn left(&mut self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for node in &self.nodes {
            let keys: Vec<String> = node.command(&["KEYS", "*"])?;
            let keys = keys.into_iter().filter(|key| key != MEMORY);
            left.extend(keys.map(|key| format!("the key {key:?} on port {}", node.port())));
        }
        Ok(left)
    }
}
