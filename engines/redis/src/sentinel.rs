//! The Sentinels of a master: who it is, since when, and whether most of them say so still.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, Value};

use crate::config::Address;
use crate::error::explain;
use crate::hub::Hub;
use crate::node::{Node, age};

/// How long one Sentinel may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often they are asked, without and with a promotion-delay.
const SELDOM: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_millis(300);
/// With a promotion-delay: for how long the word of most of them is good.
const GOOD_FOR: Duration = Duration::from_millis(1500);
/// And for how long the others may still tell of news once most of them agree.
const LAGGARDS: Duration = Duration::from_millis(100);
/// By how much a promotion-delay is prolonged: for as long as their word is good, and for as long as those who voted
/// may take to hear what came of it.
pub(crate) const MARGIN: Duration = Duration::from_secs(3);

/// The Sentinels.
#[derive(Debug)]
pub(crate) struct Sentinels {
    master: String,
    each: Vec<Sentinel>,
    /// Whether most of them must agree.
    strict: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Sentinel {
    client: redis::Client,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

#[derive(Debug, Default)]
struct State {
    /// The highest epoch that was believed: who names a lower one has not heard the news.
    epoch: u64,
    /// What most of them said last, and when they were asked.
    confirmed: Option<(Address, BootInstant)>,
}

/// Where the master is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) address: Address,
    /// For how long they have known it as the master at least.
    pub(crate) age: Duration,
    pub(crate) asked_at: BootInstant,
}

/// What one of them says.
#[derive(Debug)]
struct Answer {
    address: Address,
    epoch: u64,
    age: Duration,
    /// It does not take the master for down.
    up: bool,
    /// How many Sentinels there are, as it knows.
    all: usize,
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
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all of them.
    pub(crate) async fn find(&self, hub: &Hub) -> Result<Found> {
        let asked_at = Clock::Boot.now();
        let patience = PATIENCE.max(hub.config.response_timeout);
        let asked = self
            .each
            .iter()
            .map(|one| async move { (one.ask(&self.master, patience).await, one) });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut answers, mut failed, mut strangers) = (Vec::<Answer>::new(), None, 0);
        loop {
            // Their word is good for a short time only: one that hangs must not use that up.
            let decided = self.strict && agree(&answers);
            let patience = if decided { LAGGARDS } else { Duration::MAX };
            let Ok(Some((answer, one))) = tokio::time::timeout(patience, asked.next()).await else {
                break;
            };
            match answer {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => strangers += 1,
                Err(error) => {
                    let addr = one.client.get_connection_info().addr();
                    let action = format!("asking the Sentinel at {addr}");
                    failed = Some(explain(hub.store(), &action, None, error));
                }
            }
        }
        drop(asked);
        if answers.is_empty() && strangers > 0 {
            let why = format!("no Sentinel knows a master {:?}", self.master);
            return Err(Error::config(hub.store(), why));
        }
        let unavailable = |cause: String| {
            let action = format!("finding the master {}", self.master);
            Error::unavailable(hub.store(), action, cause)
        };
        let all = answers.iter().map(|answer| answer.all).max();
        let Some(all) = all else {
            let nobody = || unavailable("no Sentinel answers".into());
            return Err(failed.unwrap_or_else(nobody));
        };
        let most = all / 2 + 1;
        if self.strict && self.each.len() < most {
            let why = format!(
                "promotion-delay needs the word of most of the Sentinels, which are {all}; name {most} of them at least"
            );
            return Err(Error::config(hub.store(), why));
        }
        let mut state = self.state();
        let newest = answers.iter().map(|answer| answer.epoch).max().unwrap_or(0);
        if newest < state.epoch && answers.len() < most {
            return Err(unavailable(
                "the Sentinels that answer have not heard of the last fail-over".into(),
            ));
        }
        let latest = answers.iter().find(|answer| answer.epoch == newest);
        let address = latest.map(|answer| answer.address.clone());
        // There is an answer.
        let Some(address) = address else {
            return Err(unavailable("no Sentinel answers".into()));
        };
        let agree: Vec<_> = answers.iter().filter(|a| a.address == address).collect();
        let up = agree.iter().filter(|answer| answer.up).count();
        let count = agree.len();
        if up >= most {
            state.confirmed = Some((address.clone(), asked_at));
        } else if self.strict {
            return Err(unavailable(format!(
                "only {up} of {all} Sentinels say that the master at {}:{} is up",
                address.0, address.1
            )));
        }
        tracing::trace!(count, all, "Sentinels agree");
        state.epoch = newest;
        let age = agree.iter().map(|answer| answer.age).max();
        Ok(Found {
            address,
            age: age.unwrap_or_default(),
            asked_at,
        })
    }

