//! Opening a store: waiting for enough nodes.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::EventSource;
use fencelock_core::{Clock, ConfigPart, Error, Result};

use super::config::Config;
use super::membership::maintain;
use super::node::Node;
use super::state::State;

/// Connects to the nodes, and keeps a task for each.
pub(crate) async fn open(config: Config) -> Result<(Arc<State>, EventSource)> {
    let (events, heard) = EventSource::channel();
    let state = Arc::new(State::new(config, events)?);
    for index in 0..state.nodes.len() {
        tokio::spawn(maintain(Arc::downgrade(&state), index));
    }
    let ready = wait_until_ready(&state).await;
    ready.inspect_err(|_| state.close())?;
    Ok((state, heard))
}

/// Waits until enough nodes are connected, and those that are due soon vote. It does not wait long for the last ones.
async fn wait_until_ready(state: &State) -> Result<()> {
    let config = &state.config;
    let begun = Clock::Boot.now();
    let mut changes = state.node_changes();
    loop {
        changes.mark_unchanged();
        if let Some(why) = state.nodes.iter().find_map(|node| node.unfit()) {
            return Err(Error::config(&config.store, ConfigPart::Server, why));
        }
        if let Some((one, other)) = same_server(state) {
            let why = format!(
                "{one} and {other} are the same server; a server has one vote, so name each once"
            );
            return Err(Error::config(&config.store, ConfigPart::Server, why));
        }
        let now = Clock::Boot.now();
        let waited = now.since(begun);
        let connected = |node: &&Arc<Node>| node.connection().is_some();
        let enough = state.nodes.iter().filter(connected).count() >= config.quorum;
        let all_tried = state.nodes.iter().all(|node| node.was_tried());
        let soon = now + Duration::from_secs(1);
        let due_soon = state.nodes.iter().any(|node| {
            let connection = node.connection();
            connection.is_some_and(|connection| !connection.is_member())
                && node.due().is_some_and(|(due, _)| due < soon)
        });
        let late = waited >= config.node_timeout * 2 + Duration::from_millis(100);
        if enough && (all_tried || late) && (!due_soon || waited > Duration::from_secs(2)) {
            return Ok(());
        }
        if !enough && (all_tried || waited >= config.connect_timeout) {
            return Err(state.too_few("connecting", Vec::new()));
        }
        let pause = Duration::from_millis(20);
        let _ = tokio::time::timeout(pause, changes.changed()).await;
    }
}

/// Two node names of the same server.
fn same_server(state: &State) -> Option<(&str, &str)> {
    let nodes = state.nodes.iter();
    let nodes: Vec<_> = nodes
        .filter_map(|node| Some((node.name.as_str(), node.connection()?)))
        .collect();
    nodes.iter().enumerate().find_map(|(at, (name, one))| {
        let mut later = nodes[at + 1..].iter();
        let (other, _) = later.find(|(_, other)| other.run_id == one.run_id)?;
        Some((*name, *other))
    })
}
