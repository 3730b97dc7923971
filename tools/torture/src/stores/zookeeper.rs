//! Three ZooKeeper servers. Their clients' sessions outlive a leader.

use fencelock_testbed::{Ensemble, Result, ZooKeeper};

use super::store::{TestStore, loopback, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

struct Three {
    ensemble: Ensemble,
    /// The killed leader.
    dead: Option<usize>,
}

pub(super) fn start() -> Result<Box<dyn TestStore>> {
    let ensemble = ZooKeeper::builder().ensemble()?;
    let dead = None;
    Ok(Box::new(Three { ensemble, dead }))
}

impl TestStore for Three {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn ports(&self) -> Vec<u16> {
        (0..3).map(|at| self.ensemble.server(at).port()).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        format!("zookeeper://{}", loopback(ports))
    }

    fn faults(&self) -> Vec<FaultKind> {
        vec![
            FaultKind::Pause,
            FaultKind::Restart,
            FaultKind::KillLeader,
            FaultKind::CutOff,
        ]
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.ensemble.server(node).pause(),
            FaultKind::CutOff => self.ensemble.isolate(node),
            FaultKind::Restart => {
                self.ensemble.kill9(node);
                Ok(())
            }
            FaultKind::KillLeader => {
                // No leader at this moment.
                let leads = |at: &usize| {
                    let mode = self.ensemble.server(*at).mode();
                    mode.as_deref() == Some("leader")
                };
                self.dead = (0..3).find(leads);
                let dead = self.dead.into_iter();
                dead.for_each(|dead| self.ensemble.kill9(dead));
                Ok(())
            }
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.ensemble.server(node).resume(),
            FaultKind::CutOff => self.ensemble.join(node),
            FaultKind::Restart => self.ensemble.restart(node),
            FaultKind::KillLeader => match self.dead.take() {
                Some(dead) => self.ensemble.restart(dead),
                None => Ok(()),
            },
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, _harm: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        6500
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // `list`, which is called for every store, shows what is held. The server removes empty parents.
        Ok(Vec::new())
    }
}
