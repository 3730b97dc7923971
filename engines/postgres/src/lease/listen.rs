//! Receives the messages of other clients. Usually the listening connection waits for notifications. But each NOTIFY wakes
//! every connection that listens in the database. So if many connections listen and a claim of this client waits, the connection
//! becomes an *ear*: it sleeps in the server, in `fencelock_hear`. The client that grants a lock to that claim ends its sleep.
//!
//! The name of the channel has two parts: the connection, and the number of the server's own lock that the connection holds while
//! it is an ear. So the client that releases knows for certain whether a connection is an ear. It cancels an ear after its commit,
//! and notifies any other connection.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, Error, Result};
use fencelock_sql::bound::CloseSignal;
use fencelock_sql::server::Message;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::Notification;
use tokio_postgres::error::SqlState;

use super::message::{news, parse};
use super::statements::{BECOME_EAR, CROWD, HEAR, NO_EAR};
use crate::connection::{Hosts, Listener, Session, Values};

/// The pause before the client tries to listen again.
const LISTEN_AGAIN: Duration = Duration::from_millis(200);
/// From `MANY` listeners and ears in the database on, waiters use ears; below `FEW` they use none.
const MANY: i64 = 32;
const FEW: i64 = 24;
/// The first and the longest pause between two counts, for a client with waiters.
const COUNTS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long an ear sleeps before it polls again, in seconds, and how often it sleeps in one request. A grant that it finds
/// counts from when the request was sent. With a shorter interval, a hundred ears keep a server busy with polling.
const POLL_INTERVAL: f64 = 0.5;
const POLLS: i32 = 1;
/// After this many notifications an ear only listens for a while: some client cannot cancel it, and a notification waits until
/// the ear polls.
const DEAF: u32 = 3;
const PAUSE: Duration = Duration::from_secs(60);
/// How long a grant that was reported is remembered. By then it is renewed, or over.
const REMEMBERED: Duration = Duration::from_secs(4);
/// How many channels of earlier connections are listened to: earlier grants still have their names.
const CHANNELS: usize = 8;

/// The connection that listens, or is an ear.
pub(super) struct Ear {
    hosts: Arc<Hosts>,
    /// The channels on which this client is notified, the present one last.
    channels: Mutex<Vec<Arc<str>>>,
    waiters: Mutex<HashSet<ClaimId>>,
    /// Notified when there are new waiters.
    more: Notify,
    is_listening: Arc<AtomicBool>,
    is_ear: AtomicBool,
    /// How many grants came by a notification.
    notified: Arc<AtomicU32>,
    sender: mpsc::UnboundedSender<Message>,
    work: tokio::sync::Mutex<Work>,
}

struct Work {
    received: mpsc::UnboundedReceiver<Message>,
    listening: Option<Listening>,
}

/// One connection that listens.
struct Listening {
    session: Session,
    signal: Arc<CloseSignal>,
    /// The lock that it holds while it is an ear.
    key: u64,
    is_ear: bool,
    /// When to count the listeners of the database again, and the pause after that.
    count_at: BootInstant,
    pause: Duration,
    /// `notified` as it was when this became an ear.
    notified: u32,
    /// The first tokens of the grants that were reported.
    told: VecDeque<(BootInstant, i64)>,
}

