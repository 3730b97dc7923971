//! Five servers of which a majority decides, under every fault at once: eight processes take a few locks again and again.
//! Meanwhile nodes are restarted empty, stopped, and have their clocks set. The network loses replies and delivers requests
//! late, and the processes themselves are stopped at any time. Every grant is checked: no token twice, no token in the wrong
//! order, no two holders at once.
//!
//! `FENCELOCK_GRANTS=20000 cargo test -p fencelock-redis --test grants` runs until there are that many grants; without the
//! variable there are 2,000. `FENCELOCK_SEED` chooses the faults; the seed is printed. With `FENCELOCK_DELAYED_RESTART=no`
//! restarted nodes vote at once, and the run finds faults.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod history;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fencelock_core::{BootInstant, Client, Clock, StoreUrl};
use fencelock_redis::Redlock;
use fencelock_testbed::{Flow, Proxy, Redis, Redlock as Group, Worker};

use crate::history::{Stay, faults};

const NODES: usize = 5;
const PROCESSES: usize = 8;
/// The tasks of each process.
const TASKS: usize = 2;
const NAMES: usize = 3;
/// The longest lease. A node that was restarted or whose clock was set does not vote for that time and two seconds.
const MAX_TTL: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_millis(900);
const HOUR: Duration = Duration::from_secs(3600);
/// The hash that a node keeps.
const MEMORY: &str = "fencelock:redlock";
/// With the store's URL in this variable the program is a worker.
const WORKER: &str = "FENCELOCK_GRANTS_WORKER";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn main() {
    match std::env::var(WORKER) {
        Ok(url) => work(&url),
        Err(_) => no_fault_grants_twice(),
    }
}

/// A worker: prints a line for each grant, until its input ends.
fn work(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let url = StoreUrl::parse(url).unwrap();
        let engine = match std::env::var("FENCELOCK_DELAYED_RESTART").as_deref() {
            Ok("no") => Redlock::connect_without_delayed_restart(url).await,
            _ => Redlock::connect(url).await,
        };
        let client = Client::new(Arc::new(engine.unwrap())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::stdin().read_line(&mut line);
            told.store(true, Ordering::SeqCst);
        });
        println!("ready");
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| tokio::spawn(task(client.clone(), Arc::clone(&stop))))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        client.close().await.unwrap();
        println!("end");
    });
}

async fn task(client: Client, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let name = fastrand::usize(..NAMES);
        let asked = Clock::Boot.now();
        let request = client
            .lock(&name.to_string())
            .timeout(Duration::from_secs(20));
        let guard = match request.ttl(TTL).await {
            Ok(guard) => guard,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                continue;
            }
        };
        let from = Clock::Boot.now();
        // Most holds are short; some are longer than several renewals.
        let until = match fastrand::u8(..) {
            0..4 => from + ms(fastrand::u64(..1500)),
            4..20 => from + ms(fastrand::u64(..50)),
            _ => from,
        };
        let mut to = None;
        loop {
            // In this order, because a grant that is valid now was valid at the time read before.
            let now = Clock::Boot.now();
            if !guard.is_valid() {
                break;
            }
            to = Some(now);
            if now >= until {
                break;
            }
            tokio::time::sleep(ms(2)).await;
        }
        if let Some(to) = to {
            let (token, nanos) = (guard.token(), BootInstant::as_nanos);
            println!(
                "{name} {} {} {} {}",
                token.get(),
                nanos(asked),
                nanos(from),
                nanos(to)
            );
        }
        if let Err(error) = guard.release().await {
            assert!(error.is_retryable(), "{error}");
        }
    }
}

/// The histories of all locks, by name.
type Histories = Arc<Mutex<BTreeMap<String, Vec<Stay>>>>;

