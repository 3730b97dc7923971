//! The Sentinels of a master: at which address it is, since when, and whether most of them still agree.

use std::collections::HashMap;

use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, Value};

use crate::config::{Address, Config};
use crate::error::explain;

/// How long one Sentinel may take to answer.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The interval between requests to the Sentinels, without a promotion-delay and with one.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORT_INTERVAL: Duration = Duration::from_millis(300);
/// With a promotion-delay: for how long the answer of most of them is valid.
const VALID_FOR: Duration = Duration::from_millis(1500);
/// With a promotion-delay: how long to wait for newer answers once most of them agree.
const LATE_ANSWERS: Duration = Duration::from_millis(100);
/// What is added to a promotion-delay: the time for which an answer is valid, and the time that the Sentinels that voted
/// may take to learn the outcome.
pub(crate) const MARGIN: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Sentinels {
    master: String,
    each: Vec<Sentinel>,
    /// Whether most of them must agree.
    strict: bool,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Sentinel {
    client: redis::Client,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The highest epoch that was believed: a Sentinel with a lower one does not know of the last fail-over.
    epoch: u64,
    /// The last answer of most of them, and when it was requested.
    confirmed: Option<(Address, BootInstant)>,
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) address: Address,
    /// The least time for which they had known it as the master, `at` the answer.
    pub(crate) age: Duration,
    pub(crate) at: BootInstant,
}

#[derive(Debug)]
struct Answer {
    address: Address,
    epoch: u64,
    age: Duration,
    /// Whether it considers the master up.
    up: bool,
    /// How many Sentinels it knows of, itself included.
    all: usize,
}

#[derive(Debug, Default)]
struct Answers {
    known: Vec<Answer>,
    /// How many Sentinels do not know the master.
    unknown: usize,
    failed: Option<Error>,
}

impl Sentinels {
    pub(crate) fn new(master: &str, clients: &[redis::Client], strict: bool) -> Self {
        let each = clients.iter().map(|client| Sentinel {
            client: client.clone(),
            connection: tokio::sync::Mutex::default(),
        });
        Self {
            master: master.to_owned(),
            each: each.collect(),
            strict,
            known: Mutex::default(),
        }
    }

    pub(crate) fn pause(&self) -> Duration {
        if self.strict {
            SHORT_INTERVAL
        } else {
            INTERVAL
        }
    }

    /// Asks all of them where the master is.
    pub(crate) async fn find(&self, config: &Config) -> Result<Found> {
        let asked_at = Clock::Boot.now();
        let Answers {
            known,
            unknown,
            failed,
        } = self.ask_all(config).await;
        if known.is_empty() && unknown > 0 {
            let why = format!(
                "no Sentinel knows a master {:?}; write the master's name as the Sentinels have it",
                self.master
            );
            return Err(Error::config(&config.store, ConfigPart::Server, why));
        }
        let Some(all) = known.iter().map(|answer| answer.all).max() else {
            let silent = || self.unavailable(config, "no Sentinel answers".into());
            return Err(failed.unwrap_or_else(silent));
        };
        if self.strict && self.each.len() <= all / 2 {
            let most = all / 2 + 1;
            let why = format!(
                "promotion-delay needs the answers of most of the Sentinels, which are {all}; name at least {most} of them"
            );
            return Err(Error::config(&config.store, ConfigPart::Server, why));
        }
        self.decide(config, &known, all, asked_at)
    }

    async fn ask_all(&self, config: &Config) -> Answers {
        let timeout = TIMEOUT.max(config.response_timeout);
        let asked = self
            .each
            .iter()
            .map(|one| async move { (one.ask(&self.master, timeout).await, one) });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut answers = Answers::default();
        loop {
            // Their answer is valid for a short time only: a Sentinel that hangs must not use that up.
            let decided = self.strict && agree(&answers.known);
            let timeout = if decided { LATE_ANSWERS } else { Duration::MAX };
            let Ok(Some((answer, one))) = tokio::time::timeout(timeout, asked.next()).await else {
                return answers;
            };
            match answer {
                Ok(Some(answer)) => answers.known.push(answer),
                Ok(None) => answers.unknown += 1,
                Err(error) => {
                    let addr = one.client.get_connection_info().addr();
                    let action = format!("asking the Sentinel at {addr}");
                    answers.failed = Some(explain(&config.store, &action, None, error));
                }
            }
        }
    }

