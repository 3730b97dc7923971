//! One connection to the server. It never reconnects: the node replaces a broken connection (`node.rs`), so that no request
//! is sent twice without its caller knowing.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::is_noscript;
use crate::health::{Health, Silence};
use crate::reply::unexpected;
use crate::scripts::Script;
use crate::slot_channels::SlotChannels;
use crate::together::Together;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) driver: MultiplexedConnection,
    pub(crate) health: Arc<Health>,
    pub(crate) silence: Arc<Silence>,
    /// Requests that may be sent in batches. Only with one server, and if grants do not wait for replicas.
    pub(crate) together: Option<Together>,
    /// For requests of which there may be many at once.
    pub(crate) turns: Semaphore,
    /// Only in a cluster.
    pub(crate) slot_channels: Option<SlotChannels>,
    /// With the server's address and credentials.
    pub(crate) client: redis::Client,
    /// The number of this connection among those of the store, from 1.
    pub(crate) generation: u64,
    /// The server's id of this connection.
    pub(crate) client_id: Option<i64>,
    pub(crate) run_id: Option<String>,
    /// The least time that the server had run when the connection was made. Known only if a delay depends on it.
    pub(crate) ran: Option<Duration>,
    /// The counter can no longer be below this.
    pub(crate) floor: u64,
    /// Before this instant nothing is granted over this connection (see `restart-delay`).
    pub(crate) grants_from: Option<BootInstant>,
    /// An upper bound of the server's time minus this machine's, in ms.
    pub(crate) ahead: AtomicI64,
    pub(crate) response_timeout: Duration,
}

impl Connection {
    pub(crate) fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    /// Marks the connection broken, so that the node replaces it.
    pub(crate) fn break_off(&self) {
        self.health.break_off();
    }

    /// Judges the connection by the outcome of a request.
    pub(crate) fn note(&self, error: Option<&RedisError>) {
        self.health.note(&self.silence, error);
    }

    /// The server's time in ms after which a request sent now arrives too late.
    pub(crate) fn deadline(&self) -> i64 {
        // Twice the timeout: the server's reply may be on its way while the client gives up.
        let allowed = 2 * i64::try_from(self.response_timeout.as_millis()).unwrap_or(i64::MAX / 4);
        in_millis(Clock::Boot.now()) + self.ahead.load(Ordering::Relaxed) + allowed
    }

    /// Notes that the server's clock was set: `millis` is its time.
    pub(crate) fn set_server_time(&self, asked_at: BootInstant, millis: i64) {
        let ahead = millis - in_millis(asked_at);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Waits while too many requests are under way. The driver starts the response timeout when it gets the request, even while
    /// its buffer is full. So a request that waits there would fail without having been sent.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // This cannot fail: it is never closed.
        self.turns.acquire().await.ok()
    }

    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        // Boxed: the futures of requests that go in batches contain this one, but never come here.
        let answer = Box::pin(ask(&mut self.driver.clone(), command)).await;
        self.note(answer.as_ref().err());
        answer
    }

    /// The server's error for a command that it is expected to refuse. This error does not count against the connection.
    pub(crate) async fn try_out(&self, command: &Cmd) -> Option<RedisError> {
        ask(&mut self.driver.clone(), command).await.err()
    }

    /// The error if this user has no right to listen.
    pub(crate) async fn try_listening(&self, channel: &str) -> Option<RedisError> {
        let mut driver = self.driver.clone();
        let error = driver.subscribe(channel).await.err();
        if error.is_none() {
            // It fails only if the connection fails.
            drop(driver.unsubscribe(channel).await);
        }
        error
    }

    /// Sends several commands at once. The error of one command takes the place of its reply.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut driver = self.driver.clone();
        // Boxed, as in `send`.
        let answers = Box::pin(driver.send_packed_commands(commands, 0, commands.len())).await;
        self.note(answers.as_ref().err());
        answers
    }

    /// Runs a script, and sends its text if the server does not have it.
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
                self.send(&command).await
            }
            answer => answer,
        }
    }

    /// In a cluster: listens to the channel of a slot. This comes before a claim is queued there.
    pub(crate) async fn listen(&self, channel: &str) -> Result<(), RedisError> {
        let Some(channels) = &self.slot_channels else {
            return Ok(());
        };
        if channels.listen(channel).await? {
            // A script without the right to publish fails silently. This probe shows the error.
            let mut probe = redis::cmd("SPUBLISH");
            probe.arg(channel).arg("probe");
            self.send(&probe).await?;
        }
        Ok(())
    }

    /// Waits until `replicas` replicas have everything that was written over this connection, for `timeout` at most. Returns
    /// how many have it.
    pub(crate) async fn replicated(
        &self,
        replicas: u32,
        timeout: Duration,
    ) -> Result<u32, RedisError> {
        let mut wait = redis::cmd("WAIT");
        let timeout = timeout.as_millis().max(1) as u64;
        wait.arg(replicas).arg(timeout);
        match self.send(&wait).await? {
            Value::Int(count) => Ok(u32::try_from(count).unwrap_or(0)),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the server end earlier connections, so that no request sent over them can still take effect. Returns for each
    /// whether it has certainly ended.
    pub(crate) async fn kill(&self, client_ids: &[i64]) -> Vec<bool> {
        if client_ids.is_empty() {
            return Vec::new();
        }
        let mut kills = Pipeline::with_capacity(client_ids.len());
        for id in client_ids {
            kills.cmd("CLIENT").arg("KILL").arg("ID").arg(*id);
        }
        let answers = self.send_all(&kills).await.unwrap_or_default();
        let certain = answers.iter().map(|answer| matches!(answer, Value::Int(_)));
        certain.collect()
    }

    /// `host:port`, or the path of the socket.
    pub(crate) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }
}

/// Sends one command. An error that the server replies is an error.
pub(crate) async fn ask(
    driver: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Value, RedisError> {
    match driver.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

pub(crate) fn in_millis(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000_000).unwrap_or(i64::MAX / 4)
}
