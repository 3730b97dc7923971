//! One connection to one node, from its making to its end. It never reconnects by itself.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{Clock, Error, Result};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use super::batcher::{Batcher, Reply};
use crate::error::{Meaning, explain, is_noscript, meaning};
use crate::machine;

/// Requests that may wait in this process for the socket.
const BUFFER: usize = 1024;

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    courier: Batcher,
    health: Arc<Health>,
    /// Changes with every start of the server.
    pub(crate) run_id: String,
    /// For how long the server had run at least when the connection was made, whatever clocks say.
    pub(crate) ran: Duration,
    /// Whether the server evicts keys when memory is short.
    pub(crate) evicts: bool,
    /// Whether the server votes, as this connection knows: it has the scripts then.
    member: AtomicBool,
    /// No counter of a member is below.
    floor: AtomicU64,
}

/// Whether a connection can still be used.
#[derive(Debug)]
pub(crate) struct Health {
    answer_timeout: Duration,
    broken: AtomicBool,
    /// Since when requests go unanswered, in ns; 0 if they do not.
    silent_since: AtomicU64,
    /// Rung when the connection breaks.
    bell: Arc<Notify>,
}

impl Connection {
    /// Connects, listens to the process's channel, and asks the server who it is. `hear` gets the payload of each message.
    pub(crate) async fn open(
        client: &redis::Client,
        node: &str,
        channel: &str,
        timeouts: (Duration, Duration),
        bell: Arc<Notify>,
        hear: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self> {
        let prepared = Self::prepare(client, node, channel, timeouts, bell, hear);
        match tokio::time::timeout(timeouts.0, prepared).await {
            Ok(prepared) => prepared,
            Err(_) => {
                let cause = format!("no answer within {:?} (connect-timeout)", timeouts.0);
                Err(Error::unavailable(node, "connecting", cause))
            }
        }
    }

    async fn prepare(
        client: &redis::Client,
        node: &str,
        channel: &str,
        (connect_timeout, answer_timeout): (Duration, Duration),
        bell: Arc<Notify>,
        hear: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self> {
        let health = Arc::new(Health {
            answer_timeout,
            broken: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
            bell,
        });
        let heard = Arc::clone(&health);
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout))
            .set_response_timeout(Some(connect_timeout))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(move |push: PushInfo| {
                match push.kind {
                    PushKind::Message => {
                        if let Some(Value::BulkString(payload)) = push.data.get(1) {
                            hear(payload);
                        }
                    }
                    PushKind::Disconnection => heard.break_off(),
                    _ => {}
                }
                Ok::<(), ()>(())
            });
        let failed =
            |action: &'static str| move |error: RedisError| explain(node, action, None, error);
        let connected = client.get_multiplexed_async_connection_with_config(&settings);
        let mut connection = connected.await.map_err(failed("connecting"))?;
        let channel = format!("fencelock:{channel}");
        let listening = connection.subscribe(&channel).await;
        listening.map_err(failed("subscribing to a channel fencelock:*"))?;
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("PUBLISH").arg(&channel).arg("probe");
        questions.cmd("INFO");
        let answers = connection.send_packed_commands(&questions, 0, 2).await;
        let answers = answers.map_err(failed("asking the server about itself"))?;
        let info = match <[Value; 2]>::try_from(answers) {
            Ok([Value::ServerError(error), _]) => {
                let action = "publishing to a channel fencelock:*";
                return Err(failed(action)(error.into()));
            }
            Ok([_, Value::ServerError(error)]) => return Err(failed("INFO")(error.into())),
            Ok([_, Value::BulkString(bytes)]) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok([_, Value::VerbatimString { text, .. }]) => text,
            _ => String::new(),
        };
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(':'))
        };
        if field("redis_mode") == Some("sentinel") || field("cluster_enabled") == Some("1") {
            let why = "it is a Sentinel or a node of a cluster; each node of a redlock is a server of its own";
            return Err(Error::config(node, why));
        }
        let Some(run_id) = field("run_id") else {
            let why = "it does not say when it was started; allow the command INFO to this user";
            return Err(Error::config(node, why));
        };
        connection.set_response_timeout(answer_timeout);
        let ran = machine::ran(|name| field(name)?.trim().parse().ok());
        let capped = field("maxmemory").is_some_and(|text| text != "0");
        Ok(Self {
            courier: Batcher::new(connection, Arc::clone(&health)),
            health,
            run_id: run_id.to_owned(),
            ran,
            evicts: capped && field("maxmemory_policy") != Some("noeviction"),
            member: AtomicBool::new(false),
            floor: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::SeqCst)
    }

    pub(crate) fn break_off(&self) {
        self.health.break_off();
    }

    /// Whether the server votes and has the scripts.
    pub(crate) fn is_member(&self) -> bool {
        self.member.load(Ordering::SeqCst)
    }

    pub(crate) fn let_in(&self, floor: u64) {
        self.floor.store(floor, Ordering::SeqCst);
        self.member.store(true, Ordering::SeqCst);
    }

    /// What no counter can be below.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::SeqCst)
    }

    /// One command; an error that the server answers is an error. It is sent even if nobody waits for the answer.
    pub(crate) fn ask(
        &self,
        command: &Cmd,
    ) -> impl Future<Output = Result<Value, RedisError>> + Send + use<> {
        let answers = self.ask_all(std::slice::from_ref(command));
        async move {
            match answers.await?.pop() {
                Some(Value::ServerError(error)) => Err(error.into()),
                Some(value) => Ok(value),
                None => Err(crate::reply::unexpected(&Value::Nil)),
            }
        }
    }

    /// Several commands at once; an error of one is in its place among the answers.
    pub(crate) fn ask_all(
        &self,
        commands: &[Cmd],
    ) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send + use<> {
        self.courier.ask(commands)
    }

    /// Several commands at once, and what to do with the answers.
    pub(crate) fn send(&self, commands: &[Cmd], clock: bool, reply: Reply) {
        self.courier.send(commands, clock, reply);
    }
}

impl Health {
    fn break_off(&self) {
        if !self.broken.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// Draws conclusions about the connection from what came of some requests.
    pub(crate) fn note(&self, answers: &Result<Vec<Value>, RedisError>) {
        match answers {
            Ok(values) => {
                self.silent_since.store(0, Ordering::Relaxed);
                for value in values {
                    if let Value::ServerError(error) = value {
                        self.note_error(&error.clone().into());
                    }
                }
            }
            Err(error) => self.note_error(error),
        }
    }

    fn note_error(&self, error: &RedisError) {
        if is_noscript(error) {
            // The server was started anew behind a connection that lives, or somebody emptied its scripts: it is looked at
            // again before it has another vote.
            self.break_off();
            return;
        }
        match meaning(error) {
            Meaning::Answered => self.silent_since.store(0, Ordering::Relaxed),
            Meaning::Silent => {
                let now = Clock::Boot.now().as_nanos();
                let since = self.silent_since.load(Ordering::Relaxed);
                if since == 0 {
                    self.silent_since.store(now, Ordering::Relaxed);
                } else if Duration::from_nanos(now.saturating_sub(since)) > self.answer_timeout {
                    self.break_off();
                }
            }
            Meaning::Broken => self.break_off(),
        }
    }
}
