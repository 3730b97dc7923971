//! Takes and releases without contention that come together are sent in batches.
//!
//! Single requests cost client and server more than a batch. They also make the two work in turns: all callers run before the
//! client writes the next request, and the server is idle meanwhile. Here the callers of one batch get their answers, and the
//! client writes their next requests. Only then does it hand out the answers of the next batch. So client and server work at
//! the same time.
//!
//! In a batch each take is a `SET` of its own, and one `INCRBY` after all of them draws a token for each. So a token is drawn
//! after its lock was won and before its caller knows, as for a take that is sent alone. The next holder of the lock draws later.
//! Before the takes comes one script of all releases, and then one of all takes whose token is recorded.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, LockName};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};
use tokio::sync::{Notify, oneshot};

use crate::error::is_noscript;
use crate::health::{Health, Silence};
use crate::keys::COUNTER;
use crate::reply::unexpected_all;
use crate::scripts::Script;
use crate::stored::MARK_LEN;

/// Up to this many requests are sent alone: a small batch costs more than it saves.
const ALONE: usize = 4;
/// How many requests a batch has at most. With more, client and server would wait for each other longer.
const MOST: usize = 24;
/// How many batches may be under way at once.
const BATCHES: usize = 32;

/// The server's answer to a take.
pub(crate) struct Taken {
    pub(crate) set: Value,
    /// The token, drawn after the key was set.
    pub(crate) drawn: Value,
    /// An instant before anything was sent.
    pub(crate) asked_at: BootInstant,
}

/// A take whose token is recorded.
pub(crate) struct Recorded {
    pub(crate) lock: LockName,
    pub(crate) queue: String,
    pub(crate) mark: [u8; MARK_LEN],
    pub(crate) px: u64,
    /// What follows the token in the stored value.
    pub(crate) rest: Vec<u8>,
    /// Its token must be above this.
    pub(crate) floor: u64,
    /// The server's time in ms after which it must not take effect.
    pub(crate) deadline: i64,
}

/// The server's answer to a take whose token is recorded.
pub(crate) struct Granted {
    /// The token, or 0 if the lock was not taken.
    pub(crate) token: Value,
    /// An instant before anything was sent.
    pub(crate) asked_at: BootInstant,
}

/// The takes and releases of one connection. When it is dropped, batches under way are still completed.
#[derive(Debug)]
pub(crate) struct Together {
    queue: Arc<Queue>,
    /// Of takes and releases, alone or in batches.
    under_way: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    next: Mutex<Next>,
    /// Notified when the queue is no longer empty, and when it is closed.
    wake_up: Notify,
}

#[derive(Debug, Default)]
struct Next {
    requests: VecDeque<Request>,
    closed: bool,
}

/// A caller's request, and the channel for its answer.
enum Request {
    Take(Cmd, Caller<Taken>),
    /// Answered with `None` if the script of all such takes failed.
    Recorded(Recorded, Caller<Option<Granted>>),
    /// Answered with `None` if the script of all releases failed.
    Release(Release, Caller<Option<Value>>),
}

type Caller<T> = oneshot::Sender<Result<T, RedisError>>;

struct Release {
    lock: LockName,
    queue: String,
    mark: [u8; MARK_LEN],
}

