//! Three ZooKeeper servers. Their clients' sessions outlive a leader.

use fencelock_testbed::{Ensemble, Result, ZooKeeper};

use crate::beds::{Bed, loopback, unknown};
use crate::harm::Harm;
use crate::history::Rule;

struct Three {
    ensemble: Ensemble,
    /// Who was killed as the leader.
    dead: Option<usize>,
}

pub(super) fn start() -> Result<Box<dyn Bed>> {
    let ensemble = ZooKeeper::builder().ensemble()?;
    let dead = None;
    Ok(Box::new(Three { ensemble, dead }))
}

impl Bed for Three {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn ports(&self) -> Vec<u16> {
        (0..3).map(|at| self.ensemble.server(at).port()).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        format!("zookeeper://{}", loopback(ports))
    }

    fn harms(&self) -> Vec<Harm> {
        vec![Harm::Pause, Harm::Restart, Harm::KillLeader, Harm::CutOff]
    }

    fn begin(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.ensemble.server(node).pause(),
            Harm::CutOff => self.ensemble.isolate(node),
            Harm::Restart => {
                self.ensemble.kill9(node);
                Ok(())
            }
            Harm::KillLeader => {
                // Between two leaders there is none to kill.
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

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.ensemble.server(node).resume(),
            Harm::CutOff => self.ensemble.join(node),
            Harm::Restart => self.ensemble.restart(node),
            Harm::KillLeader => match self.dead.take() {
                Some(dead) => self.ensemble.restart(dead),
                None => Ok(()),
            },
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, _harm: Harm) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        6500
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // The listing of locks, which is asked of every store, tells what is held; empty parents vanish by themselves.
        Ok(Vec::new())
    }
}
