//! The capacity of a server: a simulation of clients that take, hold, renew and release locks, with service times that
//! were measured. docs/scale.md compares it with measurements. The same arguments always give the same figures.
//!
//! ```sh
//! cargo run --release -p fencelock-bench --example carry -- --workers 64 --take 3.5us --release 3.5us
//! ```
//!
//! A request needs a core of the client's machine, travels, needs a core of the server, and its answer travels back.
//! Both machines serve requests in order of arrival. A request takes between half and one and a half of its service
//! time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;

use clap::Parser;

/// A simulation ends after this number of events, however long its period is.
const MOST_EVENTS: u64 = 50_000_000;

/// The capacity of a server: a simulation.
#[derive(Clone, Debug, Parser)]
struct Load {
    /// Tasks that take and release locks
    #[arg(long, default_value_t = 64, value_name = "N")]
    workers: usize,

    /// Names that they take [default: one for each]
    #[arg(long, value_name = "N")]
    names: Option<usize>,

    /// How long a worker pauses before it asks again, on average
    #[arg(long, default_value = "0ms", value_parser = duration, value_name = "DUR")]
    think: Duration,

    /// How long it holds a lock, on average
    #[arg(long, default_value = "0ms", value_parser = duration, value_name = "DUR")]
    hold: Duration,

    /// Other locks that are held and renewed meanwhile
    #[arg(long, default_value_t = 0, value_name = "N")]
    holds: usize,

    /// Their ttl: each is renewed after a third of it
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DUR")]
    ttl: Duration,

    /// How many holds one request renews
    #[arg(long, default_value_t = 500, value_name = "N")]
    batch: usize,

    /// What the server needs to grant a lock
    #[arg(long, default_value = "3500ns", value_parser = duration, value_name = "DUR")]
    take: Duration,

    /// What the server needs to release a lock, and to notify the next waiter
    #[arg(long, default_value = "3500ns", value_parser = duration, value_name = "DUR")]
    release: Duration,

    /// What the server needs to renew one hold
    #[arg(long, default_value = "2us", value_parser = duration, value_name = "DUR")]
    renew: Duration,

    /// What the client's machine needs for a request
    #[arg(long, default_value = "2us", value_parser = duration, value_name = "DUR")]
    client: Duration,

    /// What the client's machine needs to renew one hold
    #[arg(long, default_value = "1us", value_parser = duration, value_name = "DUR")]
    client_renew: Duration,

    /// How long a message travels, in one direction
    #[arg(long, default_value = "25us", value_parser = duration, value_name = "DUR")]
    travel: Duration,

    /// Cores of the server
    #[arg(long, default_value_t = 1, value_name = "N")]
    cores: usize,

    /// Cores of the clients' machines
    #[arg(long, default_value_t = 1, value_name = "N")]
    client_cores: usize,

    /// The simulated time
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DUR")]
    period: Duration,

    /// The seed of the random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Client,
    Server,
}

/// What a request is for; the number is that of the worker, or of the batch of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    Take(usize),
    Release(usize),
    Renew(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request begins at the client.
    Begin(Request),
    Arrives(At, Request),
    Done(At, Request),
    Granted(usize),
    Released(usize),
    Renewed(usize),
}

/// A machine's cores, and the requests that wait for one.
#[derive(Debug)]
struct Machine {
    free: usize,
    waiting: VecDeque<Request>,
    used: u64,
}

/// The results.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    pairs_per_s: f64,
    renewed_per_s: f64,
    server: f64,
    client: f64,
    /// How long the workers waited for their locks, in nanoseconds, sorted.
    waits: Vec<u64>,
    /// The longest time of a renewal.
    slowest_renewal: u64,
    /// Renewals that came after the end of the lease.
    late: u64,
    /// The time that was simulated.
    simulated: u64,
}

