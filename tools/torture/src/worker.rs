//! A worker process: acquires and releases locks, and reports what it believes as it happens.
//!
//! Its standard input is its job as one line of JSON, then `trouble PERCENT`, `calm`, and at last `stop`. Its standard
//! output is lines of JSON, see [`Event`]. Programs in other languages do the same (tools/interop/clients/torture.*).

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use fencelock::engine::Engine;
use fencelock::layers::{Fault, FaultHandle, Trouble};
use fencelock::{Acquire, Client, Clock, Error, Guard, Mode, Release};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::history::{Claimed, End, How};
use crate::register::Access;
use crate::witness::Witness;

/// How long the worker retries to connect to a store that does not answer, in nanoseconds.
const CONNECTING: u64 = 20_000_000_000;

/// The job of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) worker: u32,
    pub(crate) life: u32,
    pub(crate) tasks: u32,
    pub(crate) seed: u64,
    pub(crate) names: Vec<String>,
    pub(crate) ttl_ms: u64,
    /// How long a request waits, in milliseconds.
    pub(crate) patience_ms: u64,
    /// How many of 1000 holds continue past their lease.
    pub(crate) overstay: u32,
    /// The maximum duration of most holds, in microseconds.
    pub(crate) hold_us: u64,
    /// Whether the store has shared mode.
    pub(crate) shared: bool,
    /// The resource's port.
    pub(crate) resource: u16,
}

/// What a worker reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// The store is open, and the tasks begin.
    Ready,
    /// A task requests a lock.
    Asked {
        n: u64,
        task: u32,
        name: u32,
        shared: bool,
        how: How,
        at: u64,
    },
    /// The request was granted.
    Granted {
        n: u64,
        at: u64,
        token: u64,
        claim: String,
        valid: u64,
    },
    /// The lease was renewed.
    Valid { n: u64, until: u64 },
    /// The task no longer believes that it holds. Reported before the release is sent: the process may be killed before
    /// the answer.
    Left {
        n: u64,
        until: u64,
        told: Option<u64>,
        valid: u64,
    },
    /// The request has ended.
    Over { n: u64, at: u64, end: End },
    /// A claim holds.
    Held(Claimed),
    /// The client was closed, possibly with this error.
    Closed(Option<String>),
}

/// Writes a whole line at once, so that a kill of this process loses no events.
fn say(said: &Event) {
    if let Ok(line) = serde_json::to_string(said) {
        // Fails only if the parent has ended, which ends this process, too.
        drop(writeln!(std::io::stdout().lock(), "{line}"));
    }
}

fn now() -> u64 {
    Clock::Boot.now().as_nanos()
}

/// Does the work of a worker process, until its input ends or says `stop`.
///
/// # Errors
/// If it cannot do its work.
pub async fn run_worker() -> std::io::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let Some(line) = lines.next_line().await? else {
        return Ok(());
    };
    if let Ok(replica) = serde_json::from_str(&line) {
        return crate::replica::serve(&replica, &mut lines).await;
    }
    let job: Job = serde_json::from_str(&line)?;
    let job = Arc::new(job);
    let faults: Arc<Mutex<Option<FaultHandle>>> = Arc::default();
    let begin = now();
    let client = loop {
        match connect(&job, Arc::clone(&faults)).await {
            Ok(client) => break client,
            // The store may be down while this process starts.
            Err(Error::Unavailable { .. }) if now() < begin + CONNECTING => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(std::io::Error::other(error)),
        }
    };
    say(&Event::Ready);
    let stopping = Arc::new(AtomicBool::new(false));
    let numbers = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..job.tasks {
        let number = u64::from(job.worker) << 40 | u64::from(job.life) << 20 | u64::from(task);
        let task = Task {
            task,
            client: client.clone(),
            job: Arc::clone(&job),
            random: Rng::with_seed(job.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            numbers: Arc::clone(&numbers),
            access: Access::open(job.resource).await?,
        };
        tasks.push(tokio::spawn(task.run(Arc::clone(&stopping))));
    }
    while let Some(line) = lines.next_line().await? {
        let handle = faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match (line.split_once(' '), handle) {
            (Some(("trouble", percent)), Some(faults)) => {
                let percent: u32 = percent.parse().unwrap_or(10);
                let mut random = Rng::with_seed(job.seed ^ now());
                faults.by_chance(move |_| trouble(&mut random, percent));
            }
            (None, Some(faults)) if line == "calm" => faults.calm(),
            _ if line == "stop" => break,
            _ => {}
        }
    }
    stopping.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await?;
    }
    let closed = client.close().await;
    say(&Event::Closed(closed.err().map(|error| error.to_string())));
    Ok(())
}

