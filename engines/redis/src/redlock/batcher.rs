//! Sends the requests to one node in batches: requests that are made at about the same time are sent together and in order, and
//! none is taken back.
//!
//! For example, sixty-four claims that are placed at once are one message to each node, with one reading of the node's clock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};
use tokio::sync::{Notify, oneshot};

use crate::error::is_noscript;
use crate::health::{Health, Silence};
use crate::reply::{time_micros, unexpected};

/// A node's replies to one request.
pub(crate) struct Replies<'a> {
    /// In the order of the request's commands. The error of one command takes the place of its reply.
    pub(crate) values: &'a mut [Value],
    /// The node's clock after the batch, in microseconds, if it was asked for.
    pub(crate) micros: Option<i64>,
    /// The node worked on the batch between these instants.
    pub(crate) asked: BootInstant,
    pub(crate) heard: BootInstant,
}

/// What to do with the replies to a request.
pub(crate) type OnReplies = Box<dyn FnOnce(Result<Replies<'_>, RedisError>) + Send>;

/// Sends the requests of one connection. When it is dropped, requests under way are still completed.
#[derive(Debug)]
pub(crate) struct Batcher(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    next: Mutex<Next>,
    wake_up: Notify,
}

#[derive(Debug, Default)]
struct Next {
    batch: Batch,
    closed: bool,
}

/// The next batch.
#[derive(Default)]
struct Batch {
    commands: Pipeline,
    /// By request: the number of its commands.
    requests: Vec<(usize, OnReplies)>,
    clock: bool,
}

impl Batcher {
    /// Needs a tokio runtime.
    pub(crate) fn new(driver: MultiplexedConnection, health: Arc<Health>) -> Self {
        let queue = Arc::<Queue>::default();
        tokio::spawn(run(Arc::clone(&queue), driver, health));
        Self(queue)
    }

    /// Sends a request. `clock`: the replies include the node's time.
    pub(crate) fn send(&self, commands: &[Cmd], clock: bool, on_replies: OnReplies) {
        let batch = &mut self.0.next.lock().batch;
        for command in commands {
            batch.commands.add_command(command.clone());
        }
        batch.requests.push((commands.len(), on_replies));
        batch.clock |= clock;
        self.0.wake_up.notify_one();
    }

    /// Sends a request, even if the returned future is dropped.
    pub(crate) fn ask(
        &self,
        commands: &[Cmd],
    ) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let on_replies = move |replies: Result<Replies<'_>, RedisError>| {
            let take = |replies: Replies<'_>| {
                let values = replies.values.iter_mut();
                values
                    .map(|value| std::mem::replace(value, Value::Nil))
                    .collect()
            };
            // Sending fails if the receiver is gone.
            drop(sender.send(replies.map(take)));
        };
        self.send(commands, false, Box::new(on_replies));
        async move { receiver.await.unwrap_or_else(|_| Err(gone())) }
    }
}

impl Queue {}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.0.next.lock().closed = true;
        self.0.wake_up.notify_one();
    }
}

async fn run(queue: Arc<Queue>, driver: MultiplexedConnection, health: Arc<Health>) {
    let silence = Silence::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            // The batches under way are polled before another is taken, so that they are sent in order.
            biased;
            Some(()) = under_way.next(), if !under_way.is_empty() => continue,
            () = queue.wake_up.notified() => {}
        }
        let (batch, closed) = {
            let mut next = queue.next.lock();
            (std::mem::take(&mut next.batch), next.closed)
        };
        if !batch.requests.is_empty() {
            under_way.push(batch.deliver(driver.clone(), &health, &silence));
        }
        if closed {
            while under_way.next().await.is_some() {}
            return;
        }
    }
}

impl Batch {
    async fn deliver(
        mut self,
        mut driver: MultiplexedConnection,
        health: &Health,
        silence: &Silence,
    ) {
        if self.clock {
            self.commands.cmd("TIME");
        }
        let count = self.commands.len();
        let asked = Clock::Boot.now();
        let answers = driver.send_packed_commands(&self.commands, 0, count).await;
        let heard = Clock::Boot.now();
        note(health, silence, &answers);
        let mut values = match answers {
            Ok(values) if values.len() == count => values,
            Ok(values) => return self.fail(&unexpected(&Value::Array(values))),
            Err(error) => return self.fail(&error),
        };
        let time = if self.clock { values.pop() } else { None };
        let micros = time.as_ref().and_then(time_micros);
        let mut rest = &mut values[..];
        for (count, on_replies) in self.requests {
            let (values, others) = rest.split_at_mut(count);
            rest = others;
            on_replies(Ok(Replies {
                values,
                micros,
                asked,
                heard,
            }));
        }
    }

    fn fail(self, error: &RedisError) {
        for (_, on_replies) in self.requests {
            on_replies(Err(error.clone()));
        }
    }
}

/// Judges the connection by the outcome of a batch.
fn note(health: &Health, silence: &Silence, answers: &Result<Vec<Value>, RedisError>) {
    let note_error = |error: &RedisError| {
        if is_noscript(error) {
            // The server was restarted behind a connection that survived, or lost its scripts: it is checked again before it
            // votes again.
            health.break_off();
        } else {
            health.note(silence, Some(error));
        }
    };
    match answers {
        Ok(values) => {
            health.note(silence, None);
            for value in values {
                if let Value::ServerError(error) = value {
                    note_error(&error.clone().into());
                }
            }
        }
        Err(error) => note_error(error),
    }
}

fn gone() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection is gone"))
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} requests)", self.requests.len())
    }
}
