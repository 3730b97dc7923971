//! Injects faults by a seeded plan, and heals them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fencelock::Clock;
use fencelock_testbed::{Flow, Proxy, Result};

use crate::fault::{FaultKind, Whom};
use crate::history::Fault;
use crate::record::Record;
use crate::stores::{TestStore, of_connections};
use crate::workers::Workers;

/// The targets of faults.
pub(crate) struct Targets {
    pub(crate) store: Option<Box<dyn TestStore>>,
    /// For each worker, a proxy before each node.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    pub(crate) workers: Workers,
    pub(crate) record: Record,
    /// A server's clock was ahead, and tokens may have been drawn from it.
    pub(crate) was_ahead: bool,
    /// The locks are bound to connections.
    pub(crate) bound: bool,
}

/// Which faults to inject, and when.
pub(crate) struct Plan {
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) seed: u64,
    /// The maximum number of faults at the same time.
    pub(crate) together: usize,
    /// The pauses between two faults, in milliseconds.
    pub(crate) pauses: (u64, u64),
    /// The lease.
    pub(crate) ttl: Duration,
}

/// A fault that is active.
struct Active {
    kind: FaultKind,
    /// Which node or worker.
    target: usize,
    ends: Instant,
    fault: Fault,
}

impl Targets {
    /// The kinds that are possible here.
    pub(crate) fn able(&self, faults: &[FaultKind]) -> Vec<FaultKind> {
        let servers = self
            .store
            .as_ref()
            .map_or_else(Vec::new, |store| store.faults());
        let has = |kind: &FaultKind| match kind.whom() {
            Whom::Server => servers.contains(kind),
            Whom::Network => self.proxies.iter().any(|proxies| !proxies.is_empty()),
            Whom::Client => true,
        };
        faults.iter().copied().filter(has).collect()
    }

