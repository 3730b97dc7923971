//! The findings of the doctor about the cluster.

use fencelock_core::{Finding, Purpose, Result};

use crate::state::State;

impl State {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let members = self.cluster.server_info().await?.members;
        Ok(about_members(members, self.cluster.config.endpoints.len()))
    }
}

/// Findings about a cluster with this many members, of which the URL names `named`.
fn about_members(members: usize, named: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    if members == 1 {
        findings.push(Finding::new(
            Purpose::Correctness,
            "the cluster has one member: while it is down no lock is granted or renewed, and if its disk is lost every \
             lock is forgotten",
            "add two members",
        ));
    } else if members.is_multiple_of(2) {
        let survives = (members - 1) / 2;
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!(
                "{members} members survive the loss of {survives}, and {} would too",
                members - 1
            ),
            "use an odd number of members",
        ));
    }
    if named == 1 && members > 1 {
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!(
                "the URL names one of {members} members: while it is down this client cannot work"
            ),
            "name all of them",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_members_are_judged() {
        assert_eq!(about_members(3, 3), []);
        assert_eq!(about_members(1, 1).len(), 1);
        assert_eq!(about_members(4, 4).len(), 1);
        assert_eq!(about_members(3, 1).len(), 1);
    }
}
