//! What a started store offers, and what several kinds of store share.

use std::ops::RangeInclusive;
use std::time::Duration;

use fencelock_testbed::{ClockShim, Failure, Redis, Result};

use crate::fault::FaultKind;
use crate::history::{Late, Rule};

/// The rules that may be broken when the store grants a lock twice.
pub(crate) const TWO_HOLDERS: &[Rule] = &[
    Rule::Exclusion,
    Rule::LossFirst,
    Rule::Kept,
    Rule::FenceOpen,
];

/// The rules that a lock bound to a connection does not promise, and why.
pub(crate) fn of_connections(kind: FaultKind) -> (Vec<Rule>, &'static str) {
    match kind {
        // The last three rules may also be broken by a reset.
        FaultKind::Restart
        | FaultKind::KillConnections
        | FaultKind::Reset
        | FaultKind::Partition
        | FaultKind::LoseRequests
        | FaultKind::LoseAnswers => (
            TWO_HOLDERS.into(),
            "a lock that is bound to a connection is free before its holder knows that the connection ended",
        ),
        _ => (Vec::new(), ""),
    }
}

/// How far a clock jumps: longer than every lease.
pub(crate) const JUMP: Duration = Duration::from_secs(10);

/// Sets a clock forward, or back.
pub(super) fn jump(clock: &ClockShim, forward: bool) -> Result<()> {
    match forward {
        true => clock.forward(JUMP),
        false => clock.back(JUMP),
    }
}

/// `127.0.0.1:PORT,127.0.0.1:PORT`, the hosts of a URL.
pub(crate) fn loopback(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    hosts.join(",")
}

/// The time in milliseconds after which a Redis queue expires that a fail-over or a restart has brought back.
pub(super) const STALE_QUEUE: u64 = 20_000;

/// Ends every client connection to a Redis except this one.
pub(super) fn kill_clients(redis: &Redis) -> Result<()> {
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
}

/// Injects a fault that every kind of Redis can have. `None` for any other fault.
pub(super) fn begin_at(redis: &Redis, kind: FaultKind) -> Option<Result<()>> {
    match kind {
        FaultKind::Pause => Some(redis.pause()),
        FaultKind::Restart => {
            redis.kill9();
            Some(Ok(()))
        }
        FaultKind::KillConnections => Some(kill_clients(redis)),
        _ => None,
    }
}

/// Heals a fault of [`begin_at`]. `None` for any other fault.
pub(super) fn heal_at(redis: &mut Redis, kind: FaultKind) -> Option<Result<()>> {
    match kind {
        FaultKind::Pause => Some(redis.resume()),
        FaultKind::Restart => Some(redis.restart()),
        FaultKind::KillConnections => Some(Ok(())),
        _ => None,
    }
}

/// The keys on these servers, except `permanent` ones, whose number does not depend on the number of locks.
pub(super) fn keys_left(servers: &[Redis], permanent: fn(&str) -> bool) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for server in servers {
        let keys: Vec<String> = server.command(&["KEYS", "*"])?;
        let keys = keys.into_iter().filter(|key| !permanent(key));
        left.extend(keys.map(|key| format!("the key {key:?} on port {}", server.port())));
    }
    Ok(left)
}

/// A store on servers that were started here. They are killed when it is dropped.
pub(crate) trait TestStore: Send {
    /// Its name at `--start`.
    fn name(&self) -> &'static str;

    /// The ports of its nodes on 127.0.0.1; empty if it has no server.
    fn ports(&self) -> Vec<u16>;

    /// How many servers there are, so that a fault hits one of them.
    fn nodes(&self) -> usize {
        self.ports().len()
    }

    /// The store's URL with these ports of its nodes: their own, or those of proxies.
    fn url(&self, ports: &[u16]) -> String;

    /// The faults of its servers.
    fn faults(&self) -> Vec<FaultKind>;

    /// Injects a fault into a node.
    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()>;

    /// Heals the fault.
    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()>;

    /// The rules that the engine does not promise under such a fault, and why.
    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str);

    /// Takes note of the engine's findings about the store before the first fault.
    fn note_limits(&mut self, limits: &[String]) {
        let _ = limits;
    }

    /// Incidents without an injected fault, what the engine does not promise during them, and why. Called after the
    /// run.
    fn incident(&mut self) -> Option<(String, Vec<Rule>, &'static str)> {
        None
    }

    /// How long a paused server is stopped, in milliseconds.
    fn pauses(&self, ttl: u64) -> RangeInclusive<u64> {
        50..=ttl * 3 / 2
    }

    /// How long a dead waiter may delay the queue, in milliseconds.
    fn window(&self) -> u64 {
        2000
    }

    /// Effects of late requests that must not happen. Called after the run.
    fn late(&mut self) -> Vec<Late> {
        Vec::new()
    }

    /// How long the server may take to remove unused data, in milliseconds.
    fn forgets_after(&self) -> u64 {
        0
    }

    /// What is left on the server, except data whose amount does not depend on the number of locks.
    fn left(&mut self) -> Result<Vec<String>>;
}

/// The failure for a fault that this kind of store does not support.
pub(super) fn unknown(store: &dyn TestStore, kind: FaultKind) -> Failure {
    Failure::new(format!("{} does not support {kind}", store.name()))
}
