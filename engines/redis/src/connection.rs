//! One connection to the server, from its making to its end. It never reconnects by itself: whoever sees it broken
//! makes a new one (`hub.rs`), so that no request is ever sent twice behind anybody's back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, Pipeline, PushInfo, PushKind,
    RedisError, Value,
};
use tokio::sync::Notify;

use crate::config::Config;
use crate::facts::Facts;
use crate::refusal::{Meaning, explain, is_noscript, meaning};
use crate::scripts::{Script, Scripts};

/// Requests that may wait in this process for the socket.
const BUFFER: usize = 1024;

/// The one counter of tokens of a store.
pub(crate) const COUNTER: &str = "fencelock:counter";

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// Which connection of this store, counted from 1.
    pub(crate) generation: u64,
    pub(crate) opened_at: BootInstant,
    /// What the server calls it.
    pub(crate) client_id: Option<i64>,
    pub(crate) run_id: Option<String>,
    /// The counter may not be below this any more.
    pub(crate) floor: u64,
    /// Before this nothing is granted (see `restart-delay`).
    pub(crate) grants_from: Option<BootInstant>,
    /// The server's time in ms less ours, at most.
    ahead: AtomicI64,
    response_timeout: Duration,
    broken: Arc<AtomicBool>,
    /// Since when requests go unanswered, in ns; 0 if they do not.
    silent_since: AtomicU64,
    /// Rung when the connection breaks.
    bell: Arc<Notify>,
}

/// What opening takes besides the configuration.
pub(crate) struct Opening<'a> {
    pub(crate) config: &'a Config,
    pub(crate) scripts: &'a Scripts,
    pub(crate) channel: &'a str,
    pub(crate) generation: u64,
    pub(crate) bell: Arc<Notify>,
}