impl Ear {
    pub(super) fn new(hosts: Arc<Hosts>) -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        Self {
            hosts,
            // A placeholder until there is a connection.
            channels: Mutex::new(vec![channel("0", fastrand::u64(..))]),
            waiters: Mutex::default(),
            more: Notify::new(),
            is_listening: Arc::default(),
            is_ear: AtomicBool::default(),
            notified: Arc::default(),
            sender,
            work: tokio::sync::Mutex::new(Work {
                received,
                listening: None,
            }),
        }
    }

    /// The channel on which this client is notified.
    pub(super) fn channel(&self) -> Arc<str> {
        let channels = self.channels.lock();
        channels.last().cloned().unwrap_or_default()
    }

    /// Whether this client was an ear when it last counted the listeners.
    pub(super) fn is_ear(&self) -> bool {
        self.is_ear.load(Ordering::SeqCst)
    }

    pub(super) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::SeqCst)
    }

    /// Notes that a claim waits.
    pub(super) fn add(&self, claim: ClaimId) {
        if self.waiters.lock().insert(claim) {
            self.more.notify_one();
        }
    }

    pub(super) fn remove(&self, claim: ClaimId) {
        self.waiters.lock().remove(&claim);
    }

    fn some_wait(&self) -> bool {
        !self.waiters.lock().is_empty()
    }

    /// The next message. Connects first if there is no connection.
    pub(super) async fn receive(&self) -> Message {
        let mut work = self.work.lock().await;
        let Work {
            received,
            listening,
        } = &mut *work;
        loop {
            let Some(open) = listening
                .as_mut()
                .filter(|listening| !listening.signal.is_closed())
            else {
                drop(listening.take());
                *listening = Some(self.connect().await);
                self.is_listening.store(true, Ordering::SeqCst);
                // Messages may have been missed before.
                return Message::Missed;
            };
            if let Ok(message) = received.try_recv() {
                return message;
            }
            let waits = self.some_wait();
            let done = if waits && Clock::Boot.now() >= open.count_at {
                self.count(open).await
            } else if waits && open.is_ear {
                self.hear(open).await
            } else {
                tokio::select! {
                    Some(message) = received.recv() => return message,
                    () = self.more.notified() => {}
                    () = Clock::Boot.sleep_until(open.count_at), if waits => {}
                }
                Ok(())
            };
            if let Err(error) = done {
                tracing::debug!(store = %self.hosts, %error, "listening anew");
                self.is_listening.store(false, Ordering::SeqCst);
                *listening = None;
            }
        }
    }

    /// Connects, with as many attempts as that takes.
    async fn connect(&self) -> Listening {
        loop {
            let limit = self.hosts.config.settings.connect_timeout;
            match tokio::time::timeout(limit, self.try_connect()).await {
                Ok(Ok(listening)) => return listening,
                Ok(Err(error)) => {
                    tracing::debug!(store = %self.hosts, %error, "not listening; waiters here poll");
                }
                Err(_) => tracing::debug!(store = %self.hosts, "not listening; waiters here poll"),
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    async fn try_connect(&self) -> Result<Listening> {
        let (sender, notified) = (self.sender.clone(), Arc::clone(&self.notified));
        let listener: Listener = Arc::new(move |notification: Notification| {
            if let Some(message) = parse(notification.payload()) {
                if matches!(message, Message::Granted(_) | Message::Missed) {
                    notified.fetch_add(1, Ordering::SeqCst);
                }
                // Sending fails once the engine is gone.
                let _ = sender.send(message);
            }
        });
        let (sender, is_listening) = (self.sender.clone(), Arc::clone(&self.is_listening));
        let signal = CloseSignal::with(move || {
            is_listening.store(false, Ordering::SeqCst);
            let _ = sender.send(Message::Missed);
        });
        let session = self.hosts.connect(&signal, Some(listener)).await?;
        let key = fastrand::u64(..);
        let pid = session.id.0.split('@').next().unwrap_or_default();
        let channels = {
            let mut channels = self.channels.lock();
            channels.push(channel(pid, key));
            if channels.len() > CHANNELS {
                channels.remove(0);
            }
            channels.clone()
        };
        let listen = channels.iter().rev().map(|name| format!("LISTEN {name};"));
        let listen: String = listen.collect();
        let listening = session.client.batch_execute(&listen).await;
        listening.map_err(|error| self.hosts.error("listening", error))?;
        Ok(Listening {
            session,
            signal,
            key,
            is_ear: false,
            count_at: Clock::Boot.now(),
            pause: COUNTS.0,
            notified: 0,
            told: VecDeque::new(),
        })
    }

    /// Counts the listeners of the database, and becomes an ear, or stops being one.
    async fn count(&self, listening: &mut Listening) -> Result<()> {
        let crowd = self.ask(listening, CROWD, &[], Duration::ZERO).await?;
        let crowd = crowd.and_then(|rows| Some(rows.first()?.get::<_, i64>(0)));
        listening.pause = (listening.pause * 2).min(COUNTS.1);
        listening.count_at = Clock::Boot.now() + listening.pause.mul_f32(0.5 + fastrand::f32());
        match crowd {
            Some(MANY..) if !listening.is_ear => self.become_ear(listening).await?,
            Some(..FEW) if listening.is_ear => self.stop_hearing(listening).await?,
            _ => {}
        }
        self.is_ear.store(listening.is_ear, Ordering::SeqCst);
        Ok(())
    }

    async fn become_ear(&self, listening: &mut Listening) -> Result<()> {
        let key = listening.key.cast_signed();
        let became = self
            .ask(listening, BECOME_EAR, &[&key], Duration::from_secs(1))
            .await?;
        let Some(became) = became else {
            // The connection may hold the lock, or not.
            listening.is_ear = true;
            return self.stop_hearing(listening).await;
        };
        listening.is_ear = became.first().is_some_and(|row| row.get(0));
        listening.notified = self.notified.load(Ordering::SeqCst);
        if !listening.is_ear {
            listening.count_at = Clock::Boot.now() + PAUSE;
        }
        Ok(())
    }

    async fn stop_hearing(&self, listening: &mut Listening) -> Result<()> {
        let key = listening.key.cast_signed();
        // A late cancellation may hit this request, too.
        while listening.is_ear {
            let freed = self.ask(listening, NO_EAR, &[&key], Duration::ZERO).await?;
            listening.is_ear = freed.is_none();
        }
        // Reads what was granted to the ear before. From now on this client is notified.
        while !self.look(listening, 0).await? {}
        Ok(())
    }

    /// Sleeps in the server until there is news, and reports it.
    async fn hear(&self, listening: &mut Listening) -> Result<()> {
        self.look(listening, POLLS).await?;
        let notified = self.notified.load(Ordering::SeqCst);
        if notified.wrapping_sub(listening.notified) < DEAF {
            return Ok(());
        }
        tracing::debug!(store = %self.hosts, "somebody cannot cancel this client's ear; it listens instead");
        self.stop_hearing(listening).await?;
        listening.count_at = Clock::Boot.now() + PAUSE;
        Ok(())
    }

    /// Reads the grants to this client and reports them. `false` if the request was cancelled.
    async fn look(&self, listening: &mut Listening, polls: i32) -> Result<bool> {
        let asked_at = Clock::Boot.now();
        let is_old = |told: &(BootInstant, i64)| asked_at.since(told.0) > REMEMBERED;
        while listening.told.front().is_some_and(is_old) {
            listening.told.pop_front();
        }
        let known: Vec<i64> = listening.told.iter().map(|told| told.1).collect();
        let channels = self.channels.lock().clone();
        let channels: Vec<&str> = channels.iter().map(|name| &**name).collect();
        let values: Values<'_> = &[&channels, &known, &POLL_INTERVAL, &polls];
        let most = Duration::from_secs_f64(POLL_INTERVAL).saturating_mul(polls.unsigned_abs());
        let rows = self.ask(listening, HEAR, values, most).await?;
        let Some(rows) = rows else {
            return Ok(false);
        };
        let text = rows.first().and_then(|row| row.get::<_, Option<String>>(0));
        for pushed in news(text.as_deref().unwrap_or_default(), asked_at) {
            let first = i64::try_from(pushed.tokens.first.get()).unwrap_or(i64::MAX);
            listening.told.push_back((asked_at, first));
            // The claim no longer waits.
            self.remove(pushed.claim);
            let _ = self.sender.send(Message::Granted(pushed));
        }
        Ok(true)
    }

    /// Asks the server. `None` if the request was cancelled; the cancellation may have been meant for the one before.
    async fn ask(
        &self,
        listening: &mut Listening,
        sql: &'static str,
        values: Values<'_>,
        most: Duration,
    ) -> Result<Option<Vec<tokio_postgres::Row>>> {
        let limit = most + self.hosts.config.settings.response_timeout;
        let asked = tokio::time::timeout(limit, listening.session.try_query(sql, values)).await;
        match asked {
            Ok(Ok(rows)) => Ok(Some(rows)),
            Ok(Err(error)) if error.code() == Some(&SqlState::QUERY_CANCELED) => Ok(None),
            Ok(Err(error)) => Err(self.hosts.error("listening", error)),
            Err(_) => {
                let why = format!("no answer within {limit:?}");
                Err(Error::unavailable(&self.hosts, "listening", why))
            }
        }
    }
}

/// The channel of the connection with this server process; see `schema.sql`.
fn channel(pid: &str, key: u64) -> Arc<str> {
    format!("fencelock_ear_{pid}_{key:016x}").into()
}
