//! One etcd, or a cluster of three whose leader may be killed and whose members may be cut off from each other.

use fencelock_testbed::{Etcd, Result};

use super::store::{TWO_HOLDERS, TestStore, unknown};
use crate::fault::{FaultKind, Whom};
use crate::history::Rule;

struct Cluster {
    etcd: Etcd,
    /// The killed leader.
    dead: Option<usize>,
    /// Its version of etcd has the bug [`REVOKES`].
    revokes: bool,
    /// A server had a fault.
    harmed: bool,
    /// How many changes of the leader the members had seen before the run.
    changes: u64,
}

/// The words for a bug of old versions in the engine's limits, and what the bug causes.
const REVOKES: &str = "etcd-io/etcd#15247";
const WHY: &str = "this version of etcd ends leases that were kept alive when a new leader replaces a stuck one \
                   (etcd-io/etcd#15247)";

pub(super) fn start_one() -> Result<Box<dyn TestStore>> {
    launch(1)
}

pub(super) fn start_three() -> Result<Box<dyn TestStore>> {
    launch(3)
}

fn launch(members: usize) -> Result<Box<dyn TestStore>> {
    Ok(Box::new(Cluster {
        etcd: Etcd::cluster(members).start()?,
        dead: None,
        revokes: false,
        harmed: false,
        changes: 0,
    }))
}

impl Cluster {
    /// How many changes of the leader the members have seen, in total.
    fn changes(&self) -> u64 {
        let seen = |member| {
            let counter = "etcd_server_leader_changes_seen_total";
            self.etcd.counter(member, counter, "").unwrap_or(0)
        };
        (0..self.etcd.size()).map(seen).sum()
    }
}

impl TestStore for Cluster {
    fn name(&self) -> &'static str {
        match self.etcd.size() {
            1 => "etcd",
            _ => "etcd-cluster",
        }
    }

    fn ports(&self) -> Vec<u16> {
        (0..self.etcd.size())
            .map(|member| self.etcd.port(member))
            .collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        // The shortest ttl, so that more happens in the same time.
        format!("{}?claim-window=2s", self.etcd.url_at(ports))
    }

    fn faults(&self) -> Vec<FaultKind> {
        match self.etcd.size() {
            1 => vec![
                FaultKind::Pause,
                FaultKind::Restart,
                FaultKind::RestartEmpty,
            ],
            _ => vec![
                FaultKind::Pause,
                FaultKind::Restart,
                FaultKind::KillLeader,
                FaultKind::CutOff,
            ],
        }
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        self.harmed = true;
        match kind {
            FaultKind::Pause => self.etcd.pause(node),
            FaultKind::Restart | FaultKind::RestartEmpty => {
                self.etcd.kill9(node);
                Ok(())
            }
            FaultKind::KillLeader => {
                // No leader at this moment.
                self.dead = self.etcd.leader().ok();
                self.dead.into_iter().for_each(|dead| self.etcd.kill9(dead));
                Ok(())
            }
            FaultKind::CutOff => self.etcd.cut_off(node),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Pause => self.etcd.resume(node),
            FaultKind::Restart => self.etcd.launch(node),
            FaultKind::RestartEmpty => self.etcd.restart_empty(),
            FaultKind::KillLeader => match self.dead.take() {
                Some(dead) => self.etcd.launch(dead),
                None => Ok(()),
            },
            FaultKind::CutOff => self.etcd.rejoin(node),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            _ if self.revokes && kind.whom() == Whom::Server => (TWO_HOLDERS.into(), WHY),
            _ => (Vec::new(), ""),
        }
    }

    fn note_limits(&mut self, limits: &[String]) {
        self.revokes = limits.iter().any(|limit| limit.contains(REVOKES));
        self.changes = self.changes();
    }

    fn incident(&mut self) -> Option<(String, Vec<Rule>, &'static str)> {
        // An injected fault has its own excuse. But on a busy machine the leader also changes without a fault.
        let changed = self.revokes && !self.harmed && self.changes() > self.changes;
        changed.then(|| ("a change of the leader".into(), TWO_HOLDERS.into(), WHY))
    }

    fn window(&self) -> u64 {
        // A session of two seconds, and the time in which a server notices its end. A new leader restarts every session.
        match self.etcd.size() {
            1 => 3000,
            _ => 6000,
        }
    }

    fn left(&mut self) -> Result<Vec<String>> {
        keys_left(&self.etcd)
    }
}

/// The keys of claims.
pub(super) fn keys_left(etcd: &Etcd) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for prefix in ["fencelock/lock/", "fencelock/mail/"] {
        match etcd.keys(prefix)? {
            0 => {}
            count => left.push(format!("{count} keys below {prefix}")),
        }
    }
    Ok(left)
}
