//! What stands between the nodes, as they are now, and what locks are for.

use fencelock_core::{Finding, Purpose};
use redis::Cmd;

use super::Inner;
use crate::diagnose::{apart, finding, wall};

impl Inner {
    pub(super) async fn findings(&self) -> Vec<Finding> {
        let limits = self.promises().limits.into_iter().map(Finding::from);
        let mut findings: Vec<Finding> = limits.collect();
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        if count.is_multiple_of(2) && quorum == count / 2 + 1 {
            findings.push(finding(
                Purpose::Efficiency,
                format!(
                    "{count} nodes survive the loss of {}, as {} would",
                    count - quorum,
                    count - 1
                ),
                "name an odd number of nodes",
            ));
        }
        findings.extend(self.abstainers());
        for node in &self.nodes {
            let (name, Some(link)) = (&node.name, node.link()) else {
                continue;
            };
            let before = wall();
            let mut time = Cmd::new();
            time.arg("TIME");
            if let Ok(answer) = link.ask(&time).await {
                findings.extend(apart(name, &answer, before, wall()));
            }
        }
        findings
    }
}
