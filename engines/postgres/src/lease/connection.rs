//! The state of the lease strategy, its connections, and its listener.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, LockName, Promises, Result};
use fencelock_sql::bound::CloseSignal;
use fencelock_sql::server::{Failure, Message};
use tokio::sync::mpsc;
use tokio_postgres::{Notification, Row};

use super::message::parse;
use super::stored::promises;
use crate::connection::{Hosts, Listener, Session, Values};
use crate::error::{failure, is_missing};
use crate::server::limits;

/// The pause before the client tries to listen again.
const LISTEN_AGAIN: Duration = Duration::from_millis(200);

/// A PostgreSQL database with the tables of the lease engine.
pub(crate) struct Leases {
    pub(super) hosts: Arc<Hosts>,
    pub(super) promises: Mutex<Option<Promises>>,
    /// The channel on which this process is notified.
    pub(super) channel: String,
    pub(super) listening: Arc<AtomicBool>,
    received: tokio::sync::Mutex<mpsc::UnboundedReceiver<Message>>,
    sender: mpsc::UnboundedSender<Message>,
    listener: tokio::sync::Mutex<Option<(Session, Arc<CloseSignal>)>>,
}

impl Leases {
    pub(crate) fn new(hosts: Hosts) -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        Self {
            hosts: Arc::new(hosts),
            promises: Mutex::default(),
            channel: format!("fencelock_{:032x}", fastrand::u128(..)),
            listening: Arc::default(),
            received: tokio::sync::Mutex::new(received),
            sender,
            listener: tokio::sync::Mutex::default(),
        }
    }

    /// A connection that is ready.
    pub(super) async fn open_session(&self) -> Result<Session> {
        let mut session = self.hosts.connect(&CloseSignal::new(None), None).await?;
        // A database may have it off, but a lost commit would be a lost grant.
        const SAFE: &str = "\
            SELECT set_config('synchronous_commit', CASE WHEN setting = 'off' THEN 'on' ELSE setting END, false) \
            FROM (SELECT current_setting('synchronous_commit') AS setting) AS now";
        let safe = session.client.batch_execute(SAFE).await;
        safe.map_err(|error| self.hosts.error("prepare a connection", error))?;
        let known = self
            .promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        if !known {
            self.hosts.rule_out_pooler(&session).await?;
            let limits = limits(&self.hosts, &mut session, self.hosts.config.strategy).await?;
            let durable = !limits
                .iter()
                .any(|limit| limit.what.contains("loss of power"));
            *self.promises.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(promises(limits, durable));
        }
        Ok(session)
    }

    pub(super) async fn query(
        &self,
        session: &mut Session,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let config = &self.hosts.config;
        match session.try_query(sql, values).await {
            // An inspecting client creates no tables, and sees nothing where there are none.
            Err(error) if config.inspect_only && is_missing(&error) => Ok(Vec::new()),
            rows => rows.map_err(|error| failure(&config.store, action, error)),
        }
    }

    pub(super) fn unreadable(&self, name: &LockName) -> Failure {
        let why = "its rows were stored by a newer version of fencelock, or are damaged; use that version, or another name";
        Failure::Final(Error::not_a_lock(&self.hosts, name, why))
    }

    /// Connects the listener, for as long as it takes.
    pub(super) async fn listen(&self) -> (Session, Arc<CloseSignal>) {
        loop {
            let sender = self.sender.clone();
            let listener: Listener = Arc::new(move |notification: Notification| {
                if let Some(message) = parse(notification.payload()) {
                    // Nobody receives once the engine is gone.
                    let _ = sender.send(message);
                }
            });
            let (sender, listening) = (self.sender.clone(), Arc::clone(&self.listening));
            let signal = CloseSignal::with(move || {
                listening.store(false, Ordering::SeqCst);
                let _ = sender.send(Message::Missed);
            });
            let connecting = async {
                let session = self.hosts.connect(&signal, Some(listener)).await?;
                let listen = session
                    .client
                    .batch_execute(&format!("LISTEN {}", self.channel))
                    .await;
                listen.map_err(|error| self.hosts.error("listen", error))?;
                Ok::<_, Error>(session)
            };
            match tokio::time::timeout(self.hosts.config.settings.connect_timeout, connecting).await
            {
                Ok(Ok(session)) => {
                    self.listening.store(true, Ordering::SeqCst);
                    return (session, signal);
                }
                Ok(Err(error)) => {
                    tracing::debug!(store = %self.hosts, %error, "not listening; waiters here poll")
                }
                Err(_) => tracing::debug!(store = %self.hosts, "not listening; waiters here poll"),
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    /// The next message. Connects the listener first if it is not connected.
    pub(super) async fn receive(&self) -> Message {
        let mut listener = self.listener.lock().await;
        if !matches!(&*listener, Some((_, signal)) if !signal.is_closed()) {
            drop(listener.take());
            *listener = Some(self.listen().await);
            // Messages may have been missed before.
            return Message::Missed;
        }
        drop(listener);
        self.received
            .lock()
            .await
            .recv()
            .await
            .unwrap_or(Message::Missed)
    }
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.hosts, f)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.hosts)
    }
}
