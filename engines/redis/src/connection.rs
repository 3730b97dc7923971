//! One connection to the server, from its making to its end. It never reconnects by itself: whoever sees it broken
//! makes a new one (`hub.rs`), so that no request is ever sent twice behind anybody's back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, Pipeline, PushInfo, PushKind,
    RedisError, Value,
};
use tokio::sync::Notify;

use crate::config::{Config, Servers};
use crate::error::{Meaning, NOT_REDIS, explain, is_noscript, meaning};
use crate::keys::COUNTER;
use crate::scripts::{Script, Scripts};
use crate::server::ServerInfo;
use crate::uptime::Watching;

/// Requests that may wait in this process for the socket.
const BUFFER: usize = 1024;

/// How many channels of slots are listened to before those that nobody waits on any more are given up.
const CHANNELS: usize = 1024;
/// Who waits asks again within seconds; a channel that was not asked for so long has no waiters.
const IDLE: Duration = Duration::from_secs(60);

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    connection: MultiplexedConnection,
    /// In a cluster: for the channels of slots. A connection of its own, since the driver takes the news that a slot has
    /// moved for an answer.
    ears: Option<Ears>,
    /// How it was made.
    pub(crate) client: redis::Client,
    /// Which connection of this store, counted from 1.
    pub(crate) generation: u64,
    /// What the server calls it.
    pub(crate) client_id: Option<i64>,
    pub(crate) run_id: Option<String>,
    /// For how long the server had run at least when the connection was made, if a delay hangs on it.
    pub(crate) ran: Option<Duration>,
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

/// The channels of slots that are listened to, and when each was asked for last.
#[derive(Debug)]
struct Ears {
    connection: MultiplexedConnection,
    channels: Channels,
    /// As that of the link: the other connection may be answered all the while.
    silent_since: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Channels(Arc<Mutex<HashMap<String, BootInstant>>>);

impl Channels {
    fn all(&self) -> MutexGuard<'_, HashMap<String, BootInstant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For everything.
    Whole,
    /// For waiting until replicas have what was written: it listens to nothing.
    Writing,
    /// For looking: it listens to nothing and writes nothing, and so needs no server and no user that may write.
    Looking,
}

/// What opening takes besides the configuration.
pub(crate) struct Opening<'a> {
    pub(crate) watching: &'a Watching,
    pub(crate) config: &'a Config,
    pub(crate) client: redis::Client,
    pub(crate) purpose: Purpose,
    pub(crate) scripts: &'a Scripts,
    pub(crate) channel: &'a str,
    pub(crate) generation: u64,
    pub(crate) bell: Arc<Notify>,
}

impl Connection {
    /// Connects, listens, seeds the counter. `hear` gets the payload of each message, in the order of the replies; `None`
    /// when a slot's channel is heard no more.
    pub(crate) async fn open(
        opening: Opening<'_>,
        hear: impl Fn(Option<&[u8]>) + Send + Sync + 'static,
    ) -> Result<(Self, ServerInfo)> {
        let config = opening.config;
        let store = &config.store;
        let action = connecting(&opening.client);
        match tokio::time::timeout(config.connect_timeout, Self::prepare(opening, hear)).await {
            Ok(prepared) => prepared,
            Err(_) => {
                let waited = config.connect_timeout;
                let cause = format!(
                    "no answer within {waited:?}; is the server up and reachable (connect-timeout)?"
                );
                Err(Error::unavailable(store, action, cause))
            }
        }
    }

