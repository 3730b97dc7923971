//! One connection to one node. It never reconnects: `membership.rs` replaces a broken one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{ConfigPart, Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use super::batcher::{Batcher, OnReplies};
use crate::connect::connect;
use crate::error::explain;
use crate::health::Health;
use crate::reply::unexpected;
use crate::server::ServerInfo;

#[derive(Debug)]
pub(crate) struct Connection {
    batcher: Batcher,
    health: Arc<Health>,
    /// Changes with every start of the server.
    pub(crate) run_id: String,
    /// The least time that the server had run when the connection was made, measured without clocks that can be set.
    pub(crate) ran: Duration,
    /// Whether the server evicts keys when memory is short.
    pub(crate) evicts: bool,
    /// Whether the server votes, as far as this connection knows. Then it has the scripts.
    member: AtomicBool,
    /// No counter of a member is below this.
    floor: AtomicU64,
}

pub(crate) struct Setup<'a> {
    pub(crate) client: &'a redis::Client,
    pub(crate) node: &'a str,
    /// The channel of this process, after `fencelock:`.
    pub(crate) channel: &'a str,
    pub(crate) connect_timeout: Duration,
    /// How long the node may be silent before the connection counts as broken.
    pub(crate) response_timeout: Duration,
    /// Notified when the connection breaks.
    pub(crate) wake_up: Arc<Notify>,
}

impl Setup<'_> {
    /// Connects, listens to the channel of this process, and reads the server's identity. `hear` gets the payload of each
    /// message.
    pub(crate) async fn open(
        self,
        hear: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Connection> {
        match tokio::time::timeout(self.connect_timeout, self.prepare(hear)).await {
            Ok(prepared) => prepared,
            Err(_) => {
                let cause = format!(
                    "no answer within {:?} (connect-timeout)",
                    self.connect_timeout
                );
                Err(Error::unavailable(self.node, "connecting", cause))
            }
        }
    }

    async fn prepare(&self, hear: impl Fn(&[u8]) + Send + Sync + 'static) -> Result<Connection> {
        let health = Arc::new(Health::new(
            self.response_timeout,
            Arc::clone(&self.wake_up),
        ));
        let listen = {
            let health = Arc::clone(&health);
            move |push: &PushInfo| match (&push.kind, push.data.get(1)) {
                (PushKind::Message, Some(Value::BulkString(payload))) => hear(payload),
                (PushKind::Disconnection, _) => health.break_off(),
                _ => {}
            }
        };
        let connected = connect(self.client, self.connect_timeout, listen).await;
        let mut driver = connected.map_err(|error| self.failed("connecting", error))?;
        let info = self.ask_who(&mut driver).await?;
        let refuse = |why| Err(Error::config(self.node, ConfigPart::Server, why));
        if info.get("redis_mode") == Some("sentinel") || info.get("cluster_enabled") == Some("1") {
            return refuse(
                "it is a Sentinel or a node of a cluster; each node of a redlock is a server of its own",
            );
        }
        let Some(run_id) = info.run_id() else {
            return refuse(
                "it does not say when it was started; allow the command INFO to this user",
            );
        };
        driver.set_response_timeout(self.response_timeout);
        let limited = info.get("maxmemory").is_some_and(|most| most != "0");
        Ok(Connection {
            batcher: Batcher::new(driver, Arc::clone(&health)),
            health,
            run_id,
            ran: info.ran(),
            evicts: limited && info.get("maxmemory_policy") != Some("noeviction"),
            member: AtomicBool::new(false),
            floor: AtomicU64::new(0),
        })
    }

    async fn ask_who(&self, driver: &mut MultiplexedConnection) -> Result<ServerInfo> {
        let channel = format!("fencelock:{}", self.channel);
        let subscribed = driver.subscribe(&channel).await;
        subscribed.map_err(|error| self.failed("subscribing to a channel fencelock:*", error))?;
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("PUBLISH").arg(&channel).arg("probe");
        questions.cmd("INFO");
        let answers = driver.send_packed_commands(&questions, 0, 2).await;
        let answers =
            answers.map_err(|error| self.failed("asking the server about itself", error))?;
        let actions = ["publishing to a channel fencelock:*", "INFO"];
        for (answer, action) in answers.iter().zip(actions) {
            if let Value::ServerError(error) = answer {
                return Err(self.failed(action, error.clone().into()));
            }
        }
        Ok(ServerInfo::new(answers.get(1), None))
    }

    fn failed(&self, action: &str, error: RedisError) -> Error {
        explain(self.node, action, None, error)
    }
}

impl Connection {
    pub(crate) fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    pub(crate) fn break_off(&self) {
        self.health.break_off();
    }

    /// Whether the server votes and has the scripts.
    pub(crate) fn is_member(&self) -> bool {
        self.member.load(Ordering::SeqCst)
    }

    pub(crate) fn set_member(&self, floor: u64) {
        self.floor.store(floor, Ordering::SeqCst);
        self.member.store(true, Ordering::SeqCst);
    }

    /// The counters of a member are not below this.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::SeqCst)
    }

    /// Sends one command, even if the future is dropped. An error that the server replies is an error.
    pub(crate) fn ask(
        &self,
        command: &Cmd,
    ) -> impl Future<Output = Result<Value, RedisError>> + Send + use<> {
        let answers = self.ask_all(std::slice::from_ref(command));
        async move {
            match answers.await?.pop() {
                Some(Value::ServerError(error)) => Err(error.into()),
                Some(value) => Ok(value),
                None => Err(unexpected(&Value::Nil)),
            }
        }
    }

    /// Sends several commands at once. The error of one command takes the place of its reply.
    pub(crate) fn ask_all(
        &self,
        commands: &[Cmd],
    ) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send + use<> {
        self.batcher.ask(commands)
    }

    /// Sends several commands at once. `clock`: the replies include the node's time.
    pub(crate) fn send(&self, commands: &[Cmd], clock: bool, on_replies: OnReplies) {
        self.batcher.send(commands, clock, on_replies);
    }
}