    /// Injects faults until `stop`, then heals all.
    pub(crate) fn run(&mut self, plan: &Plan, stop: &Receiver<()>) {
        let mut random = Rng::with_seed(plan.seed);
        let mut active: Vec<Active> = Vec::new();
        let mut next =
            Instant::now() + Duration::from_millis(random.u64(plan.pauses.0..=plan.pauses.1));
        loop {
            let now = Instant::now();
            let (due, on): (Vec<_>, Vec<_>) = active.into_iter().partition(|on| on.ends <= now);
            active = on;
            for fault in due {
                self.heal(fault);
            }
            if now >= next {
                if active.len() < plan.together && !plan.faults.is_empty() {
                    active.extend(self.begin(plan, &mut random, &active));
                }
                next = now + Duration::from_millis(random.u64(plan.pauses.0..=plan.pauses.1));
            }
            let soonest = active
                .iter()
                .map(|on| on.ends)
                .chain([next])
                .min()
                .unwrap_or(next);
            match stop.recv_timeout(soonest.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        for fault in active {
            self.heal(fault);
        }
    }

    fn begin(&mut self, plan: &Plan, random: &mut Rng, active: &[Active]) -> Option<Active> {
        let kind = plan.faults[random.usize(0..plan.faults.len())];
        let nodes = self.store.as_ref().map_or(0, |store| store.nodes());
        let targets = match kind.whom() {
            Whom::Server => nodes.max(1),
            Whom::Network | Whom::Client => self.workers.len(),
        };
        let target = random.usize(0..targets);
        if clash(kind, target, active) {
            return None;
        }
        let (excuses, why) = match &self.store {
            Some(store) => store.excuses(kind),
            None if self.bound => of_connections(kind),
            None => (Vec::new(), ""),
        };
        // A store that has lost its tokens continues from its clock. So the clock must not be behind its earlier time.
        let forgets =
            matches!(kind, FaultKind::Restart | FaultKind::RestartEmpty) && !excuses.is_empty();
        if forgets && self.was_ahead {
            return None;
        }
        self.was_ahead |= kind == FaultKind::ClockForward;
        let lasts = self.duration(kind, plan, random);
        let whom = match kind.whom() {
            Whom::Server => format!("node {target}"),
            _ => format!("worker {target}"),
        };
        let from = Clock::Boot.now().as_nanos();
        let done = self.apply(kind, target, true);
        if let Err(error) = done {
            self.record.trouble(format!("{kind} of {whom}: {error}"));
        }
        Some(Active {
            kind,
            target,
            ends: Instant::now() + lasts,
            fault: Fault {
                what: kind.to_string(),
                whom,
                from,
                to: from,
                excuses,
                why: why.to_owned(),
            },
        })
    }

    /// How long a fault lasts.
    fn duration(&self, kind: FaultKind, plan: &Plan, random: &mut Rng) -> Duration {
        let ttl = plan.ttl.as_millis() as u64;
        Duration::from_millis(match kind {
            FaultKind::Reset | FaultKind::KillConnections | FaultKind::SwitchOver => 0,
            // Possibly past the lease.
            FaultKind::PauseClient => random.u64(ttl / 2..=ttl * 2),
            FaultKind::Pause => {
                let store = self.store.as_ref();
                random.u64(store.map_or(50..=ttl * 3 / 2, |store| store.pauses(ttl)))
            }
            FaultKind::Hold
            | FaultKind::Partition
            | FaultKind::Unreachable
            | FaultKind::Isolate => random.u64(50..=ttl * 3 / 2),
            FaultKind::Calls => random.u64(ttl / 2..=ttl * 2),
            // Long enough for claims to be taken, renewed and released.
            FaultKind::Revive => 1000,
            _ => random.u64(50..=ttl),
        })
    }

    fn heal(&mut self, mut active: Active) {
        if let Err(error) = self.apply(active.kind, active.target, false) {
            let whom = &active.fault.whom;
            self.record
                .trouble(format!("healing {} of {whom}: {error}", active.kind));
        }
        active.fault.to = Clock::Boot.now().as_nanos();
        self.record.parts().faults.push(active.fault);
    }

    /// Begins or ends a fault.
    fn apply(&mut self, kind: FaultKind, target: usize, begin: bool) -> Result<()> {
        let flow = |flow| if begin { flow } else { Flow::Pass };
        match kind.whom() {
            Whom::Server => match (&mut self.store, begin) {
                (None, _) => Ok(()),
                (Some(store), true) => store.begin(kind, target),
                (Some(store), false) => store.heal(kind, target),
            },
            Whom::Network => {
                for proxy in &self.proxies[target] {
                    match kind {
                        FaultKind::Hold => proxy.both(flow(Flow::Hold)),
                        FaultKind::Partition => proxy.both(flow(Flow::Lose)),
                        FaultKind::LoseRequests => proxy.requests(flow(Flow::Lose)),
                        FaultKind::LoseAnswers => proxy.answers(flow(Flow::Lose)),
                        FaultKind::Delay => {
                            proxy.both(flow(Flow::Delay(Duration::from_millis(60))))
                        }
                        _ => {}
                    }
                    let lossy = matches!(
                        kind,
                        FaultKind::Partition | FaultKind::LoseRequests | FaultKind::LoseAnswers
                    );
                    if (begin && kind == FaultKind::Reset) || (!begin && lossy) {
                        // A connection that has lost bytes cannot be used again.
                        proxy.reset();
                    }
                }
                Ok(())
            }
            Whom::Client => match (kind, begin) {
                (FaultKind::PauseClient, true) => self.workers.pause(target),
                (FaultKind::PauseClient, false) => self.workers.resume(target),
                (FaultKind::KillClient, true) => {
                    self.workers.kill(target);
                    Ok(())
                }
                (FaultKind::KillClient, false) => self.workers.start(target),
                (_, true) => self.workers.tell(target, "trouble 15"),
                (_, false) => self.workers.tell(target, "calm"),
            },
        }
    }
}

/// Whether a fault must not begin while the others last.
fn clash(kind: FaultKind, target: usize, active: &[Active]) -> bool {
    // One fault at a time for each target: the second one would heal the first.
    let same_target = |on: &Active| on.kind.whom() == kind.whom() && on.target == target;
    // The store chooses the leader to kill, and requests to all servers are repeated. So no other server may have a fault at
    // the same time.
    let of_all = |kind| matches!(kind, FaultKind::KillLeader | FaultKind::Revive);
    let to_servers = |on: &Active| on.kind.whom() == Whom::Server;
    active.iter().any(same_target)
        || match of_all(kind) {
            true => active.iter().any(to_servers),
            false => kind.whom() == Whom::Server && active.iter().any(|on| of_all(on.kind)),
        }
}