    /// Whether the node may be believed to be the master still.
    pub(crate) fn check(&self, store: &str, node: &Node) -> Result<()> {
        if !self.strict {
            return Ok(());
        }
        let confirmed = self.state().confirmed.clone();
        let confirmed = confirmed.filter(|(address, _)| Some(address) == node.address().as_ref());
        match confirmed {
            Some((_, asked_at)) if age(asked_at) < GOOD_FOR => Ok(()),
            _ => {
                let cause = "most of the Sentinels have not confirmed it of late (promotion-delay)";
                let action = format!("making sure of the master {}", self.master);
                Err(Error::unavailable(store, action, cause))
            }
        }
    }
}

/// Whether most of them say the same, that it is up, and none of those heard knows of later news.
fn agree(answers: &[Answer]) -> bool {
    let all = answers.iter().map(|answer| answer.all).max().unwrap_or(0);
    let newest = answers.iter().max_by_key(|answer| answer.epoch);
    newest.is_some_and(|newest| {
        let same = |answer: &&Answer| answer.up && answer.address == newest.address;
        answers.iter().filter(same).count() > all / 2
    })
}

impl Sentinel {
    /// `None`: it does not know the master.
    async fn ask(&self, master: &str, patience: Duration) -> Result<Option<Answer>, RedisError> {
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let settings = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(patience))
                    .set_response_timeout(Some(patience));
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
        let [address, about] = &answers[..] else {
            return Ok(None);
        };
        if let Value::ServerError(error) = address {
            return Err(error.clone().into());
        }
        let address: Option<(String, u16)> = redis::from_redis_value(address.clone())?;
        let Some(address) = address else {
            return Ok(None);
        };
        if let Value::ServerError(error) = about {
            return Err(error.clone().into());
        }
        let about: std::collections::HashMap<String, String> =
            redis::from_redis_value(about.clone())?;
        let get = |field: &str| about.get(field).map(String::as_str);
        let number = |field| get(field).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let described = (get("ip"), number("port")) == (Some(&address.0), address.1.into());
        let flags = get("flags").unwrap_or_default();
        let down = flags.contains("_down") || flags.contains("failover");
        Ok(Some(Answer {
            epoch: number("config-epoch"),
            // While a fail-over goes on it still describes the master before.
            age: Duration::from_millis(if described {
                number("role-reported-time")
            } else {
                0
            }),
            up: !described || !down,
            all: usize::try_from(number("num-other-sentinels")).unwrap_or(0) + 1,
            address,
        }))
    }
}

/// Asks them again and again, and leaves a master that is none any more, until the hub is gone.
pub(crate) fn watch(sentinels: &Arc<Sentinels>, hub: &Arc<Hub>, node: &Arc<Node>) {
    let pause = if sentinels.strict { OFTEN } else { SELDOM };
    let sentinels = Arc::clone(sentinels);
    let (hub, node) = (Arc::downgrade(hub), Arc::downgrade(node));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            let (Some(hub), Some(node)) = (hub.upgrade(), node.upgrade()) else {
                return;
            };
            match sentinels.find(&hub).await {
                Ok(found) if node.address().is_some_and(|here| here != found.address) => {
                    let (host, port) = &found.address;
                    tracing::info!(
                        store = hub.store(),
                        host,
                        port,
                        "another server is the master now"
                    );
                    node.leave();
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(store = hub.store(), %error, "the Sentinels were asked in vain");
                }
            }
        }
    });
}