impl Link {
    /// Connects, listens, seeds the counter. `hear` gets the payload of each message, in the order of the replies.
    pub(crate) async fn open(
        opening: Opening<'_>,
        hear: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<(Self, Facts)> {
        let config = opening.config;
        let store = &config.store;
        match tokio::time::timeout(config.connect_timeout, Self::prepare(opening, hear)).await {
            Ok(prepared) => prepared,
            Err(_) => {
                let waited = config.connect_timeout;
                let cause = format!(
                    "no answer within {waited:?}; is the server up and reachable (connect-timeout)?"
                );
                Err(Error::unavailable(store, "connecting", cause))
            }
        }
    }

    async fn prepare(
        opening: Opening<'_>,
        hear: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<(Self, Facts)> {
        let config = opening.config;
        let failed = |action: &'static str| {
            move |error: RedisError| explain(&config.store, action, None, error)
        };
        let bell = Arc::clone(&opening.bell);
        let broken = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&broken);
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.connect_timeout))
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
                        bell.notify_one();
                    }
                    _ => {}
                }
                Ok::<(), ()>(())
            });
        let connected = config
            .client
            .get_multiplexed_async_connection_with_config(&settings);
        let mut connection = connected.await.map_err(|error| {
            let text = error.to_string();
            if text.contains("unknown command") || text.contains("NOPROTO") {
                let why = format!("Redis 6 or later is needed, with RESP3: {text}");
                return Error::config(&config.store, why);
            }
            explain(&config.store, "connecting", None, error)
        })?;
        let channel = format!("fencelock:{}", opening.channel);
        let listening = connection.subscribe(&channel).await;
        listening.map_err(failed("subscribing to a channel fencelock:*"))?;
        let mut probe = redis::cmd("PUBLISH");
        probe.arg(&channel).arg("probe");
        let probed = ask(&mut connection, &probe).await;
        probed.map_err(failed("publishing to a channel fencelock:*"))?;

        let mut questions = Pipeline::with_capacity(3);
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO");
        questions.cmd("CONFIG").arg("GET").arg("appendfsync");
        let answers = connection.send_packed_commands(&questions, 0, 3).await;
        let answers = answers.map_err(failed("asking the server about itself"))?;
        let client_id = match answers.first() {
            Some(Value::Int(id)) => Some(*id),
            _ => None,
        };
        let facts = Facts::new(answers.get(1), answers.get(2));
        if let Some(why) = facts.unfit() {
            return Err(Error::config(&config.store, why));
        }

        let delay = config.restart_delay;
        if !delay.is_zero() && facts.uptime().is_none() {
            let why = "restart-delay needs to know since when the server runs; allow the command INFO to this user";
            return Err(Error::config(&config.store, why));
        }

        let asked_at = Clock::Boot.now();
        let mut seed = redis::cmd("EVAL");
        seed.arg(&opening.scripts.seed.text).arg(1).arg(COUNTER);
        let seeded = ask(&mut connection, &seed).await;
        let seeded = seeded.and_then(|value| Ok(<(u64, i64)>::from_redis_value(value)?));
        let (floor, server_time) = seeded.map_err(failed("preparing the counter of tokens"))?;

        connection.set_response_timeout(config.response_timeout);
        let grants_from = facts.uptime().and_then(|uptime| {
            // Its uptime is in whole seconds.
            let left = (delay + Duration::from_secs(1)).checked_sub(uptime)?;
            (!delay.is_zero()).then(|| asked_at + left)
        });
        let link = Self {
            connection,
            generation: opening.generation,
            opened_at: Clock::Boot.now(),
            client_id,
            run_id: facts.run_id(),
            floor,
            grants_from,
            ahead: AtomicI64::new(server_time - in_millis(asked_at)),
            response_timeout: config.response_timeout,
            broken,
            silent_since: AtomicU64::new(0),
            bell: opening.bell,
        };
        Ok((link, facts))
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    pub(crate) fn break_off(&self) {
        if !self.broken.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// The server's time in ms after which a request sent now is too late to be of use.
    pub(crate) fn deadline(&self) -> i64 {
        // Twice the timeout: the server's answer may be on its way while we give up.
        let patience = 2 * i64::try_from(self.response_timeout.as_millis()).unwrap_or(i64::MAX / 4);
        in_millis(Clock::Boot.now()) + self.ahead.load(Ordering::Relaxed) + patience
    }

    /// The server's clock was set.
    pub(crate) fn set_server_time(&self, asked_at: BootInstant, millis: i64) {
        let ahead = millis - in_millis(asked_at);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        let answer = ask(&mut connection, command).await;
        self.note(answer.as_ref().err());
        answer
    }

    /// Sends several commands at once. An error of one is in its place among the answers.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.connection.clone();
        let answers = connection
            .send_packed_commands(commands, 0, commands.len())
            .await;
        self.note(answers.as_ref().err());
        answers
    }

    /// Runs a script, giving it to the server if it does not have it.
    pub(crate) async fn run(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let mut command = Cmd::with_capacity(16, 512);
        command.arg("EVALSHA").arg(&script.sha);
        args(&mut command);
        match self.send(&command).await {
            Err(error) if is_noscript(&error) => {
                let mut command = redis::cmd("EVAL");
                command.arg(&script.text);
                args(&mut command);
                // Boxed, so that the common case stays small.
                Box::pin(self.send(&command)).await
            }
            answer => answer,
        }
    }

    /// Draws conclusions about the connection from what came of a request.
    pub(crate) fn note(&self, error: Option<&RedisError>) {
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
                } else if Duration::from_nanos(now.saturating_sub(since)) > self.response_timeout {
                    // Nothing was answered for two timeouts: a new connection may do better.
                    self.break_off();
                }
            }
            Some(Meaning::Broken) => self.break_off(),
        }
    }

    /// Ends an earlier connection at the server, so that nothing sent over it can still take effect. `true` if that is
    /// sure.
    pub(crate) async fn end_other(&self, client_id: i64) -> bool {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(client_id);
        matches!(self.send(&kill).await, Ok(Value::Int(_)))
    }
}

/// One command; an error among the answers is an error.
async fn ask(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

/// An answer that is not what a script of ours answers.
pub(crate) fn odd(value: &Value) -> RedisError {
    let shown: String = format!("{value:?}").chars().take(200).collect();
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the server answered something else than expected",
        shown,
    ))
}

fn in_millis(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000_000).unwrap_or(i64::MAX / 4)
}