fn trouble(random: &mut Rng, percent: u32) -> Trouble {
    if random.u32(0..100) >= percent {
        return Trouble::None;
    }
    let late = Duration::from_millis(random.u64(1..400));
    match random.u32(0..4) {
        0 => Trouble::LoseRequest,
        1 => Trouble::LoseReply,
        2 => Trouble::DelayRequest(late),
        _ => Trouble::DelayReply(late),
    }
}

async fn connect(
    job: &Arc<Job>,
    faults: Arc<Mutex<Option<FaultHandle>>>,
) -> fencelock::Result<Client> {
    let reported = Arc::clone(job);
    let layers = move |engine: Arc<dyn Engine>| -> Arc<dyn Engine> {
        let (faulty, handle) = Fault::new(engine);
        *faults.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        let tell = move |claim: &fencelock::engine::Claim,
                         seen: crate::witness::Seen,
                         at,
                         token: fencelock::Token| {
            let name = reported
                .names
                .iter()
                .position(|name| name == claim.name.as_str());
            say(&Event::Held(Claimed {
                id: claim.id.to_string(),
                worker: reported.worker,
                name: name.unwrap_or(0) as u32,
                shared: claim.mode != Mode::Exclusive,
                placed: seen.placed,
                stood: seen.stood,
                held: Some((at, token.get())),
            }));
        };
        Arc::new(Witness::new(Arc::new(faulty), tell))
    };
    fencelock::connect(&job.url).layer(layers).await
}

/// One task of a worker.
struct Task {
    task: u32,
    client: Client,
    job: Arc<Job>,
    random: Rng,
    numbers: Arc<AtomicU64>,
    access: Access,
}

impl Task {
    async fn run(mut self, stopping: Arc<AtomicBool>) {
        // Whether the last few requests failed.
        let mut recent: VecDeque<bool> = VecDeque::new();
        while !stopping.load(Ordering::SeqCst) {
            let failed = self.attempt().await;
            recent.push_back(failed);
            if recent.len() > 3 {
                recent.pop_front();
            }
            if recent.iter().all(|failed| *failed) {
                // No busy loop while the store is down.
                tokio::time::sleep(Duration::from_millis(self.random.u64(5..50))).await;
            }
        }
    }

    fn draw(&mut self) -> (How, bool) {
        let how = match self.random.u32(0..1000) {
            // Rare, since it takes a whole lease.
            n if n < self.job.overstay => How::Overstay,
            0..=79 => How::Try,
            80..=99 => How::Unfair,
            100..=149 => How::DropRequest,
            150..=189 => How::DropGuard,
            _ => How::Wait,
        };
        let shared = self.job.shared && how != How::Overstay && self.random.u32(0..100) < 12;
        (how, shared)
    }

    /// How long to hold.
    fn stay(&mut self) -> Duration {
        let ttl = self.job.ttl_ms * 1000;
        Duration::from_micros(match self.random.u32(0..10_000) {
            0..=5999 => 0,
            6000..=9979 => self.random.u64(0..=self.job.hold_us),
            9980..=9994 => self.random.u64(0..=ttl / 4),
            // Long enough for renewals.
            _ => self.random.u64(ttl / 2..=ttl + ttl / 2),
        })
    }

