//! Receives what other clients say. Usually the connection that listens waits for notifications. But each NOTIFY wakes
//! every connection that listens in the database: with many of them, and while a claim of this client waits, it is an
//! *ear*. It sleeps in the server, in `fencelock_hear`, and the client that grants it a lock ends its sleep.
//!
//! The name of the channel names the connection, and the lock of the server's own that it holds while it is an ear. So the
//! client that releases sees for certain whether it is an ear: it cancels an ear after its commit, and notifies any other.

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
/// With so many listeners and ears in the database, waiters have ears; with fewer than that, they have none.
const MANY: i64 = 32;
const FEW: i64 = 24;
/// How often a client with waiters counts them: first, and at the least.
const COUNTS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long one nap of an ear takes, in seconds, and how many are one request. A grant that it finds counts from when that was sent.
/// With shorter naps, a hundred ears keep a server busy with looking.
const NAP: f64 = 0.5;
const NAPS: i32 = 1;
/// An ear that was notified so often is none for a while: somebody cannot cancel it, and a notification waits for the end of a nap.
const DEAF: u32 = 3;
const PAUSE: Duration = Duration::from_secs(60);
/// How long a grant is remembered that was told. By then it is renewed, or over.
const REMEMBERED: Duration = Duration::from_secs(4);
/// How many channels of earlier connections are listened to: holds that were granted then have their names.
const CHANNELS: usize = 8;

/// The connection that listens, or is an ear.
pub(super) struct Ear {
    hosts: Arc<Hosts>,
    /// The channels on which this client is notified, the present one last.
    channels: Mutex<Vec<Arc<str>>>,
    waiters: Mutex<HashSet<ClaimId>>,
    /// There are new waiters.
    more: Notify,
    is_listening: Arc<AtomicBool>,
    /// How many grants came by a notification.
    notified: Arc<AtomicU32>,
    sender: mpsc::UnboundedSender<Message>,
    work: tokio::sync::Mutex<Work>,
}

struct Work {
    received: mpsc::UnboundedReceiver<Message>,
    line: Option<Line>,
}

/// One connection.
struct Line {
    session: Session,
    signal: Arc<CloseSignal>,
    /// The lock that it holds while it is an ear.
    key: u64,
    is_ear: bool,
    /// When the listeners of the database are counted again, and the pause after that.
    count_at: BootInstant,
    pause: Duration,
    /// `notified` as it was when this became an ear.
    notified: u32,
    /// The first tokens of grants that were told.
    told: VecDeque<(BootInstant, i64)>,
}

