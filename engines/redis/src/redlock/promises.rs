use fencelock_core::{Finding, Floor, Promises, Wake};

use super::state::State;

pub(crate) fn of(state: &State) -> Promises {
    let clock = "the clocks of a quorum of nodes run at about the right rate; a node whose clock is set forward is noticed \
                by clients that were connected to it before";
    Promises::new("redlock", clock)
        .lock_delay(true)
        .floor(Floor::Name)
        .wake(Wake::Push)
        .min_ttl(state.config.min_ttl())
        .max_ttl(state.config.max_ttl)
        // A waiter is granted nothing without a request of its own.
        .claim_window(state.config.max_ttl)
        .limits(evicts(state).into_iter().collect())
}

/// A finding about the nodes that evict keys, and so may evict locks.
fn evicts(state: &State) -> Option<Finding> {
    let evicting = state.nodes.iter().filter(|node| {
        node.connection()
            .is_some_and(|connection| connection.evicts)
    });
    let evicting: Vec<&str> = evicting.map(|node| node.name.as_str()).collect();
    if evicting.is_empty() {
        return None;
    }
    Some(Finding::against_correctness(
        format!(
            "when memory is short these nodes evict keys, and locks with them: {}",
            evicting.join(", ")
        ),
        "maxmemory-policy noeviction in redis.conf, and CONFIG SET maxmemory-policy noeviction until its next \
                 start; or keep locks on servers of their own",
    ))
}
