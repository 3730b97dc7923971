//! How requests get to one node: those that are made at about the same time go out together, in the order they were made in,
//! and none that was made is taken back.
//!
//! Sixty-four claims that are placed at once are one message to each node, and the node's clock is read once for all of them.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{BootInstant, Clock};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};
use tokio::sync::{Notify, oneshot};

use super::connection::Health;
use super::node::micros;

/// What a node answered to one request.
pub(crate) struct Told<'a> {
    /// In the order of the request's commands; an error of one is in its place.
    pub(crate) values: &'a mut [Value],
    /// The node's clock when it had done them, in microseconds, if that was asked for.
    pub(crate) micros: Option<i64>,
    /// It did them between these instants.
    pub(crate) asked: BootInstant,
    pub(crate) heard: BootInstant,
}

/// What happens with the answers to a request.
pub(crate) type Reply = Box<dyn FnOnce(Result<Told<'_>, RedisError>) + Send>;

/// Carries the requests of one connection, those too that are under way when it is dropped.
#[derive(Debug)]
pub(crate) struct Batcher(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    bag: Bag,
    closed: bool,
}

/// What goes out next.
#[derive(Default)]
struct Bag {
    commands: Pipeline,
    /// By request: the number of its commands.
    replies: Vec<(usize, Reply)>,
    clock: bool,
}

impl Batcher {
    /// Needs a tokio runtime.
    pub(crate) fn new(connection: MultiplexedConnection, health: Arc<Health>) -> Self {
        let shared = Arc::<Shared>::default();
        tokio::spawn(carry(Arc::clone(&shared), connection, health));
        Self(shared)
    }

    /// Sends a request. If `clock`, the answer says the node's time.
    pub(crate) fn send(&self, commands: &[Cmd], clock: bool, reply: Reply) {
        let bag = &mut self.0.state().bag;
        for command in commands {
            bag.commands.add_command(command.clone());
        }
        bag.replies.push((commands.len(), reply));
        bag.clock |= clock;
        self.0.bell.notify_one();
    }

    /// Sends a request, whether or not somebody waits for the answers.
    pub(crate) fn ask(
        &self,
        commands: &[Cmd],
    ) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send + use<> {
        let (told, answer) = oneshot::channel();
        let reply = move |answers: Result<Told<'_>, RedisError>| {
            let take = |told: Told<'_>| {
                let values = told.values.iter_mut();
                values
                    .map(|value| std::mem::replace(value, Value::Nil))
                    .collect()
            };
            // Perhaps nobody waits any more.
            drop(told.send(answers.map(take)));
        };
        self.send(commands, false, Box::new(reply));
        async move { answer.await.unwrap_or_else(|_| Err(gone())) }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.bell.notify_one();
    }
}

/// The task that carries.
async fn carry(shared: Arc<Shared>, connection: MultiplexedConnection, health: Arc<Health>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            // What is under way is polled before more is taken, so that it is sent in order.
            biased;
            Some(()) = under_way.next(), if !under_way.is_empty() => continue,
            () = shared.bell.notified() => {}
        }
        let (bag, closed) = {
            let mut state = shared.state();
            (std::mem::take(&mut state.bag), state.closed)
        };
        if !bag.replies.is_empty() {
            under_way.push(bag.deliver(connection.clone(), Arc::clone(&health)));
        }
        if closed {
            while under_way.next().await.is_some() {}
            return;
        }
    }
}

impl Bag {
    async fn deliver(mut self, mut connection: MultiplexedConnection, health: Arc<Health>) {
        if self.clock {
            self.commands.cmd("TIME");
        }
        let count = self.commands.len();
        let asked = Clock::Boot.now();
        let answers = connection
            .send_packed_commands(&self.commands, 0, count)
            .await;
        let heard = Clock::Boot.now();
        health.note(&answers);
        let mut values = match answers {
            Ok(values) if values.len() == count => values,
            Ok(values) => return self.fail(&crate::reply::unexpected(&Value::Array(values))),
            Err(error) => return self.fail(&error),
        };
        let time = if self.clock { values.pop() } else { None };
        let micros = time.as_ref().and_then(micros);
        let mut rest = &mut values[..];
        for (count, reply) in self.replies {
            let (values, others) = rest.split_at_mut(count);
            rest = others;
            reply(Ok(Told {
                values,
                micros,
                asked,
                heard,
            }));
        }
    }

    fn fail(self, error: &RedisError) {
        for (_, reply) in self.replies {
            reply(Err(error.clone()));
        }
    }
}

fn gone() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection is gone"))
}

impl fmt::Debug for Bag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bag({} requests)", self.replies.len())
    }
}