impl Ear {
    pub(super) fn new(hosts: Arc<Hosts>) -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        Self {
            hosts,
            // Nobody is behind this one yet.
            channels: Mutex::new(vec![channel("0", fastrand::u64(..))]),
            waiters: Mutex::default(),
            more: Notify::new(),
            is_listening: Arc::default(),
            notified: Arc::default(),
            sender,
            work: tokio::sync::Mutex::new(Work {
                received,
                line: None,
            }),
        }
    }

    /// The channel on which this client is notified.
    pub(super) fn channel(&self) -> Arc<str> {
        let channels = self.channels.lock();
        channels.last().cloned().unwrap_or_default()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::SeqCst)
    }

    /// This claim waits.
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
        let Work { received, line } = &mut *work;
        loop {
            let Some(open) = line.as_mut().filter(|line| !line.signal.is_closed()) else {
                drop(line.take());
                *line = Some(self.connect().await);
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
                *line = None;
            }
        }
    }

    /// Connects, for as long as it takes.
    async fn connect(&self) -> Line {
        loop {
            let limit = self.hosts.config.settings.connect_timeout;
            match tokio::time::timeout(limit, self.try_connect()).await {
                Ok(Ok(line)) => return line,
                Ok(Err(error)) => {
                    tracing::debug!(store = %self.hosts, %error, "not listening; waiters here poll");
                }
                Err(_) => tracing::debug!(store = %self.hosts, "not listening; waiters here poll"),
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    async fn try_connect(&self) -> Result<Line> {
        let (sender, notified) = (self.sender.clone(), Arc::clone(&self.notified));
        let listener: Listener = Arc::new(move |notification: Notification| {
            if let Some(message) = parse(notification.payload()) {
                if matches!(message, Message::Granted(_) | Message::Missed) {
                    notified.fetch_add(1, Ordering::SeqCst);
                }
                // Nobody receives once the engine is gone.
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
        listening.map_err(|error| self.hosts.error("listen", error))?;
        Ok(Line {
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

    /// Counts the listeners of the database, and becomes an ear, or stops to be one.
    async fn count(&self, line: &mut Line) -> Result<()> {
        let crowd = self.ask(line, CROWD, &[], Duration::ZERO).await?;
        let crowd = crowd.and_then(|rows| Some(rows.first()?.get::<_, i64>(0)));
        line.pause = (line.pause * 2).min(COUNTS.1);
        line.count_at = Clock::Boot.now() + line.pause.mul_f32(0.5 + fastrand::f32());
        match crowd {
            Some(MANY..) if !line.is_ear => self.become_ear(line).await,
            Some(..FEW) if line.is_ear => self.stop_hearing(line).await,
            _ => Ok(()),
        }
    }

    async fn become_ear(&self, line: &mut Line) -> Result<()> {
        let key = line.key.cast_signed();
        let became = self
            .ask(line, BECOME_EAR, &[&key], Duration::from_secs(1))
            .await?;
        let Some(became) = became else {
            // It may hold the lock, or not.
            line.is_ear = true;
            return self.stop_hearing(line).await;
        };
        line.is_ear = became.first().is_some_and(|row| row.get(0));
        line.notified = self.notified.load(Ordering::SeqCst);
        if !line.is_ear {
            line.count_at = Clock::Boot.now() + PAUSE;
        }
        Ok(())
    }

    async fn stop_hearing(&self, line: &mut Line) -> Result<()> {
        let key = line.key.cast_signed();
        // A late cancellation may hit this, too.
        while line.is_ear {
            let freed = self.ask(line, NO_EAR, &[&key], Duration::ZERO).await?;
            line.is_ear = freed.is_none();
        }
        // What was granted to the ear before. From now on this client is notified.
        while !self.look(line, 0).await? {}
        Ok(())
    }

    /// Sleeps in the server until there is news, and tells it.
    async fn hear(&self, line: &mut Line) -> Result<()> {
        self.look(line, NAPS).await?;
        let notified = self.notified.load(Ordering::SeqCst);
        if notified.wrapping_sub(line.notified) < DEAF {
            return Ok(());
        }
        tracing::debug!(store = %self.hosts, "somebody cannot cancel this client's ear; it listens instead");
        self.stop_hearing(line).await?;
        line.count_at = Clock::Boot.now() + PAUSE;
        Ok(())
    }

    /// Returns whether it was answered, and not cancelled.
    async fn look(&self, line: &mut Line, naps: i32) -> Result<bool> {
        let asked_at = Clock::Boot.now();
        let is_old = |told: &(BootInstant, i64)| asked_at.since(told.0) > REMEMBERED;
        while line.told.front().is_some_and(is_old) {
            line.told.pop_front();
        }
        let known: Vec<i64> = line.told.iter().map(|told| told.1).collect();
        let channels = self.channels.lock().clone();
        let channels: Vec<&str> = channels.iter().map(|name| &**name).collect();
        let values: Values<'_> = &[&channels, &known, &NAP, &naps];
        let most = Duration::from_secs_f64(NAP).saturating_mul(naps.unsigned_abs());
        let rows = self.ask(line, HEAR, values, most).await?;
        let Some(rows) = rows else {
            return Ok(false);
        };
        let text = rows.first().and_then(|row| row.get::<_, Option<String>>(0));
        for pushed in news(text.as_deref().unwrap_or_default(), asked_at) {
            let first = i64::try_from(pushed.tokens.first.get()).unwrap_or(i64::MAX);
            line.told.push_back((asked_at, first));
            // Until it waits again.
            self.remove(pushed.claim);
            let _ = self.sender.send(Message::Granted(pushed));
        }
        Ok(true)
    }

    /// Asks the server. `None` if it was cancelled, which may be meant for the request before.
    async fn ask(
        &self,
        line: &mut Line,
        sql: &'static str,
        values: Values<'_>,
        most: Duration,
    ) -> Result<Option<Vec<tokio_postgres::Row>>> {
        let limit = most + self.hosts.config.settings.response_timeout;
        let asked = tokio::time::timeout(limit, line.session.try_query(sql, values)).await;
        match asked {
            Ok(Ok(rows)) => Ok(Some(rows)),
            Ok(Err(error)) if error.code() == Some(&SqlState::QUERY_CANCELED) => Ok(None),
            Ok(Err(error)) => Err(self.hosts.error("listen", error)),
            Err(_) => {
                let why = format!("no answer within {limit:?}");
                Err(Error::unavailable(&self.hosts, "listen", why))
            }
        }
    }
}

/// The channel of the connection in this process of the server; see `schema.sql`.
fn channel(pid: &str, key: u64) -> Arc<str> {
    format!("fencelock_ear_{pid}_{key:016x}").into()
}