/// Counts a request as long as its caller waits for it.
pub(crate) struct UnderWay<'a> {
    count: &'a AtomicUsize,
    /// Whether few other requests are under way.
    pub(crate) goes_alone: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Together {
    /// Needs a tokio runtime.
    pub(crate) fn new(sending: Sending) -> Self {
        let queue = Arc::<Queue>::default();
        tokio::spawn(run(Arc::clone(&queue), sending));
        let under_way = AtomicUsize::new(0);
        Self { queue, under_way }
    }

    /// Counts a request that begins.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay {
            count: &self.under_way,
            goes_alone: before < ALONE,
        }
    }

    /// Takes a lock with this `SET`.
    pub(crate) async fn take(&self, set: Cmd) -> Result<Taken, RedisError> {
        self.ask(|answer| Request::Take(set, answer)).await
    }

    /// Takes a lock and records its token. `None` if the script failed for the batch as a whole. Then the take must be sent again,
    /// alone.
    pub(crate) async fn take_recorded(
        &self,
        take: Recorded,
    ) -> Result<Option<Granted>, RedisError> {
        self.ask(|answer| Request::Recorded(take, answer)).await
    }

    /// Releases a lock. `None` if the script failed for the batch as a whole. Then the release must be sent again, alone.
    pub(crate) async fn release(
        &self,
        lock: &LockName,
        queue: &str,
        mark: [u8; MARK_LEN],
    ) -> Result<Option<Value>, RedisError> {
        let release = Release {
            lock: lock.clone(),
            queue: queue.to_owned(),
            mark,
        };
        self.ask(|answer| Request::Release(release, answer)).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Caller<T>) -> Request) -> Result<T, RedisError> {
        let (sender, receiver) = oneshot::channel();
        self.queue.push(request(sender));
        let mut asking = Asking {
            queue: &self.queue,
            receiver,
            answered: false,
        };
        let answer = (&mut asking.receiver).await;
        asking.answered = true;
        answer.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.queue.next.lock().closed = true;
        self.queue.wake_up.notify_one();
    }
}

/// A caller that waits for its answer. When it is dropped, one of two things is true: its request will never be sent, or its
/// request is on its way already. Then it is ahead of every later request of this connection, such as a withdrawal of the same
/// claim.
struct Asking<'a, T> {
    queue: &'a Queue,
    receiver: oneshot::Receiver<T>,
    answered: bool,
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        if !self.answered {
            self.receiver.close();
            // A batch is composed and sent under the lock: it does not contain this request, or it has been sent when this
            // returns.
            drop(self.queue.next.lock());
        }
    }
}

impl Request {
    /// Its caller waits no longer.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Take(_, answer) => answer.is_closed(),
            Self::Recorded(_, answer) => answer.is_closed(),
            Self::Release(_, answer) => answer.is_closed(),
        }
    }

    fn fail(self, error: &RedisError) {
        // Sending fails if the caller is gone.
        match self {
            Self::Take(_, answer) => drop(answer.send(Err(error.clone()))),
            Self::Recorded(_, answer) => drop(answer.send(Err(error.clone()))),
            Self::Release(_, answer) => drop(answer.send(Err(error.clone()))),
        }
    }
}

impl Queue {
    fn push(&self, request: Request) {
        let mut next = self.next.lock();
        let first = next.requests.is_empty();
        next.requests.push_back(request);
        drop(next);
        if first {
            self.wake_up.notify_one();
        }
    }

    fn is_closed(&self) -> bool {
        self.next.lock().closed
    }

    /// Sends the next batch.
    fn send(&self, sending: &Sending) -> Option<OnItsWay> {
        let mut next = self.next.lock();
        let mut batch = Batch::default();
        while batch.len() < MOST
            && let Some(request) = next.requests.pop_front()
        {
            if !request.is_abandoned() {
                batch.add(request);
            }
        }
        if batch.len() == 0 {
            return None;
        }
        // The driver gets the batch with the first poll, which must be under the lock. Cooperative scheduling must not delay
        // it.
        let sent = tokio::task::unconstrained(batch.send(sending.clone()));
        let mut sent: OnItsWay = Box::pin(sent);
        match sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answered) => Some(Box::pin(std::future::ready(answered))),
            Poll::Pending => Some(sent),
        }
    }

    fn fail_all(&self) {
        let requests = std::mem::take(&mut self.next.lock().requests);
        for request in requests {
            request.fail(&gone());
        }
    }
}

type OnItsWay = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// How batches reach the server.
#[derive(Clone)]
pub(crate) struct Sending {
    pub(crate) driver: MultiplexedConnection,
    pub(crate) health: Arc<Health>,
    pub(crate) silence: Arc<Silence>,
    pub(crate) release_all: Arc<Script>,
    pub(crate) take_all: Arc<Script>,
}