struct Simulation {
    load: Load,
    now: u64,
    /// Keeps the order of events at the same time.
    count: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    machines: [Machine; 2],
    names: Vec<Option<usize>>,
    queues: Vec<VecDeque<usize>>,
    name_of: Vec<usize>,
    /// When each worker sent its request, and when each batch was sent.
    asked: Vec<u64>,
    sent: Vec<u64>,
    random: u64,
    waits: Vec<u64>,
    renewed: u64,
    slowest_renewal: u64,
    late: u64,
}

fn main() {
    let load = Load::parse();
    println!("{}", Simulation::new(load).run());
}

impl Simulation {
    fn new(load: Load) -> Self {
        let names = load.names.unwrap_or(load.workers).max(1);
        let batches = load.holds.div_ceil(load.batch.max(1));
        let machine = |cores: usize| Machine {
            free: cores.max(1),
            waiting: VecDeque::new(),
            used: 0,
        };
        let mut this = Self {
            now: 0,
            count: 0,
            events: BinaryHeap::new(),
            machines: [machine(load.client_cores), machine(load.cores)],
            names: vec![None; names],
            queues: vec![VecDeque::new(); names],
            name_of: (0..load.workers).map(|worker| worker % names).collect(),
            asked: vec![0; load.workers],
            sent: vec![0; batches],
            random: load.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            waits: Vec::new(),
            renewed: 0,
            slowest_renewal: 0,
            late: 0,
            load,
        };
        for worker in 0..this.load.workers {
            let first = this.pause(this.load.think);
            this.after(first, Event::Begin(Request::Take(worker)));
        }
        for batch in 0..batches {
            // The holds began one after the other, so their renewals are spread over time.
            let first = this.interval() * batch as u64 / batches as u64;
            this.after(first, Event::Begin(Request::Renew(batch)));
        }
        this
    }