struct Bed {
    group: Group,
    /// For each half of the processes a proxy before each node.
    proxies: [Vec<Proxy>; 2],
    workers: Vec<Worker>,
    readers: Vec<thread::JoinHandle<()>>,
    histories: Histories,
    count: Arc<AtomicUsize>,
    /// How many times each fault was injected.
    injected: BTreeMap<&'static str, usize>,
    random: fastrand::Rng,
}

fn no_fault_grants_twice() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let wanted = number("FENCELOCK_GRANTS").unwrap_or(2000);
    let seed = number("FENCELOCK_SEED").unwrap_or_else(|| fastrand::usize(..));
    println!("FENCELOCK_GRANTS={wanted} FENCELOCK_SEED={seed}");
    let begin = Instant::now();
    let mut bed = Bed::start(seed as u64);
    let mut rounds = 0;
    while bed.count.load(Ordering::SeqCst) < wanted || rounds < 4 {
        assert!(
            begin.elapsed() < Duration::from_secs(30 + wanted as u64 / 10),
            "it is too slow: {} grants",
            bed.count.load(Ordering::SeqCst)
        );
        bed.forget_or_jump(rounds);
        rounds += 1;
    }
    let (injected, histories) = bed.end();
    let grants: usize = histories.values().map(Vec::len).sum();
    println!(
        "{grants} grants in {:?}, under {injected:?}",
        begin.elapsed()
    );
    let found: Vec<_> = histories.values().flat_map(|all| faults(all)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

impl Bed {
    fn start(seed: u64) -> Self {
        let group = Group::start_with_clocks(NODES).unwrap();
        let proxies = || -> Vec<Proxy> {
            let ports = group.nodes().iter().map(Redis::port);
            ports.map(|port| Proxy::start(port).unwrap()).collect()
        };
        let proxies = [proxies(), proxies()];
        let urls = proxies.each_ref().map(|proxies| {
            let url = group.url_at(proxies.iter().map(Proxy::port));
            format!("{url}?node-timeout=100ms&max-ttl={}ms", MAX_TTL.as_millis())
        });
        let mut bed = Self {
            group,
            proxies,
            workers: Vec::new(),
            readers: Vec::new(),
            histories: Histories::default(),
            count: Arc::default(),
            injected: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
        };
        for process in 0..PROCESSES {
            let url = &urls[process % 2];
            let gate = if process % 4 < 2 { "yes" } else { "no" };
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(WORKER, format!("{url}&first-node-gate={gate}"));
            let mut worker = Worker::spawn(&command).unwrap();
            assert_eq!(worker.line_blocking().as_deref(), Some("ready"));
            let mut lines = worker.take_lines();
            let (histories, count) = (Arc::clone(&bed.histories), Arc::clone(&bed.count));
            bed.readers.push(thread::spawn(move || {
                while let Some(line) = lines.blocking_recv() {
                    let Some((name, rest)) = line.split_once(' ') else {
                        continue;
                    };
                    let numbers: Vec<u64> =
                        rest.split(' ').map(|text| text.parse().unwrap()).collect();
                    let [token, asked, from, to] = numbers[..] else {
                        panic!("a worker printed {line:?}");
                    };
                    let mut all = histories.lock().unwrap();
                    let stay = Stay {
                        token,
                        asked,
                        from,
                        to,
                    };
                    all.entry(name.to_owned()).or_default().push(stay);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }));
            bed.workers.push(worker);
        }
        bed
    }

    fn note(&mut self, fault: &'static str) {
        *self.injected.entry(fault).or_default() += 1;
    }

    /// One node loses its memory, or its clock is set. This happens to one node at a time, since a majority of three survives
    /// only one such fault. All other faults happen at the same time.
    fn forget_or_jump(&mut self, round: usize) {
        let node = self.random.usize(..NODES);
        // Half of the processes reach only this node and two others. The rest reach this node and the other two.
        let mut others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
        self.random.shuffle(&mut others);
        let cut = [&others[..2], &others[2..]];
        for (proxies, cut) in self.proxies.iter().zip(cut) {
            for other in cut {
                proxies[*other].refuse(true).unwrap();
                proxies[*other].reset();
            }
        }
        thread::sleep(ms(300));
        let back = match round % 4 {
            0 | 2 => {
                self.note("a node restarted empty");
                self.group.nodes()[node].kill9();
                thread::sleep(ms(self.random.u64(..50)));
                self.group.nodes_mut()[node].restart_empty().unwrap();
                None
            }
            1 => {
                self.note("a clock set forward");
                self.group.clocks()[node].forward(HOUR).unwrap();
                Some(true)
            }
            _ => {
                self.note("a clock set back");
                self.group.clocks()[node].back(HOUR).unwrap();
                Some(false)
            }
        };
        let begin = Instant::now();
        thread::sleep(MAX_TTL);
        for proxy in self.proxies.iter().flatten() {
            proxy.refuse(false).unwrap();
        }
        loop {
            self.disturb();
            let over = begin.elapsed() > DELAY + ms(500);
            if over && (back.is_some() || self.votes(node)) {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "a node never votes again"
            );
        }
    }

    /// Whether a node was admitted since its start.
    fn votes(&self, node: usize) -> bool {
        let told = self.group.nodes()[node].command::<bool>(&["HEXISTS", MEMORY, "run"]);
        told.unwrap_or(false)
    }

    /// Faults of the network and the scheduler.
    fn disturb(&mut self) {
        let pause = ms(self.random.u64(50..400));
        let side = self.random.usize(..2);
        let some: Vec<usize> = (0..NODES).filter(|_| self.random.bool()).collect();
        let some: Vec<_> = some.into_iter().map(|node| (side, node)).collect();
        match self.random.u8(..5) {
            0 => {
                self.note("replies lost");
                self.each(&some, |proxy| proxy.answers(Flow::Lose));
                thread::sleep(pause);
                self.each(&some, |proxy| {
                    proxy.both(Flow::Pass);
                    proxy.reset();
                });
            }
            1 => {
                self.note("requests late");
                self.each(&some, |proxy| proxy.requests(Flow::Hold));
                thread::sleep(pause);
                self.each(&some, |proxy| proxy.requests(Flow::Pass));
            }
            2 => {
                self.note("replies late");
                self.each(&some, |proxy| proxy.answers(Flow::Delay(pause / 4)));
                thread::sleep(pause);
                self.each(&some, |proxy| proxy.answers(Flow::Pass));
            }
            3 => {
                self.note("a process stopped");
                let worker = self.random.usize(..PROCESSES);
                // Some pauses are longer than the lease.
                let pause = pause * self.random.u32(1..5);
                self.workers[worker].process().pause().unwrap();
                thread::sleep(pause);
                self.workers[worker].process().resume().unwrap();
            }
            _ => {
                self.note("a node stopped");
                let node = self.random.usize(..NODES);
                // The node may have been killed.
                if self.group.nodes()[node].pause().is_ok() {
                    thread::sleep(pause);
                    let _ = self.group.nodes()[node].resume();
                }
            }
        }
        thread::sleep(ms(100));
    }

    fn each(&self, some: &[(usize, usize)], what: impl Fn(&Proxy)) {
        for (side, node) in some {
            what(&self.proxies[*side][*node]);
        }
    }

    fn end(self) -> (BTreeMap<&'static str, usize>, BTreeMap<String, Vec<Stay>>) {
        for worker in &self.workers {
            worker.end_input();
        }
        for worker in &self.workers {
            let ended = worker.process().wait_for(Duration::from_secs(60));
            let ended = ended.expect("a worker does not end");
            assert!(ended.0.success(), "a worker failed: {ended:?}");
        }
        for reader in self.readers {
            reader.join().unwrap();
        }
        let histories = self.histories.lock().unwrap().clone();
        (self.injected, histories)
    }
}
