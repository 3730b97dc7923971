//! How a connection is opened and prepared, and which servers are refused.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, FromRedisValue, Pipeline, PushInfo, PushKind, RedisError,
    Value,
};
use tokio::sync::{Notify, Semaphore};

use crate::config::Deployment;
use crate::connection::{Connection, ask, in_millis};
use crate::error::{NOT_REDIS, explain};
use crate::health::{Health, Silence};
use crate::keys::COUNTER;
use crate::server::ServerInfo;
use crate::slot_channels::{SlotChannels, Subscriptions};
use crate::state::State;
use crate::together::{Sending, Together};
use crate::uptime::Uptime;

/// How many requests may wait in this process for the socket.
const BUFFER: usize = 1024;
/// How many requests of the frequent kinds may be under way. The rest is for other requests, such as renewals and batches.
const TURNS: usize = BUFFER - 256;

/// Connects. `listen` gets the server's pushes.
pub(crate) async fn connect(
    client: &redis::Client,
    timeout: Duration,
    listen: impl Fn(&PushInfo) + Send + Sync + 'static,
) -> Result<MultiplexedConnection, RedisError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_pipeline_buffer_size(BUFFER)
        .set_push_sender(move |push: PushInfo| {
            listen(&push);
            Ok::<(), ()>(())
        });
    let connected = client.get_multiplexed_async_connection_with_config(&settings);
    connected.await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Full,
    /// For writing and waiting for replicas. It does not listen.
    Write,
    /// For inspection. It neither listens nor writes, so the server and the user need not allow writes.
    Look,
}

#[derive(Debug)]
pub(crate) enum Push<'a> {
    Message(&'a [u8]),
    /// The server no longer sends the messages of a slot.
    SlotMoved,
}

/// What to do with pushes. It is called in order with the replies.
pub(crate) type OnPush = Arc<dyn Fn(Push<'_>) + Send + Sync>;

pub(crate) struct Setup<'a> {
    pub(crate) state: &'a State,
    pub(crate) uptime: &'a Uptime,
    pub(crate) client: redis::Client,
    pub(crate) purpose: Purpose,
    pub(crate) generation: u64,
    /// Notified when the connection breaks.
    pub(crate) wake_up: Arc<Notify>,
}

fn failed(state: &State, action: &'static str) -> impl Fn(RedisError) -> Error {
    move |error| state.failed(action, None, error)
}

/// The action of connecting to this server, for errors. The URL may have Sentinels, or several nodes.
pub(crate) fn connecting(client: &redis::Client) -> String {
    format!("connecting to {}", client.get_connection_info().addr())
}