    fn run(mut self) -> Outcome {
        let until = nanos(self.load.period);
        let mut left = MOST_EVENTS;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > until || left == 0 {
                break;
            }
            left -= 1;
            self.now = at;
            self.happen(event);
        }
        self.outcome()
    }

    fn happen(&mut self, event: Event) {
        let travel = nanos(self.load.travel);
        match event {
            Event::Begin(request) => {
                match request {
                    Request::Take(worker) => self.asked[worker] = self.now,
                    Request::Renew(batch) => self.sent[batch] = self.now,
                    Request::Release(_) => {}
                }
                self.arrive(At::Client, request);
            }
            Event::Arrives(at, request) => self.arrive(at, request),
            Event::Done(at, request) => {
                self.leave(at);
                match at {
                    At::Client => self.after(travel, Event::Arrives(At::Server, request)),
                    At::Server => self.served(request, travel),
                }
            }
            Event::Granted(worker) => {
                self.waits.push(self.now - self.asked[worker]);
                let hold = self.pause(self.load.hold);
                self.after(hold, Event::Begin(Request::Release(worker)));
            }
            Event::Released(worker) => {
                let think = self.pause(self.load.think);
                self.after(think, Event::Begin(Request::Take(worker)));
            }
            Event::Renewed(batch) => self.renewed(batch),
        }
    }

    /// The server has served the request, and its answer travels.
    fn served(&mut self, request: Request, travel: u64) {
        match request {
            Request::Take(worker) => {
                let name = self.name_of[worker];
                if self.names[name].is_none() {
                    self.names[name] = Some(worker);
                    self.after(travel, Event::Granted(worker));
                } else {
                    self.queues[name].push_back(worker);
                }
            }
            Request::Release(worker) => {
                let name = self.name_of[worker];
                self.names[name] = self.queues[name].pop_front();
                if let Some(next) = self.names[name] {
                    self.after(travel, Event::Granted(next));
                }
                self.after(travel, Event::Released(worker));
            }
            Request::Renew(batch) => self.after(travel, Event::Renewed(batch)),
        }
    }

    fn renewed(&mut self, batch: usize) {
        let took = self.now - self.sent[batch];
        let holds = self.size(batch);
        self.renewed += holds;
        self.slowest_renewal = self.slowest_renewal.max(took);
        // The lease runs from the sending of the previous renewal.
        if self.interval() + took > nanos(self.load.ttl) {
            self.late += holds;
        }
        let pause = self.interval().saturating_sub(took);
        self.after(pause, Event::Begin(Request::Renew(batch)));
    }

    /// A request needs a core.
    fn arrive(&mut self, at: At, request: Request) {
        let machine = &mut self.machines[at as usize];
        if machine.free == 0 {
            machine.waiting.push_back(request);
            return;
        }
        machine.free -= 1;
        self.serve(at, request);
    }

    /// A core is free again.
    fn leave(&mut self, at: At) {
        let machine = &mut self.machines[at as usize];
        match machine.waiting.pop_front() {
            Some(next) => self.serve(at, next),
            None => machine.free += 1,
        }
    }

    fn serve(&mut self, at: At, request: Request) {
        let load = &self.load;
        let mean = match (at, request) {
            (At::Client, Request::Renew(batch)) => nanos(load.client_renew) * self.size(batch),
            (At::Client, _) => nanos(load.client),
            (At::Server, Request::Take(_)) => nanos(load.take),
            (At::Server, Request::Release(_)) => nanos(load.release),
            (At::Server, Request::Renew(batch)) => nanos(load.renew) * self.size(batch),
        };
        let took = (mean as f64 * (0.5 + self.fraction())) as u64;
        self.machines[at as usize].used += took;
        self.after(took, Event::Done(at, request));
    }

    fn after(&mut self, pause: u64, event: Event) {
        self.count += 1;
        self.events
            .push(Reverse((self.now + pause, self.count, event)));
    }

    /// The holds of a batch; the last one may have fewer.
    fn size(&self, batch: usize) -> u64 {
        let before = batch * self.load.batch;
        self.load.batch.min(self.load.holds - before) as u64
    }

    fn interval(&self) -> u64 {
        nanos(self.load.ttl) / 3
    }

    /// A pause that is exponentially distributed.
    fn pause(&mut self, mean: Duration) -> u64 {
        if mean.is_zero() {
            return 0;
        }
        let fraction = 1.0 - self.fraction();
        (nanos(mean) as f64 * -fraction.ln()) as u64
    }

    /// From 0 to 1: the generator `splitmix64`.
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn outcome(mut self) -> Outcome {
        self.waits.sort_unstable();
        let seconds = (self.now as f64 / 1e9).max(1e-9);
        let busy = |at: At, cores: usize| {
            let used = self.machines[at as usize].used as f64 / 1e9;
            used / seconds / cores.max(1) as f64
        };
        Outcome {
            pairs_per_s: self.waits.len() as f64 / seconds,
            renewed_per_s: self.renewed as f64 / seconds,
            server: busy(At::Server, self.load.cores),
            client: busy(At::Client, self.load.client_cores),
            slowest_renewal: self.slowest_renewal,
            late: self.late,
            simulated: self.now,
            waits: self.waits,
        }
    }
}