    async fn prepare(
        opening: Opening<'_>,
        hear: impl Fn(Option<&[u8]>) + Send + Sync + 'static,
    ) -> Result<(Self, ServerInfo)> {
        let config = opening.config;
        let failed = |action: &'static str| {
            move |error: RedisError| explain(&config.store, action, None, error)
        };
        // Later on, what is wrong with the server may pass: another may be put in its place.
        let first = opening.generation == 1;
        let broken = Arc::new(AtomicBool::new(false));
        let channels = Channels::default();
        let hear = Arc::new(hear);
        let listener = || {
            let (gone, bell) = (Arc::clone(&broken), Arc::clone(&opening.bell));
            let (channels, hear) = (channels.clone(), Arc::clone(&hear));
            move |push: PushInfo| {
                let text = |at| match push.data.get(at) {
                    Some(Value::BulkString(bytes)) => Some(&bytes[..]),
                    Some(Value::SimpleString(text)) => Some(text.as_bytes()),
                    _ => None,
                };
                match push.kind {
                    PushKind::Message | PushKind::SMessage => {
                        if let Some(payload) = text(1) {
                            hear(Some(payload));
                        }
                    }
                    PushKind::SSubscribe => {
                        if let Some(channel) = text(0) {
                            let channel = String::from_utf8_lossy(channel).into_owned();
                            channels.all().insert(channel, Clock::Boot.now());
                        }
                    }
                    PushKind::SUnsubscribe => {
                        let channel = String::from_utf8_lossy(text(0).unwrap_or_default());
                        // Not when it was given up from here.
                        if channels.all().remove(&*channel).is_some() {
                            hear(None);
                        }
                    }
                    PushKind::Disconnection => {
                        gone.store(true, Ordering::SeqCst);
                        bell.notify_one();
                    }
                    _ => {}
                }
                Ok::<(), ()>(())
            }
        };
        let connect = async || {
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.connect_timeout))
                .set_pipeline_buffer_size(BUFFER)
                .set_push_sender(listener());
            let connected = opening
                .client
                .get_multiplexed_async_connection_with_config(&settings);
            connected.await.map_err(|error| {
                let text = error.to_string();
                if text.contains("unknown command") || text.contains("NOPROTO") {
                    let why = format!("Redis 6 or later is needed, with RESP3: {text}");
                    return Error::config(&config.store, why);
                }
                if first && let Some(why) = not_redis(&error) {
                    return Error::config(&config.store, why);
                }
                explain(&config.store, &connecting(&opening.client), None, error)
            })
        };
        let mut connection = connect().await?;
        let listens = opening.purpose == Purpose::Whole;
        if listens {
            let channel = format!("fencelock:{}", opening.channel);
            let listening = connection.subscribe(&channel).await;
            listening.map_err(failed("subscribing to a channel fencelock:*"))?;
            let mut probe = redis::cmd("PUBLISH");
            probe.arg(&channel).arg("probe");
            let probed = ask(&mut connection, &probe).await;
            probed.map_err(failed("publishing to a channel fencelock:*"))?;
        }

        let mut questions = Pipeline::with_capacity(4);
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO");
        questions.cmd("CONFIG").arg("GET").arg("appendfsync");
        questions.cmd("INFO").arg("commandstats");
        let answers = connection.send_packed_commands(&questions, 0, 4).await;
        let answers = answers.map_err(failed("asking the server about itself"))?;
        let client_id = match answers.first() {
            Some(Value::Int(id)) => Some(*id),
            _ => None,
        };
        let facts = ServerInfo::new(answers.get(1), answers.get(2)).with_stats(answers.get(3));
        if let Some(why) = facts.unfit(config.is_cluster()) {
            return Err(Error::config(&config.store, why));
        }
        let looks = opening.purpose == Purpose::Looking;
        if first
            && !looks
            && matches!(config.servers, Servers::One)
            && let Some(master) = facts.master()
        {
            let why = format!(
                "it is a replica, on which no lock can be taken; name its master, which it says is {master}, or let \
                 Sentinels name it (redis+sentinel://)"
            );
            return Err(Error::config(&config.store, why));
        }

        let delay = config.restart_delay;
        if !delay.is_zero() && !looks && facts.run_id().is_none() {
            let why = "restart-delay needs to know since when the server runs; allow the command INFO to this user";
            return Err(Error::config(&config.store, why));
        }

        let asked_at = Clock::Boot.now();
        let (floor, server_time) = if looks {
            // It draws no token, and its requests have no deadline.
            (0, 0)
        } else if config.is_cluster() {
            // Each slot has a counter, and every token is the server's time at least.
            let time = ask(&mut connection, &redis::cmd("TIME")).await;
            let time = time.and_then(|value| Ok(<(i64, i64)>::from_redis_value(value)?));
            let (seconds, micros) = time.map_err(failed("asking for the time"))?;
            (0, seconds * 1000 + micros / 1000)
        } else {
            let mut seed = redis::cmd("EVAL");
            seed.arg(&opening.scripts.seed.text).arg(1).arg(COUNTER);
            let seeded = ask(&mut connection, &seed).await;
            let seeded = seeded.and_then(|value| Ok(<(u64, i64)>::from_redis_value(value)?));
            seeded.map_err(failed("preparing the counter of tokens"))?
        };

        let mut ears = None;
        if listens && config.is_cluster() {
            let mut connection = connect().await?;
            connection.set_response_timeout(config.response_timeout);
            let channels = channels.clone();
            ears = Some(Ears {
                connection,
                channels,
                silent_since: AtomicU64::new(0),
            });
        }

        connection.set_response_timeout(config.response_timeout);
        let delayed = !delay.is_zero() || !config.promotion_delay.is_zero();
        let ran = match delayed && !looks {
            true => {
                let started = &opening.scripts.uptime;
                let remembers = !config.is_cluster();
                let watching = opening.watching;
                let ran = watching.ran(&mut connection, &facts, started, asked_at, remembers);
                ran.await
            }
            false => None,
        };
        let grants_from = ran.and_then(|ran| {
            let left = delay.checked_sub(ran)?;
            (!delay.is_zero()).then(|| asked_at + left)
        });
        let link = Self {
            connection,
            ears,
            client: opening.client,
            generation: opening.generation,
            client_id,
            run_id: facts.run_id(),
            ran,
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

    /// What the server says to a command that it is to refuse. Draws no conclusions about the connection.
    pub(crate) async fn try_out(&self, command: &Cmd) -> Option<RedisError> {
        ask(&mut self.connection.clone(), command).await.err()
    }

    /// Whether this user may listen: the error if not.
    pub(crate) async fn try_listening(&self, channel: &str) -> Option<RedisError> {
        let mut connection = self.connection.clone();
        let error = connection.subscribe(channel).await.err();
        if error.is_none() {
            // It fails only if the connection does.
            drop(connection.unsubscribe(channel).await);
        }
        error
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

    /// Listens to the channel of a slot, if this is a cluster. Before a claim stands in line there.
    pub(crate) async fn listen(&self, channel: &str) -> Result<(), RedisError> {
        let Some(ears) = &self.ears else {
            return Ok(());
        };
        if let Some(asked) = ears.channels.all().get_mut(channel) {
            *asked = Clock::Boot.now();
            return Ok(());
        }
        let mut connection = ears.connection.clone();
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        subscribe.arg(channel);
        let answer = ask(&mut connection, &subscribe).await;
        self.note_of(&ears.silent_since, answer.as_ref().err());
        let answer = answer?;
        let first = {
            let channels = ears.channels.all();
            // The answer may be another's, if a slot has moved just now.
            if !channels.contains_key(channel) {
                return Err(unexpected(&answer));
            }
            channels.len() == 1
        };
        if first {
            // A script that may not publish does so in silence; it is better to be told now.
            let mut probe = redis::cmd("SPUBLISH");
            probe.arg(channel).arg("probe");
            self.send(&probe).await?;
        }
        self.give_up_idle(ears).await;
        Ok(())
    }

    /// Ends listening where nobody waits any more.
    async fn give_up_idle(&self, ears: &Ears) {
        let idle: Vec<String> = {
            let mut channels = ears.channels.all();
            if channels.len() < CHANNELS {
                return;
            }
            let now = Clock::Boot.now();
            let idle = channels.extract_if(|_, asked| now.since(*asked) > IDLE);
            idle.map(|(channel, _)| channel).collect()
        };
        for channel in idle {
            let mut connection = ears.connection.clone();
            let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
            unsubscribe.arg(&channel);
            // It fails only if the connection does.
            drop(ask(&mut connection, &unsubscribe).await);
        }
    }

    /// Waits until so many replicas have what was written over this connection. Returns how many have, `patience` later
    /// at most.
    pub(crate) async fn replicated(
        &self,
        replicas: u32,
        patience: Duration,
    ) -> Result<u32, RedisError> {
        let mut wait = redis::cmd("WAIT");
        let patience = patience.as_millis().max(1) as u64;
        wait.arg(replicas).arg(patience);
        match self.send(&wait).await? {
            Value::Int(count) => Ok(u32::try_from(count).unwrap_or(0)),
            other => Err(unexpected(&other)),
        }
    }

    /// Draws conclusions about the connection from what came of a request.
    pub(crate) fn note(&self, error: Option<&RedisError>) {
        self.note_of(&self.silent_since, error);
    }

    fn note_of(&self, silent_since: &AtomicU64, error: Option<&RedisError>) {
        match error.map(meaning) {
            None | Some(Meaning::Answered) => {
                if silent_since.load(Ordering::Relaxed) != 0 {
                    silent_since.store(0, Ordering::Relaxed);
                }
            }
            Some(Meaning::Silent) => {
                let now = Clock::Boot.now().as_nanos();
                let since = silent_since.load(Ordering::Relaxed);
                if since == 0 {
                    silent_since.store(now, Ordering::Relaxed);
                } else if Duration::from_nanos(now.saturating_sub(since)) > self.response_timeout {
                    // Nothing was answered for two timeouts: a new connection may do better.
                    self.break_off();
                }
            }
            Some(Meaning::Broken) => self.break_off(),
        }
    }

    /// Ends earlier connections at the server, so that nothing sent over them can still take effect. `true` in the place
    /// of each for which that is sure.
    pub(crate) async fn end_others(&self, client_ids: &[i64]) -> Vec<bool> {
        if client_ids.is_empty() {
            return Vec::new();
        }
        let mut kills = Pipeline::with_capacity(client_ids.len());
        for id in client_ids {
            kills.cmd("CLIENT").arg("KILL").arg("ID").arg(*id);
        }
        let answers = self.send_all(&kills).await.unwrap_or_default();
        let sure = answers.iter().map(|answer| matches!(answer, Value::Int(_)));
        sure.collect()
    }
}

/// Which server is connected to: the URL may name Sentinels, or several nodes.
pub(crate) fn connecting(client: &redis::Client) -> String {
    format!("connecting to {}", client.get_connection_info().addr())
}

/// One command; an error among the answers is an error.
pub(crate) async fn ask(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Value, RedisError> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

/// What is wrong with a server that answers like no Redis, or does not have the database.
fn not_redis(error: &RedisError) -> Option<&'static str> {
    if error.kind() == ErrorKind::Parse {
        return Some(NOT_REDIS);
    }
    let text = error.to_string();
    if text.contains("DB index is out of range") || text.contains("invalid DB index") {
        return Some(
            "the server does not have so many databases (`databases` in its redis.conf, which is 16 unless set); write a \
             lower number after the host",
        );
    }
    None
}

/// An answer that is not what a script of ours answers.
pub(crate) fn unexpected(value: &Value) -> RedisError {
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
