//! In a cluster: the channels of slots to which this process listens, at one node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};
use redis::RedisError;
use redis::aio::MultiplexedConnection;

use crate::health::{Health, Silence};
use crate::reply::unexpected;

/// From this number of channels on, those without waiters are given up.
const CHANNELS: usize = 1024;
/// A waiter is placed again within seconds, so a channel that was not used for this long has no waiters.
const IDLE: Duration = Duration::from_secs(60);

/// The subscriptions of one connection, and when each was last used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriptions(Arc<Mutex<HashMap<String, BootInstant>>>);

impl Subscriptions {
    pub(crate) fn confirmed(&self, channel: &str) {
        self.0.lock().insert(channel.to_owned(), Clock::Boot.now());
    }

    /// Notes that the server ended a subscription. Returns `false` if this process had given it up itself.
    pub(crate) fn ended(&self, channel: &str) -> bool {
        self.0.lock().remove(channel).is_some()
    }
}

/// The channels of slots. They have a connection of their own: the driver mistakes the message that a slot has moved for a
/// reply.
#[derive(Debug)]
pub(crate) struct SlotChannels {
    connection: MultiplexedConnection,
    subscriptions: Subscriptions,
    health: Arc<Health>,
    silence: Silence,
}

impl SlotChannels {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        subscriptions: Subscriptions,
        health: Arc<Health>,
    ) -> Self {
        Self {
            connection,
            subscriptions,
            health,
            silence: Silence::default(),
        }
    }

    /// Listens to a channel. Returns whether it is the first one of this connection.
    pub(crate) async fn listen(&self, channel: &str) -> Result<bool, RedisError> {
        if let Some(asked) = self.subscriptions.0.lock().get_mut(channel) {
            *asked = Clock::Boot.now();
            return Ok(false);
        }
        let mut connection = self.connection.clone();
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        subscribe.arg(channel);
        let answer = connection.send_packed_command(&subscribe).await;
        let answer = answer.and_then(|value| value.extract_error());
        self.health.note(&self.silence, answer.as_ref().err());
        let answer = answer?;
        let first = {
            let subscriptions = self.subscriptions.0.lock();
            // The reply may belong to another request if a slot has just moved.
            if !subscriptions.contains_key(channel) {
                return Err(unexpected(&answer));
            }
            subscriptions.len() == 1
        };
        self.give_up_idle().await;
        Ok(first)
    }

    async fn give_up_idle(&self) {
        let idle: Vec<String> = {
            let mut subscriptions = self.subscriptions.0.lock();
            if subscriptions.len() < CHANNELS {
                return;
            }
            let now = Clock::Boot.now();
            let idle = subscriptions.extract_if(|_, asked| now.since(*asked) > IDLE);
            idle.map(|(channel, _)| channel).collect()
        };
        for channel in idle {
            let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
            unsubscribe.arg(&channel);
            // It fails only if the connection fails.
            drop(
                self.connection
                    .clone()
                    .send_packed_command(&unsubscribe)
                    .await,
            );
        }
    }
}