impl Outcome {
    /// The wait that `percent` of the workers' waits do not exceed.
    fn wait(&self, percent: usize) -> Duration {
        let at = (self.waits.len() * percent / 100).min(self.waits.len().saturating_sub(1));
        Duration::from_nanos(self.waits.get(at).copied().unwrap_or(0))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let simulated = Duration::from_nanos(self.simulated);
        writeln!(f, "simulated         {simulated:.1?}")?;
        writeln!(f, "pairs per second  {:.0}", self.pairs_per_s)?;
        writeln!(f, "wait p50          {:.1?}", self.wait(50))?;
        writeln!(f, "wait p99          {:.1?}", self.wait(99))?;
        writeln!(f, "renewed per s     {:.0}", self.renewed_per_s)?;
        let slowest = Duration::from_nanos(self.slowest_renewal);
        writeln!(f, "slowest renewal   {slowest:.1?}")?;
        writeln!(f, "lost in time      {}", self.late)?;
        writeln!(f, "server busy       {:.1} %", self.server * 100.0)?;
        write!(f, "client busy       {:.1} %", self.client * 100.0)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses durations as fencelock does, and also `us`, `ns` and fractions.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    for (unit, seconds) in units {
        let number = text.strip_suffix(unit).and_then(|text| text.parse().ok());
        if let Some(number) = number.map(|number: f64| number * seconds) {
            return Duration::try_from_secs_f64(number).map_err(|error| error.to_string());
        }
    }
    Err("it must be a number with ns, us, ms or s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(words: &str) -> Load {
        Load::parse_from(std::iter::once("carry").chain(words.split_whitespace()))
    }

    fn run(words: &str) -> Outcome {
        Simulation::new(load(words)).run()
    }

    fn close(value: f64, expected: f64, within: f64) {
        let off = (value / expected - 1.0).abs();
        assert!(off < within, "{value} instead of {expected}");
    }

    #[test]
    fn a_closed_loop_runs_as_fast_as_the_busiest_machine() {
        let server = run("--take 6us --release 4us --client 1us --travel 5us --period 2s");
        close(server.pairs_per_s, 1e5, 0.02);
        close(server.server, 1.0, 0.02);
        let client = run("--take 1us --release 1us --client 5us --travel 5us --period 2s");
        close(client.pairs_per_s, 1e5, 0.02);
        let one =
            run("--workers 1 --take 6us --release 4us --client 5us --travel 10us --period 2s");
        close(one.pairs_per_s, 1e6 / (10.0 + 10.0 + 40.0), 0.02);
    }

    /// The formula of Pollaczek and Khinchine, for a server at 80 % of its load.
    #[test]
    fn many_workers_wait_as_long_as_the_formula_says() {
        let (service, busy) = (100e-6, 0.8);
        let words = "--workers 4000 --think 499500us --hold 0ms --take 100us --release 0ns --client 0ns --travel 0ns";
        let seen = run(&format!("{words} --period 60s"));
        close(seen.server, busy, 0.03);
        let mean = seen.waits.iter().sum::<u64>() as f64 / 1e9 / seen.waits.len() as f64;
        // The variance of a uniform service time from a half to one and a half is a twelfth.
        let queued = busy * service * (1.0 + 1.0 / 12.0) / (2.0 * (1.0 - busy));
        close(mean, service + queued, 0.1);
    }

    #[test]
    fn renewals_load_the_server_by_a_third_of_the_ttl() {
        let seen = run("--workers 0 --holds 100000 --ttl 30s --renew 2us --period 30s");
        close(seen.renewed_per_s, 1e4, 0.01);
        close(seen.server, 0.02, 0.05);
        assert_eq!(seen.late, 0);
    }

    #[test]
    fn a_server_that_is_too_slow_loses_holds() {
        let seen =
            run("--workers 0 --holds 1000000 --ttl 3s --renew 4us --client-renew 0ns --period 30s");
        close(seen.server, 1.0, 0.05);
        assert!(seen.late > 0);
    }

    #[test]
    fn one_name_is_handed_on_once_for_each_way_of_a_release() {
        let words = "--workers 16 --names 1 --take 1us --release 1us --client 1us --travel 50us --period 5s";
        close(run(words).pairs_per_s, 1e6 / 102.0, 0.05);
    }

    #[test]
    fn the_same_arguments_give_the_same_figures() {
        let words =
            "--workers 100 --names 10 --think 1ms --hold 1ms --holds 1000 --ttl 1s --period 2s";
        assert_eq!(run(words), run(words));
        assert_ne!(run(words), run(&format!("{words} --seed 2")));
    }
}
