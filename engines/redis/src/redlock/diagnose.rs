//! The findings of the doctor about a store now, besides the limits of its promises.

use fencelock_core::{Clock, Finding, Purpose};

use super::state::State;
use crate::clocks;

pub(crate) async fn findings(state: &State) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (count, quorum) = (state.nodes.len(), state.config.quorum);
    if count.is_multiple_of(2) && quorum == count / 2 + 1 {
        let survived = count - quorum;
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!(
                "{count} nodes survive the loss of {survived}, as {} would",
                count - 1
            ),
            "name an odd number of nodes",
        ));
    }
    findings.extend(not_voting(state));
    let nodes = state.nodes.iter();
    let asked = nodes.filter_map(|node| Some((node.name.clone(), node.connection()?)));
    let time = clocks::watch(asked.collect(), |connection, time| {
        Box::pin(connection.ask(time))
    });
    findings.extend(time.await);
    findings
}

/// The nodes that do not vote now.
fn not_voting(state: &State) -> Vec<Finding> {
    let now = Clock::Boot.now();
    let (count, quorum) = (state.nodes.len(), state.config.quorum);
    let nodes = state.nodes.iter().filter(|node| node.voter(now).is_none());
    let findings = nodes.map(|node| {
        let why = node.not_voting(&state.config, now).why;
        let name = &node.name;
        Finding::new(
            Purpose::Efficiency,
            format!("{name} does not vote, and {quorum} of {count} nodes must: {why}"),
            "bring it back, or wait until it votes",
        )
    });
    findings.collect()
}
