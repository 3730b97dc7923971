//! A lock on Redis without a library: `SET NX PX`, and a script that compares and deletes.

use std::time::{Duration, Instant};

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError, cmd};

use super::failed;

pub(super) const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// One connection, shared by all tasks, as in the library.
#[derive(Clone)]
pub(crate) struct BareRedis {
    client: Client,
    connection: MultiplexedConnection,
    release: String,
}

impl BareRedis {
    /// A connection to the server that `url` names.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let refuse = |error: RedisError| Error::unavailable(url_shown(url), "connect", error);
        let client = client(url)?;
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(1024);
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(refuse)?;
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(RELEASE);
        let release = load.query_async(&mut connection).await.map_err(refuse)?;
        Ok(Self {
            client,
            connection,
            release,
        })
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let refuse = |error: RedisError| failed("the bare Redis client", error);
        let mut connection = self.connection.clone();
        let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
        let mut pairs = 0;
        for name in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            let mut take = cmd("SET");
            take.arg(name).arg(&value).arg("NX").arg("PX").arg(30_000);
            let taken: bool = take.query_async(&mut connection).await.map_err(refuse)?;
            let mut release = cmd("EVALSHA");
            release.arg(&self.release).arg(1).arg(name).arg(&value);
            let released: u32 = release.query_async(&mut connection).await.map_err(refuse)?;
            if !taken || released != 1 {
                return Err(failed(
                    "the bare Redis client",
                    format!("{name} was not free"),
                ));
            }
            pairs += 1;
        }
        Ok(pairs)
    }

    /// How long each of `count` PINGs takes, one after the other, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let mut connection = self.connection.clone();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Instant::now();
            let answer: Result<String, _> = cmd("PING").query_async(&mut connection).await;
            answer.map_err(|error| failed("PING", error))?;
            times.push(begun.elapsed().as_nanos() as f64);
        }
        Ok(times)
    }

    /// How many commands the server has run since its start, including those that scripts call.
    pub(crate) async fn commands_so_far(&self) -> Result<u64> {
        let mut connection = self.connection.clone();
        let stats: Result<String, _> = cmd("INFO").arg("stats").query_async(&mut connection).await;
        let stats = stats.map_err(|error| failed("INFO", error))?;
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"));
        let count = count.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| failed("INFO", "it has no total_commands_processed"))
    }

    /// The number of commands that clients send to the server within `period`, except those that scripts call.
    pub(crate) async fn commands_within(&self, period: Duration) -> Result<u64> {
        let monitor = self.client.get_async_monitor().await;
        let monitor = monitor.map_err(|error| failed("MONITOR", error))?;
        let mut lines = monitor.into_on_message::<String>();
        let mut commands = 0;
        let count = async {
            while let Some(line) = lines.next().await {
                // `<time> [<db> <address, or lua>] "<command>" ...`
                let caller = line.split(']').next().unwrap_or_default();
                commands += u64::from(!caller.ends_with(" lua"));
            }
        };
        match tokio::time::timeout(period, count).await {
            Err(_) => Ok(commands),
            Ok(()) => Err(failed("MONITOR", "the server ended the connection")),
        }
    }
}

/// The crate's own client for a store's URL.
pub(crate) fn client(url: &str) -> Result<Client> {
    let mut parts = StoreUrl::parse(url)?;
    let password = parts.take_password()?;
    let address = match parts.scheme.as_str() {
        "redis" | "valkey" => {
            let host = parts.hosts.first().map_or("127.0.0.1", String::as_str);
            format!("redis://{host}")
        }
        "redis+unix" => format!("redis+unix:///{}", parts.path),
        other => {
            let why = format!(
                "there is no baseline for {other}:, only for redis:, valkey: and redis+unix:"
            );
            return Err(parts.refuse(why));
        }
    };
    let refuse = |error: RedisError| parts.refuse(error.to_string());
    let info = address.into_connection_info().map_err(refuse)?;
    let mut settings = info.redis_settings().clone();
    if let Some(user) = &parts.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    if parts.scheme != "redis+unix" && !parts.path.is_empty() {
        let db = parts.path.parse();
        settings = settings.set_db(db.map_err(|_| parts.refuse("its database is not a number"))?);
    }
    Client::open(info.set_redis_settings(settings)).map_err(refuse)
}

fn url_shown(url: &str) -> String {
    StoreUrl::parse(url).map_or_else(|_| "(no URL)".into(), |url| url.to_string())
}