    /// One request, from its beginning to its end. Returns whether it failed.
    async fn attempt(&mut self) -> bool {
        let n = self.numbers.fetch_add(1, Ordering::Relaxed);
        let name = self.random.u32(0..self.job.names.len() as u32);
        let (how, shared) = self.draw();
        let patience = Duration::from_millis(self.job.patience_ms);
        let text = &self.job.names[name as usize];
        let mut request: Acquire = match how {
            How::Try => self.client.try_lock(text),
            How::Unfair => self.client.lock(text).timeout(patience).unfair(),
            _ => self.client.lock(text).timeout(patience),
        };
        request = request.ttl(Duration::from_millis(self.job.ttl_ms));
        if shared {
            request = request.shared();
        }
        if how == How::Overstay {
            request = request.renew(false);
        }
        let (task, at) = (self.task, now());
        say(&Event::Asked {
            n,
            task,
            name,
            shared,
            how,
            at,
        });
        let taken = if how == How::DropRequest {
            let soon = Duration::from_micros(self.random.u64(0..20_000));
            match tokio::time::timeout(soon, request).await {
                Ok(taken) => taken,
                Err(_) => {
                    self.over(n, End::Gone);
                    return false;
                }
            }
        } else {
            request.await
        };
        let guard = match taken {
            Ok(guard) => guard,
            Err(error) => return self.failed(n, &error),
        };
        let valid = guard.valid_until().as_nanos();
        say(&Event::Granted {
            n,
            at: now(),
            token: guard.token().get(),
            claim: guard.claim_id().to_string(),
            valid,
        });
        let stay = self.stay();
        let end = match how {
            How::Overstay => self.overstay(n, name, guard).await,
            How::DropGuard => self.hold(n, name, guard, stay, true).await,
            _ => self.hold(n, name, guard, stay, false).await,
        };
        self.over(n, end);
        false
    }

    fn failed(&self, n: u64, error: &Error) -> bool {
        let end = match error {
            Error::Held { .. } => End::Busy,
            Error::TimedOut { .. } => End::TimedOut,
            other => End::Failed(other.to_string()),
        };
        let failed = matches!(end, End::Failed(_));
        self.over(n, end);
        failed
    }

    fn over(&self, n: u64, end: End) {
        say(&Event::Over { n, at: now(), end });
    }

    /// Holds, writes, and leaves.
    async fn hold(&mut self, n: u64, name: u32, guard: Guard, stay: Duration, drops: bool) -> End {
        let read = self.access.ask(&format!("r {name}")).await.unwrap_or(0);
        let mut told = None;
        let ends = tokio::time::sleep(stay);
        tokio::pin!(ends);
        loop {
            tokio::select! {
                biased;
                _ = guard.lost() => {
                    told = Some(now());
                    break;
                }
                until = guard.prolonged() => say(&Event::Valid { n, until: until.as_nanos() }),
                () = &mut ends => break,
            }
        }
        // The validity is checked last, as a careful program does. The process may still be stopped between the check
        // and the write.
        if guard.is_valid() {
            self.write(n, name, &guard, read).await;
        }
        let valid = guard.valid_until().as_nanos();
        let left = now();
        if told.is_none() && !guard.is_valid() {
            told = Some(left);
        }
        let until = told.unwrap_or(left).min(valid);
        say(&Event::Left {
            n,
            until,
            told,
            valid,
        });
        match drops {
            true => {
                drop(guard);
                End::Dropped
            }
            false => released(guard.release().await),
        }
    }

    /// Holds past the lease, and then writes like a program that never checks its lock.
    async fn overstay(&mut self, n: u64, name: u32, guard: Guard) -> End {
        let read = self.access.ask(&format!("r {name}")).await.unwrap_or(0);
        guard.lost().await;
        let told = now();
        let valid = guard.valid_until().as_nanos();
        let (until, told) = (valid.min(told), Some(told));
        say(&Event::Left {
            n,
            until,
            told,
            valid,
        });
        let more = Duration::from_millis(self.random.u64(0..=self.job.ttl_ms));
        tokio::time::sleep(more).await;
        self.write(n, name, &guard, read).await;
        released(guard.release().await)
    }

    async fn write(&mut self, n: u64, name: u32, guard: &Guard, read: u64) {
        let (worker, life) = (self.job.worker, self.job.life);
        let (token, claim) = (guard.token(), guard.claim_id());
        let mode = guard.mode().letter();
        let value = read + 1;
        let request = format!("w {worker}:{life}:{n} {name} {token} {claim} {mode} {value}");
        // The log of the resource has the result of the write.
        drop(self.access.ask(&request).await);
    }
}

fn released(released: fencelock::Result<Release>) -> End {
    match released {
        Ok(Release::Released) => End::Released,
        Ok(Release::AlreadyExpired) => End::Expired,
        Ok(Release::NotOwner) => End::NotOwner,
        Ok(other) => End::Failed(other.as_str().to_owned()),
        Err(Error::Unavailable { .. }) => End::Unconfirmed,
        Err(error) => End::Failed(error.to_string()),
    }
}
