//! Five redis-servers of which a majority decides; each goes by a clock of its own.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, Redis, Result, seen_long_ago};

use crate::beds::{
    Bed, FORGOTTEN_LINE, TWO_HOLDERS, jump, keys_left, kill_clients, loopback, unknown,
};
use crate::harm::Harm;
use crate::history::Rule;

/// Stands there however many names were locked.
const MEMORY: &str = "fencelock:redlock";

const NODES: usize = 5;

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
        // Short leases, so that a node that was restarted votes again within the run.
        format!(
            "redlock://{}?node-timeout=100ms&max-ttl=2s",
            loopback(ports)
        )
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
            Harm::ClockForward => jump(&self.clocks[node], true),
            Harm::ClockBack => jump(&self.clocks[node], false),
            Harm::KillConnections => kill_clients(&self.nodes[node]),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.nodes[node].resume(),
            Harm::RestartEmpty => self.nodes[node].restart_empty(),
            Harm::ClockForward => jump(&self.clocks[node], false),
            Harm::ClockBack => jump(&self.clocks[node], true),
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

    fn forgets_after(&self) -> u64 {
        FORGOTTEN_LINE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(&self.nodes, |key| key == MEMORY)
    }
}
