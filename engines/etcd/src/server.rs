//! What a member says about the cluster, and what the engine promises on it.

use std::time::Duration;

use fencelock_core::{Durability, Finding, Floor, LeaseKind, Order, Promises, Wake};

use crate::config::Config;
use crate::layout::Layout;

#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(crate) members: usize,
    /// The version of the member that was asked.
    pub(crate) version: String,
}

pub(crate) fn promises(config: &Config, limits: Vec<Finding>) -> Promises {
    let own = config.layout == Layout::Fencelock;
    let clock = "the members' clocks run at about the right rate; leases are whole seconds, at least the shortest that the servers take";
    Promises::new("etcd", clock)
        .order(Order::Fifo)
        .shared(own)
        .permits(own)
        .lock_delay(true)
        .ranges(own)
        .record(true)
        .floor(match own {
            true => Floor::Store,
            false => Floor::Refused,
        })
        .lease(LeaseKind::Session)
        .wake(Wake::Push)
        .durability(Durability::Durable)
        .min_ttl(Duration::from_secs(1))
        .max_ttl(Duration::from_secs(10 * 365 * 86_400))
        .claim_window(config.claim_window)
        .limits(limits)
}

impl ServerInfo {
    /// The known bugs of the version that affect locks. They only appear when the leader changes, so with more than one member.
    pub(crate) fn limits(&self) -> Vec<Finding> {
        let version = &self.version;
        let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok);
        let (Some(major), Some(minor), Some(patch)) = (next(), next(), next()) else {
            return Vec::new();
        };
        if self.members < 2 {
            return Vec::new();
        }
        let mut limits = Vec::new();
        let mut limit = |what: &str, change: &str| {
            let what = format!("etcd {version}: {what}");
            limits.push(Finding::against_correctness(what, change));
        };
        let known = (major, minor, patch);
        if ((3, 5, 0)..(3, 5, 3)).contains(&known) {
            limit(
                "members may have different data after they were killed",
                "upgrade to 3.5.13 or later",
            );
        }
        if known < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&known) {
            limit(
                "a leader that hung for a while (its disk, its processor) and was replaced may end leases that were kept \
                 alive, and grant their locks to others while the holders still believe in them (etcd-io/etcd#15247)",
                "upgrade to 3.4.31, 3.5.13 or later",
            );
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_named() {
        let limits = |members, version: &str| {
            let version = version.to_owned();
            ServerInfo { members, version }.limits()
        };
        assert_eq!(limits(3, "3.5.1").len(), 2);
        for old in ["3.4.23", "3.4.30", "3.5.12", "3.3.1"] {
            assert_eq!(limits(3, old).len(), 1, "{old}");
            assert_eq!(limits(1, old), [], "{old}");
        }
        for good in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-rc.1", "4.0.0", "", "x"] {
            assert_eq!(limits(3, good), [], "{good}");
        }
    }
}
