//! Learns by an [`Ear`] that it is a waiter's turn. The ear exists while this client has waiters, and for a while after.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Result, Tokens};
use fencelock_sql::server::{Message, PushedGrant};
use mysql_async::Row;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::stored::token;
use crate::config::Config;
use crate::ear::{Control, Ear, number};
use crate::request::{Answer, NOW, Request, bytes, quoted};
use crate::tables::Tables;

/// With more waiters than this, all waiters of a client poll.
const MOST: usize = 256;
/// How long one request of the ear waits. A grant that it finds counts from when the request was sent.
const WAIT: Duration = Duration::from_secs(1);
/// An ear that had nothing to wait for is closed after this time.
const IDLE: Duration = Duration::from_secs(60);
/// After this time without requests, the first one does not wait, because the connection may have gone unnoticed.
const STALE: Duration = Duration::from_secs(2);
/// An ear that has lasted for this long counts as one that works.
const WORKED: Duration = Duration::from_secs(10);
/// The pauses before the next attempt to open an ear.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// What the second statement of a request of the ear may return.
const TAKES_NO_WRITES: u64 = 3;
const HAS_NEWS: u64 = 2;
const HAS_WAKE_LOCK: u64 = 1;

/// What a request of the ear asks for.
#[derive(Clone, Copy)]
enum Asks {
    ForGrants,
    /// Also for the turns of waiters at locks that nobody granted them.
    ForTurnsToo,
}

/// The waiters of this client, and the ear that listens for them.
pub(super) struct Listener {
    heard: Arc<Heard>,
    received: tokio::sync::Mutex<UnboundedReceiver<Message>>,
    task: Mutex<Option<AbortHandle>>,
}

struct Heard {
    config: Config,
    tables: Arc<Tables>,
    name: String,
    control: Arc<Control>,
    waiters: Mutex<HashMap<ClaimId, LockName>>,
    /// Notified when there are new waiters.
    more: Notify,
    is_listening: AtomicBool,
    sender: UnboundedSender<Message>,
}

impl Listener {
    pub(super) fn new(
        config: Config,
        tables: Arc<Tables>,
        name: String,
        control: Arc<Control>,
    ) -> Self {
        let (sender, received) = unbounded_channel();
        let heard = Heard {
            config,
            tables,
            name,
            control,
            waiters: Mutex::default(),
            more: Notify::new(),
            is_listening: false.into(),
            sender,
        };
        Self {
            heard: Arc::new(heard),
            received: tokio::sync::Mutex::new(received),
            task: Mutex::default(),
        }
    }

    /// The name of the ear.
    pub(super) fn name(&self) -> &str {
        &self.heard.name
    }

    /// Listens for this waiter, too.
    pub(super) fn add(&self, claim: &Claim) {
        let name = claim.name.clone();
        let known = self.heard.waiters.lock().insert(claim.id, name).is_some();
        if !known {
            self.heard.more.notify_one();
        }
        let mut task = self.task.lock();
        if task.is_none() {
            *task = Some(tokio::spawn(listen(Arc::clone(&self.heard))).abort_handle());
        }
    }

    pub(super) fn remove(&self, claim: ClaimId) {
        self.heard.waiters.lock().remove(&claim);
    }

    pub(super) fn is_listening(&self) -> bool {
        self.heard.is_listening.load(Ordering::SeqCst) && self.heard.waiters.lock().len() <= MOST
    }

    pub(super) async fn next_message(&self) -> Message {
        let mut received = self.received.lock().await;
        received.recv().await.unwrap_or(Message::Missed)
    }

