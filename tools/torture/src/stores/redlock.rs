//! Five redis-servers for Redlock, each with a clock of its own.

use std::sync::Arc;

use fencelock_testbed::{ClockShim, Redis, Result, seen_long_ago};

use super::store::{
    STALE_QUEUE, TWO_HOLDERS, TestStore, jump, keys_left, kill_clients, loopback, unknown,
};
use crate::fault::FaultKind;
use crate::history::Rule;

/// Whether a key is permanent: the number of such keys does not depend on the number of locks.
const MEMORY: &str = "fencelock:redlock";

const NODES: usize = 5;

struct FiveNodes {
    nodes: Vec<Redis>,
    clocks: Vec<Arc<ClockShim>>,
}

pub(super) fn start() -> Result<Box<dyn TestStore>> {
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

impl TestStore for FiveNodes {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        // Short leases, so that a restarted node votes again within the run.
        format!(
            "redlock://{}?node-timeout=100ms&max-ttl=2s",
            loopback(ports)
        )
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::RestartEmpty,
            FaultKind::ClockForward,
            FaultKind::ClockBack,
            FaultKind::KillConnections,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.nodes[node].pause(),
            FaultKind::RestartEmpty => {
                self.nodes[node].kill9();
                Ok(())
            }
            FaultKind::ClockForward => jump(&self.clocks[node], true),
            FaultKind::ClockBack => jump(&self.clocks[node], false),
            FaultKind::KillConnections => kill_clients(&self.nodes[node]),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.nodes[node].resume(),
            FaultKind::RestartEmpty => self.nodes[node].restart_empty(),
            FaultKind::ClockForward => jump(&self.clocks[node], false),
            FaultKind::ClockBack => jump(&self.clocks[node], true),
            FaultKind::KillConnections => Ok(()),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::ClockForward | FaultKind::ClockBack => (
                TWO_HOLDERS.into(),
                "a client that was not connected to a node before its clock was set cannot tell",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(&self.nodes, |key| key == MEMORY)
    }
}