async fn run(queue: Arc<Queue>, sending: Sending) {
    let mut under_way = FuturesUnordered::new();
    let mut answered: Option<Answered> = None;
    loop {
        if sending.health.is_broken() {
            queue.fail_all();
        }
        while under_way.len() < BATCHES
            && let Some(batch) = queue.send(&sending)
        {
            under_way.push(batch);
        }
        if answered.is_none() && under_way.is_empty() && queue.is_closed() {
            return;
        }
        if answered.is_none() {
            tokio::select! {
                biased;
                Some(first) = under_way.next(), if !under_way.is_empty() => answered = Some(first),
                () = queue.wake_up.notified() => {}
            }
        }
        if let Some(first) = answered.take() {
            answered = give_some(first, &mut under_way);
            // Their callers run before the answers of the next batch are given.
            tokio::task::yield_now().await;
        }
    }
}

/// Gives the answers of a batch to its callers. It also gives those of further batches that are there already, as long as the
/// next requests of all these callers fit into one batch. So small batches become one if this process is slower than the server.
/// Returns the batch whose turn is next, if its answers are there.
fn give_some(first: Answered, under_way: &mut FuturesUnordered<OnItsWay>) -> Option<Answered> {
    let mut room = MOST.saturating_sub(first.callers.len());
    first.give();
    while let Some(Some(next)) = under_way.next().now_or_never() {
        match room.checked_sub(next.callers.len()) {
            Some(left) => room = left,
            None => return Some(next),
        }
        next.give();
    }
    None
}

#[derive(Default)]
struct Batch {
    releases: Vec<Release>,
    recorded: Vec<Recorded>,
    sets: Vec<Cmd>,
    callers: Callers,
}

#[derive(Default)]
struct Callers {
    of_releases: Vec<Caller<Option<Value>>>,
    of_recorded: Vec<Caller<Option<Granted>>>,
    of_takes: Vec<Caller<Taken>>,
}

impl Callers {
    const fn len(&self) -> usize {
        self.of_releases.len() + self.of_recorded.len() + self.of_takes.len()
    }
}

impl Batch {
    fn len(&self) -> usize {
        self.releases.len() + self.recorded.len() + self.sets.len()
    }

    fn add(&mut self, request: Request) {
        match request {
            Request::Take(set, caller) => {
                self.sets.push(set);
                self.callers.of_takes.push(caller);
            }
            Request::Recorded(take, caller) => {
                self.recorded.push(take);
                self.callers.of_recorded.push(caller);
            }
            Request::Release(release, caller) => {
                self.releases.push(release);
                self.callers.of_releases.push(caller);
            }
        }
    }

    async fn send(self, sending: Sending) -> Answered {
        let Self {
            releases,
            recorded,
            sets,
            callers,
        } = self;
        let Sending {
            mut driver,
            health,
            silence,
            release_all,
            take_all,
        } = sending;
        let takes = sets.len();
        let mut commands = Pipeline::with_capacity(takes + 3);
        if !releases.is_empty() {
            commands.add_command(release_script(&releases, "EVALSHA", &release_all.sha));
        }
        if !recorded.is_empty() {
            commands.add_command(take_script(&recorded, "EVALSHA", &take_all.sha));
        }
        for set in sets {
            commands.add_command(set);
        }
        if takes > 0 {
            commands.cmd("INCRBY").arg(COUNTER).arg(takes);
        }
        let asked_at = Clock::Boot.now();
        let answers = driver
            .send_packed_commands(&commands, 0, commands.len())
            .await;
        health.note(&silence, answers.as_ref().err());
        let mut replies = answers.and_then(|values| match values.len() == commands.len() {
            true => Ok(values),
            false => Err(unexpected_all(&values)),
        });
        let scripts = usize::from(!releases.is_empty()) + usize::from(!recorded.is_empty());
        for at in 0..scripts {
            let Ok(values) = &mut replies else { break };
            let Value::ServerError(error) = &values[at] else {
                continue;
            };
            let error = RedisError::from(error.clone());
            health.note(&silence, Some(&error));
            if !is_noscript(&error) {
                continue;
            }
            let of_releases = at == 0 && !releases.is_empty();
            let command = match of_releases {
                true => release_script(&releases, "EVAL", &release_all.text),
                // Takes are not sent again: their callers may be gone, and their withdrawals on their way. The server only gets
                // the text.
                false => take_script(&[], "EVAL", &take_all.text),
            };
            match driver.send_packed_command(&command).await {
                Ok(value) if of_releases => values[at] = value,
                Ok(_) => {}
                // The other requests already have their answers.
                Err(error) => health.note(&silence, Some(&error)),
            }
        }
        Answered {
            callers,
            replies,
            asked_at,
        }
    }
}

