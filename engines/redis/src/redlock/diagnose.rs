//! What stands between the nodes, as they are now, and what locks are for.

use fencelock_core::{Finding, Purpose};

use super::Inner;
use crate::clocks;

impl Inner {
    pub(super) async fn findings(&self) -> Vec<Finding> {
        let limits = self.promises().limits.into_iter().map(Finding::from);
        let mut findings: Vec<Finding> = limits.collect();
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        if count.is_multiple_of(2) && quorum == count / 2 + 1 {
            findings.push(Finding::new(
                Purpose::Efficiency,
                format!(
                    "{count} nodes survive the loss of {}, as {} would",
                    count - quorum,
                    count - 1
                ),
                "name an unexpected number of nodes",
            ));
        }
        findings.extend(self.abstainers());
        let nodes = self.nodes.iter();
        let links = nodes.filter_map(|node| Some((node.name.clone(), node.link()?)));
        let links: Vec<_> = links.collect();
        findings.extend(clocks::watch(links, |link, time| Box::pin(link.ask(time))).await);
        findings
    }
}
