//! What stands between a cluster, as it is set up, and what locks are for.

use fencelock_core::{Finding, Purpose, Result};

use crate::engine::Shared;
use crate::refusal::Trouble;

impl Shared {
    pub(crate) async fn diagnose(&self) -> Result<Vec<Finding>> {
        let (members, _) = self.store.about().await?;
        Ok(of_members(members, self.store.config.endpoints.len()))
    }

    /// What the version and the number of members leave to be desired.
    pub(crate) async fn limits(&self) -> Result<Vec<Finding>, Trouble> {
        let (members, version) = self.store.about().await?;
        Ok(of_version(members, &version))
    }
}

fn of_members(members: usize, named: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    if members == 1 {
        findings.push(Finding::new(
            Purpose::Correctness,
            "the cluster has one member: while that is away nothing is granted or kept, and without its disk every lock is \
             forgotten",
            "add two members",
        ));
    } else if members.is_multiple_of(2) {
        let survives = (members - 1) / 2;
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!(
                "{members} members survive the loss of {survives}, as {} would",
                members - 1
            ),
            "have an odd number of members",
        ));
    }
    if named == 1 && members > 1 {
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!("the URL names one of {members} members: without that one nothing goes on"),
            "name all of them",
        ));
    }
    findings
}

/// What is known to be wrong with locks on a version, as long as one member can follow another as the leader.
fn of_version(members: usize, version: &str) -> Vec<Finding> {
    let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(std::result::Result::ok);
    let (Some(major), Some(minor), Some(patch)) = (next(), next(), next()) else {
        return Vec::new();
    };
    let mut limits = Vec::new();
    let mut limit = |what: &str, change: &str| {
        limits.push(Finding {
            purpose: Purpose::Correctness,
            what: format!("etcd {version}: {what}"),
            change: change.to_owned(),
        });
    };
    let known = (major, minor, patch);
    if members > 1 && ((3, 5, 0)..(3, 5, 3)).contains(&known) {
        limit(
            "members that were killed may differ in their data afterwards",
            "upgrade to 3.5.13 or later",
        );
    }
    if members > 1 && (known < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&known)) {
        limit(
            "a leader that was stuck for a while (its disk, its processor) and has been succeeded may end leases that were \
             kept alive, and give away their locks while the holders believe (etcd-io/etcd#15247)",
            "upgrade to 3.4.31, 3.5.13 or later",
        );
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_versions_are_judged() {
        assert_eq!(of_members(3, 3), []);
        assert_eq!(of_members(1, 1).len(), 1);
        assert_eq!(of_members(4, 4).len(), 1);
        assert_eq!(of_members(3, 1).len(), 1);
        assert_eq!(of_version(3, "3.5.1").len(), 2);
        for old in ["3.4.23", "3.4.30", "3.5.12", "3.3.1"] {
            assert_eq!(of_version(3, old).len(), 1, "{old}");
            assert_eq!(of_version(1, old), [], "{old}");
        }
        for good in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-rc.1", "4.0.0", "", "x"] {
            assert_eq!(of_version(3, good), [], "{good}");
        }
    }
}