/// The command that runs the script of all releases.
fn release_script(releases: &[Release], how: &str, script: &str) -> Cmd {
    let each = |release: &Release| release.lock.as_str().len() + release.queue.len() + MARK_LEN;
    let length = releases.iter().map(each).sum::<usize>() + script.len() + 20;
    let mut command = Cmd::with_capacity(3 + 3 * releases.len(), length);
    command.arg(how).arg(script).arg(2 * releases.len());
    for release in releases {
        command.arg(release.lock.as_str()).arg(&release.queue);
    }
    for release in releases {
        command.arg(&release.mark[..]);
    }
    command
}

/// The command that runs the script of all takes whose token is recorded.
fn take_script(takes: &[Recorded], how: &str, script: &str) -> Cmd {
    let each = |take: &Recorded| {
        take.lock.as_str().len() + take.queue.len() + MARK_LEN + take.rest.len() + 20
    };
    let length = takes.iter().map(each).sum::<usize>() + script.len() + COUNTER.len() + 60;
    let mut command = Cmd::with_capacity(6 + 5 * takes.len(), length);
    command.arg(how).arg(script).arg(1 + 2 * takes.len());
    command.arg(COUNTER);
    for take in takes {
        command.arg(take.lock.as_str()).arg(&take.queue);
    }
    let floor = takes.iter().map(|take| take.floor).max();
    let deadline = takes.iter().map(|take| take.deadline).min();
    command.arg(floor.unwrap_or(0)).arg(deadline.unwrap_or(0));
    for take in takes {
        command.arg(&take.mark[..]).arg(take.px).arg(&take.rest[..]);
    }
    command
}

/// A batch, and the server's answers.
struct Answered {
    callers: Callers,
    replies: Result<Vec<Value>, RedisError>,
    asked_at: BootInstant,
}

impl Answered {
    /// Gives each caller its answer. Sending fails if a caller is gone.
    fn give(self) {
        let Callers {
            of_releases,
            of_recorded,
            of_takes,
        } = self.callers;
        let asked_at = self.asked_at;
        let mut values = match self.replies {
            Ok(values) => values.into_iter(),
            Err(error) => {
                let releases = of_releases.into_iter();
                releases.for_each(|caller| drop(caller.send(Err(error.clone()))));
                let recorded = of_recorded.into_iter();
                recorded.for_each(|caller| drop(caller.send(Err(error.clone()))));
                let takes = of_takes.into_iter();
                return takes.for_each(|caller| drop(caller.send(Err(error.clone()))));
            }
        };
        if !of_releases.is_empty() {
            let mut each = each_of(values.next());
            for caller in of_releases {
                drop(caller.send(Ok(each.next())));
            }
        }
        if !of_recorded.is_empty() {
            let mut each = each_of(values.next());
            for caller in of_recorded {
                let token = each.next();
                drop(caller.send(Ok(token.map(|token| Granted { token, asked_at }))));
            }
        }
        let drawn = values.next_back().unwrap_or_default();
        let takes = of_takes.len() as i64;
        for ((caller, set), before) in of_takes.into_iter().zip(values).zip((0..takes).rev()) {
            let drawn = match &drawn {
                Value::Int(last) => Value::Int(last - before),
                other => other.clone(),
            };
            drop(caller.send(Ok(Taken {
                set,
                drawn,
                asked_at,
            })));
        }
    }
}

/// What a script of many claims answered for each. Nothing if it failed.
fn each_of(answer: Option<Value>) -> std::vec::IntoIter<Value> {
    let each = match answer {
        Some(Value::Array(each)) => each,
        _ => Vec::new(),
    };
    each.into_iter()
}

fn gone() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection is gone"))
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Take(..) => "Take",
            Self::Recorded(..) => "Recorded",
            Self::Release(..) => "Release",
        })
    }
}