impl Setup<'_> {
    /// Connects, listens, and lifts the counter of tokens.
    pub(crate) async fn open(self, on_push: OnPush) -> Result<(Connection, ServerInfo)> {
        let config = &self.state.config;
        let (store, timeout) = (&config.store, config.connect_timeout);
        let action = connecting(&self.client);
        match tokio::time::timeout(timeout, self.prepare(on_push)).await {
            Ok(prepared) => prepared,
            Err(_) => {
                let cause = format!(
                    "no answer within {timeout:?}; is the server up and reachable (connect-timeout)?"
                );
                Err(Error::unavailable(store, action, cause))
            }
        }
    }

    async fn prepare(self, on_push: OnPush) -> Result<(Connection, ServerInfo)> {
        let config = &self.state.config;
        let health = Arc::new(Health::new(
            config.response_timeout,
            Arc::clone(&self.wake_up),
        ));
        let subscriptions = Subscriptions::default();
        let listener = || Listener {
            health: Arc::clone(&health),
            subscriptions: subscriptions.clone(),
            on_push: Arc::clone(&on_push),
        };
        let mut driver = self.connect(listener()).await?;
        let listens = self.purpose == Purpose::Full;
        if listens {
            self.subscribe(&mut driver).await?;
        }
        let (client_id, info) = self.ask_who(&mut driver).await?;
        self.check(&info)?;
        let asked_at = Clock::Boot.now();
        let (floor, server_time) = self.prepare_counter(&mut driver).await?;
        let slot_channels = match listens && config.is_cluster() {
            true => {
                let mut second = self.connect(listener()).await?;
                second.set_response_timeout(config.response_timeout);
                let health = Arc::clone(&health);
                Some(SlotChannels::new(second, subscriptions, health))
            }
            false => None,
        };
        driver.set_response_timeout(config.response_timeout);
        let ran = match config.delays() && self.purpose != Purpose::Look {
            true => {
                let ran = self.uptime.ran(&mut driver, &info, self.state, asked_at);
                ran.await
            }
            false => None,
        };
        let grants_from = ran.and_then(|ran| self.grants_from(ran, asked_at));
        let silence = Arc::<Silence>::default();
        let together =
            (listens && !config.timed()).then(|| self.together(&driver, &health, &silence));
        let connection = Connection {
            driver,
            health,
            silence,
            together,
            turns: Semaphore::new(TURNS),
            slot_channels,
            client: self.client,
            generation: self.generation,
            client_id,
            run_id: info.run_id(),
            ran,
            floor,
            grants_from,
            ahead: AtomicI64::new(server_time - in_millis(asked_at)),
            response_timeout: config.response_timeout,
        };
        Ok((connection, info))
    }

    /// When a server that had run for `ran` at `asked_at` grants, if it does not grant yet.
    fn grants_from(&self, ran: Duration, asked_at: BootInstant) -> Option<BootInstant> {
        let delay = self.state.config.restart_delay;
        let left = delay.checked_sub(ran)?;
        (!delay.is_zero()).then(|| asked_at + left)
    }

    /// Sends requests that come together as one.
    fn together(
        &self,
        driver: &MultiplexedConnection,
        health: &Arc<Health>,
        silence: &Arc<Silence>,
    ) -> Together {
        Together::new(Sending {
            driver: driver.clone(),
            health: Arc::clone(health),
            silence: Arc::clone(silence),
            release_all: Arc::clone(&self.state.scripts.release_all),
            take_all: Arc::clone(&self.state.scripts.take_all),
        })
    }

    async fn connect(&self, listener: Listener) -> Result<MultiplexedConnection> {
        let config = &self.state.config;
        let client = &self.client;
        let listen = move |push: &PushInfo| listener.receive(push);
        let connected = connect(client, config.connect_timeout, listen);
        connected.await.map_err(|error| {
            let text = error.to_string();
            if text.contains("unknown command") || text.contains("NOPROTO") {
                let why = format!("Redis 6 or later is needed, with RESP3: {text}");
                return Error::config(&config.store, ConfigPart::Server, why);
            }
            if self.is_first()
                && let Some(why) = permanent(&error)
            {
                return Error::config(&config.store, ConfigPart::Server, why);
            }
            explain(&config.store, &connecting(client), None, error)
        })
    }

    /// Whether this is the first connection. For a later one, a problem of the server may be temporary, since another server
    /// may replace it.
    fn is_first(&self) -> bool {
        self.generation == 1
    }

    /// Listens to the channel of this process, and checks that this user may publish to it.
    async fn subscribe(&self, driver: &mut MultiplexedConnection) -> Result<()> {
        let channel = format!("fencelock:{}", self.state.channel);
        let subscribed = driver.subscribe(&channel).await;
        subscribed.map_err(failed(self.state, "subscribing to a channel fencelock:*"))?;
        let mut probe = redis::cmd("PUBLISH");
        probe.arg(&channel).arg("probe");
        let probed = ask(driver, &probe).await;
        probed.map_err(failed(self.state, "publishing to a channel fencelock:*"))?;
        Ok(())
    }

    /// The id of the connection, and the information that the server gives.
    async fn ask_who(
        &self,
        driver: &mut MultiplexedConnection,
    ) -> Result<(Option<i64>, ServerInfo)> {
        let mut questions = Pipeline::with_capacity(4);
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO");
        questions.cmd("CONFIG").arg("GET").arg("appendfsync");
        questions.cmd("INFO").arg("commandstats");
        let answers = driver.send_packed_commands(&questions, 0, 4).await;
        let answers = answers.map_err(failed(self.state, "asking the server about itself"))?;
        let client_id = match answers.first() {
            Some(Value::Int(id)) => Some(*id),
            _ => None,
        };
        let info = ServerInfo::new(answers.get(1), answers.get(2)).with_stats(answers.get(3));
        Ok((client_id, info))
    }

    /// Refuses a server on which this engine cannot work.
    fn check(&self, info: &ServerInfo) -> Result<()> {
        let config = &self.state.config;
        let refuse = |why: String| Err(Error::config(&config.store, ConfigPart::Server, why));
        if let Some(why) = info.unfit(config.is_cluster()) {
            return refuse(why.to_owned());
        }
        if self.purpose == Purpose::Look {
            return Ok(());
        }
        if self.is_first()
            && matches!(config.deployment, Deployment::One)
            && let Some(master) = info.master()
        {
            return refuse(format!(
                "it is a replica, on which no lock can be taken; name its master, which it says is {master}, or let \
                 Sentinels name it (redis+sentinel://)"
            ));
        }
        if !config.restart_delay.is_zero() && info.run_id().is_none() {
            return refuse(
                "restart-delay needs the start time of the server; allow the command INFO to this user"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Lifts the counter of tokens to the server's time. Returns the counter, and the time in ms.
    async fn prepare_counter(&self, driver: &mut MultiplexedConnection) -> Result<(u64, i64)> {
        if self.purpose == Purpose::Look {
            // It draws no tokens, and its requests have no deadline.
            return Ok((0, 0));
        }
        if self.state.config.is_cluster() {
            // Each slot has a counter, and every token is at least the server's time.
            let time = ask(driver, &redis::cmd("TIME")).await;
            let time = time.and_then(|value| Ok(<(i64, i64)>::from_redis_value(value)?));
            let (seconds, micros) = time.map_err(failed(self.state, "asking for the time"))?;
            return Ok((0, seconds * 1000 + micros / 1000));
        }
        let mut seed = redis::cmd("EVAL");
        seed.arg(&self.state.scripts.seed.text).arg(1).arg(COUNTER);
        let seeded = ask(driver, &seed).await;
        let seeded = seeded.and_then(|value| Ok(<(u64, i64)>::from_redis_value(value)?));
        seeded.map_err(failed(self.state, "preparing the counter of tokens"))
    }
}

/// Receives the pushes of one connection.
struct Listener {
    health: Arc<Health>,
    subscriptions: Subscriptions,
    on_push: OnPush,
}

impl Listener {
    fn receive(&self, push: &PushInfo) {
        let bytes = |at| match push.data.get(at) {
            Some(Value::BulkString(bytes)) => Some(&bytes[..]),
            Some(Value::SimpleString(text)) => Some(text.as_bytes()),
            _ => None,
        };
        let channel = || String::from_utf8_lossy(bytes(0).unwrap_or_default());
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(payload) = bytes(1) {
                    (self.on_push)(Push::Message(payload));
                }
            }
            PushKind::SSubscribe => self.subscriptions.confirmed(&channel()),
            PushKind::SUnsubscribe if self.subscriptions.ended(&channel()) => {
                (self.on_push)(Push::SlotMoved);
            }
            PushKind::Disconnection => self.health.break_off(),
            _ => {}
        }
    }
}

/// Why a server can never be used, according to its error.
fn permanent(error: &RedisError) -> Option<&'static str> {
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
