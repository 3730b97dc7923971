//! One etcd, or a cluster of three whose leader may die and whose members may be cut off from each other.

use fencelock_testbed::{Etcd, Result};

use crate::beds::{Bed, TWO_HOLDERS, unknown};
use crate::harm::{Harm, Whom};
use crate::history::Rule;

struct Cluster {
    etcd: Etcd,
    /// Who was killed as the leader.
    dead: Option<usize>,
    /// Its version has the bug.
    revokes: bool,
    /// A server was harmed.
    harmed: bool,
    /// How many changes of the leader its members had seen before.
    changes: u64,
}

/// What the engine's limits call a bug of old versions, and what it comes to.
const REVOKES: &str = "etcd-io/etcd#15247";
const WHY: &str = "this version of etcd ends leases that were kept alive when a leader that was stuck is succeeded \
                   (etcd-io/etcd#15247)";

pub(super) fn start_one() -> Result<Box<dyn Bed>> {
    launch(1)
}

pub(super) fn start_three() -> Result<Box<dyn Bed>> {
    launch(3)
}

fn launch(members: usize) -> Result<Box<dyn Bed>> {
    Ok(Box::new(Cluster {
        etcd: Etcd::cluster(members).start()?,
        dead: None,
        revokes: false,
        harmed: false,
        changes: 0,
    }))
}

impl Cluster {
    /// How many changes of the leader its members have seen, all together.
    fn changes(&self) -> u64 {
        let seen = |member| {
            let counter = "etcd_server_leader_changes_seen_total";
            self.etcd.counter(member, counter, "").unwrap_or(0)
        };
        (0..self.etcd.size()).map(seen).sum()
    }
}

impl Bed for Cluster {
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
        // The shortest, so that more happens in the same time.
        format!("{}?claim-window=2s", self.etcd.url_at(ports))
    }

    fn harms(&self) -> Vec<Harm> {
        match self.etcd.size() {
            1 => vec![Harm::Pause, Harm::Restart, Harm::RestartEmpty],
            _ => vec![Harm::Pause, Harm::Restart, Harm::KillLeader, Harm::CutOff],
        }
    }

    fn begin(&mut self, harm: Harm, node: usize) -> Result<()> {
        self.harmed = true;
        match harm {
            Harm::Pause => self.etcd.pause(node),
            Harm::Restart | Harm::RestartEmpty => {
                self.etcd.kill9(node);
                Ok(())
            }
            Harm::KillLeader => {
                // Between two leaders there is none to kill.
                self.dead = self.etcd.leader().ok();
                self.dead.into_iter().for_each(|dead| self.etcd.kill9(dead));
                Ok(())
            }
            Harm::CutOff => self.etcd.cut_off(node),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, harm: Harm, node: usize) -> Result<()> {
        match harm {
            Harm::Pause => self.etcd.resume(node),
            Harm::Restart => self.etcd.launch(node),
            Harm::RestartEmpty => self.etcd.restart_empty(),
            Harm::KillLeader => match self.dead.take() {
                Some(dead) => self.etcd.launch(dead),
                None => Ok(()),
            },
            Harm::CutOff => self.etcd.rejoin(node),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str) {
        match harm {
            Harm::RestartEmpty => (TWO_HOLDERS.into(), "the server forgot every lock"),
            _ if self.revokes && harm.whom() == Whom::Server => (TWO_HOLDERS.into(), WHY),
            _ => (Vec::new(), ""),
        }
    }

    fn hear(&mut self, limits: &[String]) {
        self.revokes = limits.iter().any(|limit| limit.contains(REVOKES));
        self.changes = self.changes();
    }

    fn befell(&mut self) -> Option<(String, Vec<Rule>, &'static str)> {
        // Of what is done to servers each fault says it; a busy machine makes leaders change without.
        let changed = self.revokes && !self.harmed && self.changes() > self.changes;
        changed.then(|| ("a change of the leader".into(), TWO_HOLDERS.into(), WHY))
    }

    fn window(&self) -> u64 {
        // A session of two seconds, and the time in which a server notices its end; a new leader begins all anew.
        match self.etcd.size() {
            1 => 3000,
            _ => 6000,
        }
    }

    fn left(&mut self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for prefix in ["fencelock/lock/", "fencelock/mail/"] {
            match self.etcd.keys(prefix)? {
                0 => {}
                count => left.push(format!("{count} keys below {prefix}")),
            }
        }
        Ok(left)
    }
}