    pub(super) fn close(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Keeps an ear while there are waiters.
async fn listen(heard: Arc<Heard>) {
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1);
    loop {
        heard.until_some_wait().await;
        let begun = Clock::Boot.now();
        let ended = heard.hear().await;
        heard.is_listening.store(false, Ordering::SeqCst);
        heard.tell(Message::Missed);
        heard.control.hang_up();
        let Err(error) = ended else {
            continue;
        };
        tracing::debug!(%error, "not listening; waiters here poll");
        if Clock::Boot.now().since(begun) > WORKED {
            pauses.reset();
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

impl Heard {
    async fn until_some_wait(&self) {
        while self.waiters.lock().is_empty() {
            self.more.notified().await;
        }
    }

    fn tell(&self, message: Message) {
        // Sending fails once the engine is gone.
        let _ = self.sender.send(message);
    }

    /// Opens an ear and listens, until no claim has waited for a while.
    async fn hear(&self) -> Result<()> {
        let mut ear = Ear::open(&self.config, &self.name, &self.control).await?;
        self.is_listening.store(true, Ordering::SeqCst);
        // Before that, messages could not reach this client.
        self.tell(Message::Missed);
        let mut used = Clock::Boot.now();
        loop {
            if tokio::time::timeout(IDLE, self.until_some_wait())
                .await
                .is_err()
            {
                ear.hang_up();
                return Ok(());
            }
            if Clock::Boot.now().since(used) > STALE {
                self.look(&mut ear).await?;
            }
            if self.wait(&mut ear, Asks::ForGrants).await? {
                // Somebody who waits for such a lock may have the turn, or waits for shared holders.
                self.wait(&mut ear, Asks::ForTurnsToo).await?;
            }
            used = Clock::Boot.now();
        }
    }

    /// Waits until there is news for a waiter, and reports it. Returns whether it found a lock without an exclusive holder
    /// instead.
    async fn wait(&self, ear: &mut Ear, asks: Asks) -> Result<bool> {
        let waiters = self.waiters();
        if waiters.is_empty() {
            return Ok(false);
        }
        // The first statement finds a release that came before it. Any later release ends the wait of the second statement.
        let news = match asks {
            Asks::ForGrants => self.grants(&waiters),
            Asks::ForTurnsToo => self.news(&waiters),
        };
        let mut request = Request::of(&news);
        request.push(format!(
            "SELECT CASE WHEN CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') THEN {TAKES_NO_WRITES} \
             WHEN FOUND_ROWS() > 0 THEN {HAS_NEWS} ELSE {} END",
            ear.wait(WAIT)
        ));
        request.push(&news);
        let asked_at = Clock::Boot.now();
        let (ended, found, is_free) = match ear.ask(&request, WAIT).await? {
            None => (None, self.look(ear).await?, false),
            Some(answers) => {
                let news = [&answers[0], &answers[2]];
                let found: usize = news.map(|news| self.tell_news(news, asked_at)).iter().sum();
                let is_free = news.into_iter().flat_map(|news| &news.rows).any(is_free);
                (number(&answers[1], 0), found, is_free)
            }
        };
        match ended {
            // The ear was woken for a turn, or for something else, such as a turn beside other holders.
            None if found == 0 && !(is_free && self.look(ear).await? > 0) => {
                self.tell(Message::Missed);
            }
            Some(HAS_WAKE_LOCK) => ear.return_wake_lock(&self.control).await?,
            Some(TAKES_NO_WRITES) => {
                let why = "the server takes no writes any more";
                return Err(Error::unavailable(&self.config.store, "listening", why));
            }
            _ => {}
        }
        Ok(is_free)
    }

    /// Reads the news without waiting, and reports them. Returns how many there were.
    async fn look(&self, ear: &mut Ear) -> Result<usize> {
        let waiters = self.waiters();
        if waiters.is_empty() {
            return Ok(0);
        }
        let request = Request::of(self.news(&waiters));
        // A KILL for something else may interrupt the request.
        loop {
            let asked_at = Clock::Boot.now();
            if let Some(answers) = ear.ask(&request, Duration::ZERO).await? {
                return Ok(self.tell_news(&answers[0], asked_at));
            }
        }
    }

    fn waiters(&self) -> Vec<(ClaimId, LockName)> {
        let waiters = self.waiters.lock();
        let waiters = waiters.iter().take(MOST);
        waiters
            .map(|(claim, name)| (*claim, name.clone()))
            .collect()
    }

    /// A query with a row for each of these waiters that was granted its lock, and one without a claim for each lock that has no
    /// exclusive holder. The server answers it in a fraction of the time of [`Heard::news`].
    fn grants(&self, waiters: &[(ClaimId, LockName)]) -> String {
        let locks = &self.tables.locks;
        let (claims, names) = lists(waiters);
        format!(
            "SELECT IF(state = 'none', '', claim), id, tokens, expiry - {NOW} FROM {locks} WHERE name IN ({names}) \
             AND (state = 'none' OR claim IN ({claims}) AND state = 'held' AND expiry > {NOW})"
        )
    }

    /// A query with a row for each of these waiters that was granted its lock. It also has one for each that is the first at a
    /// free lock.
    fn news(&self, waiters: &[(ClaimId, LockName)]) -> String {
        let Tables {
            locks,
            holders,
            waiters: queue,
            ..
        } = &*self.tables;
        let (claims, names) = lists(waiters);
        format!(
            "SELECT claim, id, tokens, expiry - {NOW} FROM {locks} \
             WHERE name IN ({names}) AND claim IN ({claims}) AND state = 'held' AND expiry > {NOW} UNION ALL \
             SELECT w.claim, 0, 0, 0 FROM {locks} AS l STRAIGHT_JOIN {queue} AS w ON w.name = l.name \
             WHERE l.name IN ({names}) AND l.state = 'none' AND w.claim IN ({claims}) AND NOT EXISTS \
             (SELECT 1 FROM {holders} AS h WHERE h.name = l.name AND h.expiry > {NOW}) AND NOT EXISTS \
             (SELECT 1 FROM {queue} AS v WHERE v.name = w.name AND v.ticket < w.ticket AND v.expiry > {NOW})"
        )
    }

    /// Reports the news of an answer. Its waiters are left out of later requests until they wait again.
    fn tell_news(&self, answer: &Answer, asked_at: BootInstant) -> usize {
        let news = answer.rows.iter().filter_map(|row| read(row, asked_at));
        let news = news.map(|(claim, message)| {
            let waits = self.waiters.lock().remove(&claim).is_some();
            if waits {
                self.tell(message);
            }
        });
        news.count()
    }
}

/// The claims of these waiters, and their locks, as lists of literals.
fn lists(waiters: &[(ClaimId, LockName)]) -> (String, String) {
    let claims = waiters.iter().map(|(claim, _)| bytes(claim.as_bytes()));
    let names = waiters.iter().map(|(_, name)| name.clone());
    (
        claims.collect::<Vec<_>>().join(","),
        quoted(&names.collect::<Vec<_>>()),
    )
}

/// Whether this row of [`Heard::grants`] is that of a lock without an exclusive holder.
fn is_free(row: &Row) -> bool {
    row.get::<Vec<u8>, _>(0)
        .is_some_and(|claim| claim.is_empty())
}

fn read(row: &Row, asked_at: BootInstant) -> Option<(ClaimId, Message)> {
    let claim: Vec<u8> = row.get(0)?;
    let claim = ClaimId::from_bytes(claim.try_into().ok()?);
    let (id, count, left): (u64, u32, u64) = (row.get(1)?, row.get(2)?, row.get(3)?);
    if id == 0 {
        return Some((claim, Message::Turn(claim)));
    }
    let pushed = PushedGrant {
        claim,
        tokens: Tokens::new(token(id), count),
        window: Duration::from_micros(left),
        asked_at: Some(asked_at),
    };
    Some((claim, Message::Granted(pushed)))
}