    /// Which address to use. `all` is the number of Sentinels.
    fn decide(
        &self,
        config: &Config,
        answers: &[Answer],
        all: usize,
        asked_at: BootInstant,
    ) -> Result<Found> {
        let most = all / 2 + 1;
        let mut known = self.known.lock();
        let Some(newest) = answers.iter().max_by_key(|answer| answer.epoch) else {
            return Err(self.unavailable(config, "no Sentinel answers".into()));
        };
        if newest.epoch < known.epoch && answers.len() < most {
            let cause = "the Sentinels that answer have not heard of the last fail-over";
            return Err(self.unavailable(config, cause.into()));
        }
        let address = newest.address.clone();
        let agree: Vec<_> = answers.iter().filter(|a| a.address == address).collect();
        let up = agree.iter().filter(|answer| answer.up).count();
        if up >= most {
            known.confirmed = Some((address.clone(), asked_at));
        } else if self.strict {
            let (host, port) = &address;
            let cause =
                format!("only {up} of {all} Sentinels say that the master at {host}:{port} is up");
            return Err(self.unavailable(config, cause));
        }
        known.epoch = newest.epoch;
        let age = agree.iter().map(|answer| answer.age).max();
        Ok(Found {
            address,
            age: age.unwrap_or_default(),
            at: Clock::Boot.now(),
        })
    }

    fn unavailable(&self, config: &Config, cause: String) -> Error {
        let action = format!("finding the master {}", self.master);
        Error::unavailable(&config.store, action, cause)
    }

    /// Whether the server at this address still counts as the master.
    ///
    /// # Errors
    /// With a promotion-delay: if most of the Sentinels have not said so recently.
    pub(crate) fn check(&self, store: &str, address: Option<&Address>) -> Result<()> {
        if !self.strict {
            return Ok(());
        }
        match &self.known.lock().confirmed {
            Some((confirmed, asked_at))
                if Some(confirmed) == address && Clock::Boot.now().since(*asked_at) < VALID_FOR =>
            {
                Ok(())
            }
            _ => {
                let cause =
                    "most of the Sentinels have not confirmed it recently (promotion-delay)";
                let action = format!("making sure of the master {}", self.master);
                Err(Error::unavailable(store, action, cause))
            }
        }
    }
}

/// Whether most of them give the same address and say that the master is up, and none has a newer answer.
fn agree(answers: &[Answer]) -> bool {
    let all = answers.iter().map(|answer| answer.all).max().unwrap_or(0);
    let newest = answers.iter().max_by_key(|answer| answer.epoch);
    newest.is_some_and(|newest| {
        let same = |answer: &&Answer| answer.up && answer.address == newest.address;
        answers.iter().filter(same).count() > all / 2
    })
}

impl Sentinel {
    /// `None` if it does not know the master.
    async fn ask(&self, master: &str, timeout: Duration) -> Result<Option<Answer>, RedisError> {
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let settings = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(timeout))
                    .set_response_timeout(Some(timeout));
                let client = &self.client;
                let connected = client.get_multiplexed_async_connection_with_config(&settings);
                connected.await?
            }
        };
        let mut questions = Pipeline::with_capacity(2);
        questions
            .cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(master);
        questions.cmd("SENTINEL").arg("MASTER").arg(master);
        let answers = connection.send_packed_commands(&questions, 0, 2).await?;
        *kept = Some(connection);
        drop(kept);
        Answer::read(&answers)
    }
}

impl Answer {
    /// Reads the replies to `GET-MASTER-ADDR-BY-NAME` and `MASTER`.
    fn read(answers: &[Value]) -> Result<Option<Self>, RedisError> {
        let [address, about] = answers else {
            return Ok(None);
        };
        if let Value::ServerError(error) = address {
            return Err(error.clone().into());
        }
        let address: Option<Address> = redis::from_redis_value(address.clone())?;
        let Some(address) = address else {
            return Ok(None);
        };
        if let Value::ServerError(error) = about {
            return Err(error.clone().into());
        }
        let about: HashMap<String, String> = redis::from_redis_value(about.clone())?;
        let get = |field: &str| about.get(field).map(String::as_str);
        let number = |field| get(field).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        // During a fail-over it still describes the former master.
        let described = (get("ip"), number("port")) == (Some(&address.0), address.1.into());
        let flags = get("flags").unwrap_or_default();
        let down = flags.contains("_down") || flags.contains("failover");
        let age = if described {
            number("role-reported-time")
        } else {
            0
        };
        Ok(Some(Self {
            epoch: number("config-epoch"),
            age: Duration::from_millis(age),
            up: !described || !down,
            all: usize::try_from(number("num-other-sentinels")).unwrap_or(0) + 1,
            address,
        }))
    }
}
