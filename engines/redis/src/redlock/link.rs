//! One connection to one node, from its making to its end. It never reconnects by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{Clock, Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use crate::refusal::{Meaning, explain, is_noscript, meaning};

/// Requests that may wait in this process for the socket.
const BUFFER: usize = 1024;

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// Changes with every start of the server.
    pub(crate) run_id: String,
    /// For how long the server ran when the connection was made; it may be a second more.
    pub(crate) uptime: Duration,
    /// Whether the server evicts keys when memory is short.
    pub(crate) evicts: bool,
    /// Whether the server votes, as this connection knows: it has the scripts then.
    member: AtomicBool,
    /// No counter of a member is below.
    floor: AtomicU64,
    answer_timeout: Duration,
    broken: Arc<AtomicBool>,
    /// Since when requests go unanswered, in ns; 0 if they do not.
    silent_since: AtomicU64,
    /// Rung when the connection breaks.
    bell: Arc<Notify>,
}

impl Link {
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
        let broken = Arc::new(AtomicBool::new(false));
        let (gone, rung) = (Arc::clone(&broken), Arc::clone(&bell));
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
                    PushKind::Disconnection => {
                        gone.store(true, Ordering::SeqCst);
                        rung.notify_one();
                    }
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
        let seconds = field("uptime_in_seconds").and_then(|text| text.parse().ok());
        let capped = field("maxmemory").is_some_and(|text| text != "0");
        Ok(Self {
            connection,
            run_id: run_id.to_owned(),
            uptime: Duration::from_secs(seconds.unwrap_or(0)),
            evicts: capped && field("maxmemory_policy") != Some("noeviction"),
            member: AtomicBool::new(false),
            floor: AtomicU64::new(0),
            answer_timeout,
            broken,
            silent_since: AtomicU64::new(0),
            bell,
        })
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    pub(crate) fn break_off(&self) {
        if !self.broken.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
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

    /// One command; an error that the server answers is an error.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        let answer = match connection.send_packed_command(command).await {
            Ok(Value::ServerError(error)) => Err(error.into()),
            answer => answer,
        };
        self.note(answer.as_ref().err());
        answer
    }

    /// Several commands at once; an error of one is in its place among the answers.
    pub(crate) async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.connection.clone();
        let count = commands.len();
        let answers = connection.send_packed_commands(commands, 0, count).await;
        self.note(answers.as_ref().err());
        answers
    }

    /// Draws conclusions about the connection from what came of a request.
    fn note(&self, error: Option<&RedisError>) {
        if error.is_some_and(is_noscript) {
            // The server was started anew behind a connection that lives, or somebody emptied its scripts: it is looked at
            // again before it has another vote.
            self.break_off();
            return;
        }
        match error.map(meaning) {
            None | Some(Meaning::Answered) => {
                if self.silent_since.load(Ordering::Relaxed) != 0 {
                    self.silent_since.store(0, Ordering::Relaxed);
                }
            }
            Some(Meaning::Silent) => {
                let now = Clock::Boot.now().as_nanos();
                let since = self.silent_since.load(Ordering::Relaxed);
                if since == 0 {
                    self.silent_since.store(now, Ordering::Relaxed);
                } else if Duration::from_nanos(now.saturating_sub(since)) > self.answer_timeout {
                    self.break_off();
                }
            }
            Some(Meaning::Broken) => self.break_off(),
        }
    }
}
