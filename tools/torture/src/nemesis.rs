//! Does harm, by a seeded plan, and heals it.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fencelock::Clock;
use fencelock_testbed::{Flow, Proxy, Result};

use crate::beds::{Bed, of_connections};
use crate::crew::Crew;
use crate::harm::{Harm, Whom};
use crate::history::Fault;
use crate::record::Record;

/// What may be harmed.
pub(crate) struct Field {
    pub(crate) bed: Option<Box<dyn Bed>>,
    /// For each worker a proxy before each node.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    pub(crate) crew: Crew,
    pub(crate) record: Record,
    /// A server's clock was ahead, and has given tokens since.
    pub(crate) was_ahead: bool,
    /// Locks hang on connections.
    pub(crate) bound: bool,
}

/// What is to be done.
pub(crate) struct Plan {
    pub(crate) harms: Vec<Harm>,
    pub(crate) seed: u64,
    /// How many faults there may be at once.
    pub(crate) together: usize,
    /// The pauses between two faults, in milliseconds.
    pub(crate) pauses: (u64, u64),
    /// The lease.
    pub(crate) ttl: Duration,
}

/// A fault that is on.
struct Active {
    harm: Harm,
    /// Which node or worker.
    target: usize,
    ends: Instant,
    fault: Fault,
}

impl Field {
    /// Which of these can be done here.
    pub(crate) fn able(&self, harms: &[Harm]) -> Vec<Harm> {
        let servers = self.bed.as_ref().map_or_else(Vec::new, |bed| bed.harms());
        let has = |harm: &Harm| match harm.whom() {
            Whom::Server => servers.contains(harm),
            Whom::Network => self.proxies.iter().any(|proxies| !proxies.is_empty()),
            Whom::Client => true,
        };
        harms.iter().copied().filter(has).collect()
    }

    /// Does harm until it is told to stop; then heals everything.
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
                if active.len() < plan.together && !plan.harms.is_empty() {
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
        let harm = plan.harms[random.usize(0..plan.harms.len())];
        let nodes = self.bed.as_ref().map_or(0, |bed| bed.ports().len());
        let targets = match harm.whom() {
            Whom::Server => nodes.max(1),
            Whom::Network | Whom::Client => self.crew.len(),
        };
        let target = random.usize(0..targets);
        // One fault at a time for each of them: what a second one would heal is not its own.
        if active
            .iter()
            .any(|on| on.harm.whom() == harm.whom() && on.target == target)
        {
            return None;
        }
        // Who was killed as the leader is not known here: nothing else may be done to servers meanwhile.
        let to_servers = |on: &Active| on.harm.whom() == Whom::Server;
        let of_leader = |on: &Active| on.harm == Harm::KillLeader;
        let clash = match harm {
            Harm::KillLeader => active.iter().any(to_servers),
            _ => harm.whom() == Whom::Server && active.iter().any(of_leader),
        };
        if clash {
            return None;
        }
        let (excuses, why) = match &self.bed {
            Some(bed) => bed.excuses(harm),
            None if self.bound => of_connections(harm),
            None => (Vec::new(), ""),
        };
        // A store that forgot its tokens goes on from its clock, which must not be behind what it showed before.
        let forgets = matches!(harm, Harm::Restart | Harm::RestartEmpty) && !excuses.is_empty();
        if forgets && self.was_ahead {
            return None;
        }
        self.was_ahead |= harm == Harm::ClockForward;
        let ttl = plan.ttl.as_millis() as u64;
        let lasts = match harm {
            Harm::Reset | Harm::KillConnections | Harm::SwitchOver => 0,
            // Past the lease.
            Harm::PauseClient => random.u64(ttl / 2..=ttl * 2),
            Harm::Pause | Harm::Hold | Harm::Partition => random.u64(50..=ttl * 3 / 2),
            Harm::Calls => random.u64(ttl / 2..=ttl * 2),
            _ => random.u64(50..=ttl),
        };
        let whom = match harm.whom() {
            Whom::Server => format!("node {target}"),
            _ => format!("worker {target}"),
        };
        let from = Clock::Boot.now().as_nanos();
        let done = self.apply(harm, target, true);
        if let Err(error) = done {
            self.record.trouble(format!("{harm} of {whom}: {error}"));
        }
        Some(Active {
            harm,
            target,
            ends: Instant::now() + Duration::from_millis(lasts),
            fault: Fault {
                what: harm.to_string(),
                whom,
                from,
                to: from,
                excuses,
                why: why.to_owned(),
            },
        })
    }

    fn heal(&mut self, mut active: Active) {
        if let Err(error) = self.apply(active.harm, active.target, false) {
            let whom = &active.fault.whom;
            self.record
                .trouble(format!("healing {} of {whom}: {error}", active.harm));
        }
        active.fault.to = Clock::Boot.now().as_nanos();
        self.record.parts().faults.push(active.fault);
    }

    /// Begins a fault, or ends it.
    fn apply(&mut self, harm: Harm, target: usize, begin: bool) -> Result<()> {
        let flow = |flow| if begin { flow } else { Flow::Pass };
        match harm.whom() {
            Whom::Server => match (&mut self.bed, begin) {
                (None, _) => Ok(()),
                (Some(bed), true) => bed.begin(harm, target),
                (Some(bed), false) => bed.heal(harm, target),
            },
            Whom::Network => {
                for proxy in &self.proxies[target] {
                    match harm {
                        Harm::Hold => proxy.both(flow(Flow::Hold)),
                        Harm::Partition => proxy.both(flow(Flow::Lose)),
                        Harm::LoseRequests => proxy.requests(flow(Flow::Lose)),
                        Harm::LoseAnswers => proxy.answers(flow(Flow::Lose)),
                        Harm::Delay => proxy.both(flow(Flow::Delay(Duration::from_millis(60)))),
                        _ => {}
                    }
                    let lossy = matches!(
                        harm,
                        Harm::Partition | Harm::LoseRequests | Harm::LoseAnswers
                    );
                    if (begin && harm == Harm::Reset) || (!begin && lossy) {
                        // A connection that lost bytes is of no use any more.
                        proxy.reset();
                    }
                }
                Ok(())
            }
            Whom::Client => match (harm, begin) {
                (Harm::PauseClient, true) => self.crew.pause(target),
                (Harm::PauseClient, false) => self.crew.resume(target),
                (Harm::KillClient, true) => {
                    self.crew.kill(target);
                    Ok(())
                }
                (Harm::KillClient, false) => self.crew.start(target),
                (_, true) => self.crew.tell(target, "trouble 15"),
                (_, false) => self.crew.tell(target, "calm"),
            },
        }
    }
}
