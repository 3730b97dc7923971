//! One server, or the one that is the master at the moment: the connection to it, whoever restores that, and a few
//! connections to wait on for replicas.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::config::Address;
use crate::connection::{Connection, Opening, Purpose, connecting};
use crate::hub::Hub;
use crate::sentinel::{MARGIN, Sentinels};
use crate::server::ServerInfo;
use crate::stored::Message;
use crate::uptime::Watching;

/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many grants may wait for replicas at once: each has a connection of its own meanwhile.
const WRITERS: usize = 4;
/// How many requests of renewals may: grants that wait for slow replicas do not keep them from it.
const RENEWERS: usize = 4;
/// How many earlier connections are remembered one by one.
const REMEMBERED: usize = 64;

/// How a server is found.
#[derive(Debug)]
pub(crate) enum Target {
    /// It is always the same.
    Fixed(Box<redis::Client>),
    /// The Sentinels tell.
    Master(Arc<Sentinels>),
}

/// Where a server stands.
#[derive(Clone, Debug)]
enum State {
    Up(Arc<Connection>),
    /// No connection. The text says why; `refused`: the server was reached and refused.
    Down {
        why: String,
        refused: bool,
    },
    Closed,
}

/// A connection that is gone from here, but perhaps not from the server.
#[derive(Debug)]
struct Old {
    generation: u64,
    client_id: Option<i64>,
    run_id: Option<String>,
}

impl Old {
    fn of(link: &Connection) -> Self {
        Self {
            generation: link.generation,
            client_id: link.client_id,
            run_id: link.run_id.clone(),
        }
    }
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    target: Target,
    state: watch::Sender<State>,
    bell: Arc<Notify>,
    /// The newest connection.
    newest: AtomicU64,
    /// The server process last seen.
    run_id: Mutex<Option<String>>,
    /// Before this no connection grants: another server was put in the place of the one before.
    swapped_until: Mutex<Option<BootInstant>>,
    watching: Watching,
    /// Where the master was found last.
    address: Mutex<Option<Address>>,
    old: Mutex<VecDeque<Old>>,
    /// The newest of the earlier connections that were too many to remember, as a generation; 0 if there were none.
    forgotten: AtomicU64,
    writers: Arc<Semaphore>,
    renewers: Arc<Semaphore>,
    idle: Mutex<Vec<Arc<Connection>>>,
    kept: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    pub(crate) fn new(target: Target) -> Arc<Self> {
        let why = "not connected yet".to_owned();
        let refused = false;
        Arc::new(Self {
            target,
            state: watch::Sender::new(State::Down { why, refused }),
            bell: Arc::default(),
            newest: AtomicU64::new(0),
            run_id: Mutex::default(),
            swapped_until: Mutex::default(),
            watching: Watching::default(),
            address: Mutex::default(),
            old: Mutex::default(),
            forgotten: AtomicU64::new(0),
            writers: Arc::new(Semaphore::new(WRITERS)),
            renewers: Arc::new(Semaphore::new(RENEWERS)),
            idle: Mutex::default(),
            kept: AtomicBool::new(false),
        })
    }

    /// The connection of the moment; waits for one no longer than for an answer.
    pub(crate) async fn link(&self, hub: &Hub) -> Result<Arc<Connection>> {
        let up = |state: &State| match state {
            State::Up(link) if !link.is_broken() => Some(Ok(Arc::clone(link))),
            State::Closed => Some(Err(Error::Closed)),
            _ => None,
        };
        if let Some(answer) = up(&self.state.borrow()) {
            return answer;
        }
        let mut states = self.state.subscribe();
        let come = states.wait_for(|state| up(state).is_some());
        if let Ok(Ok(state)) = tokio::time::timeout(hub.config.response_timeout, come).await
            && let Some(answer) = up(&state)
        {
            return answer;
        }
        let state = self.state.borrow().clone();
        let (why, refused) = match state {
            State::Down { why, refused } => (why, refused),
            _ => ("the connection was lost".to_owned(), false),
        };
        let action = "reconnecting";
        Err(if refused {
            Error::refused(hub.store(), action, why)
        } else {
            Error::unavailable(hub.store(), action, why)
        })
    }

    /// The connection of the moment, if there is one.
    pub(crate) fn link_if_up(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Up(link) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Where the master was found last.
    pub(crate) fn address(&self) -> Option<Address> {
        held(&self.address).clone()
    }

    /// Whether a connection is the newest.
    pub(crate) fn is_newest(&self, generation: u64) -> bool {
        generation == self.newest.load(Ordering::SeqCst)
    }

    /// Connects, once.
    pub(crate) async fn connect(self: &Arc<Self>, hub: &Arc<Hub>) -> Result<ServerInfo> {
        let config = &hub.config;
        let (client, found) = match &self.target {
            Target::Fixed(client) => (redis::Client::clone(client), None),
            Target::Master(sentinels) => {
                let found = sentinels.find(hub).await?;
                (config.client_at(&found.address)?, Some(found))
            }
        };
        let generation = hub.next_generation();
        self.newest.store(generation, Ordering::SeqCst);
        let opening = Opening {
            watching: &self.watching,
            config,
            client,
            purpose: match config.inspect_only {
                true => Purpose::Looking,
                false => Purpose::Whole,
            },
            scripts: &hub.scripts,
            channel: &hub.channel,
            generation,
            bell: Arc::clone(&self.bell),
        };
        let (listener, node) = (Arc::downgrade(hub), Arc::downgrade(self));
        let hear = move |payload: Option<&[u8]>| {
            let (Some(hub), Some(node)) = (listener.upgrade(), node.upgrade()) else {
                return;
            };
            match payload.map(Message::parse) {
                Some(Some(message)) => hub.hear(message, &node, generation),
                Some(None) => {}
                // The slot has moved: whoever waits there asks again, and is heard at another node then.
                None => hub.entries.wake_all(),
            }
        };
        let (mut link, facts) = Connection::open(opening, hear).await?;
        link.grants_from = link
            .grants_from
            .max(self.swapped_until(&link, config.restart_delay));
        if let Some(found) = found {
            if !config.promotion_delay.is_zero() && !config.inspect_only {
                let Some(ran) = link.ran else {
                    let why = "promotion-delay needs to know since when the server runs; allow the command INFO to this user";
                    return Err(Error::config(&config.store, why));
                };
                let delay = config.promotion_delay + MARGIN + Duration::from_secs(1);
                if let Some(left) = delay.checked_sub(found.age.min(ran)) {
                    link.grants_from = link.grants_from.max(Some(found.asked_at + left));
                }
            }
            *held(&self.address) = Some(found.address);
        }
        if !config.is_cluster() {
            hub.saw(0, link.floor);
        }
        self.end_old(&link).await;
        let link = Arc::new(link);
        self.state.send_if_modified(|state| {
            let open = !matches!(state, State::Closed);
            if open {
                *state = State::Up(link);
            }
            open
        });
        // The server listens again: now, and not before, waiters may stand in line.
        hub.entries.wake_all();
        Ok(facts)
    }

    /// Restores the connection behind from now on, until the hub or the node is gone.
    pub(crate) fn keep(self: &Arc<Self>, hub: &Arc<Hub>) {
        if self.kept.swap(true, Ordering::SeqCst) {
            return;
        }
        let (bell, state) = (Arc::clone(&self.bell), self.state.subscribe());
        if self.link_if_up().is_none() {
            bell.notify_one();
        }
        let (hub, node) = (Arc::downgrade(hub), Arc::downgrade(self));
        tokio::spawn(restore(hub, node, bell, state));
    }

    /// Until when nothing is granted since the server, perhaps long up, is not the one before: somebody put it in the
    /// other's place. Later connections to it wait no less than the first.
    fn swapped_until(&self, link: &Connection, restart_delay: Duration) -> Option<BootInstant> {
        let before = std::mem::replace(&mut *held(&self.run_id), link.run_id.clone());
        let mut until = held(&self.swapped_until);
        if before.is_some() && before != link.run_id && !restart_delay.is_zero() {
            *until = (*until).max(Some(Clock::Boot.now() + restart_delay));
        }
        *until
    }

    /// Makes sure that nothing sent over earlier connections can still take effect.
    pub(crate) async fn end_old(&self, link: &Connection) {
        // All stay in the list meanwhile: who withdraws at the same time must not take them for ended.
        let (mut ended, mut asked, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for old in held(&self.old).iter() {
            match (&old.run_id, &link.run_id, old.client_id) {
                // Another process: whatever the former had to do is over.
                (Some(before), Some(now), _) if before != now => ended.push(old.generation),
                (Some(_), Some(_), Some(id)) => {
                    asked.push(old.generation);
                    ids.push(id);
                }
                _ => {}
            }
        }
        let answers = link.end_others(&ids).await;
        let asked = asked.into_iter().zip(answers);
        ended.extend(asked.filter_map(|(generation, sure)| sure.then_some(generation)));
        held(&self.old).retain(|old| !ended.contains(&old.generation));
    }

    /// Whether there is an earlier connection, from `first` on, that may still have something to do.
    pub(crate) fn has_old(&self, first: u64, but: &Connection) -> bool {
        let another = |old: &Old| old.generation >= first && old.generation != but.generation;
        first <= self.forgotten.load(Ordering::SeqCst) || held(&self.old).iter().any(another)
    }

    /// Notes a connection over which something may still be on its way.
    fn remember(&self, link: &Connection) {
        let mut old = held(&self.old);
        old.push_back(Old::of(link));
        if old.len() > REMEMBERED
            && let Some(oldest) = old.pop_front()
        {
            self.forgotten
                .fetch_max(oldest.generation, Ordering::SeqCst);
        }
    }

    /// Notes that the connection is gone. `false` if it is not, or nobody wants another.
    fn note_loss(&self) -> bool {
        let mut lost = false;
        self.state.send_if_modified(|state| {
            let State::Up(link) = state else {
                lost = matches!(state, State::Down { .. });
                return false;
            };
            self.remember(link);
            lost = true;
            *state = State::Down {
                why: "the connection was lost".into(),
                refused: false,
            };
            true
        });
        lost
    }

    /// A connection to write a grant over and to wait on for replicas, to the same server as `main`.
    pub(crate) async fn writer(self: &Arc<Self>, hub: &Hub, main: &Connection) -> Result<Writer> {
        self.writer_by(&self.writers, hub, main).await
    }

    /// The same for a renewal.
    pub(crate) async fn renewer(self: &Arc<Self>, hub: &Hub, main: &Connection) -> Result<Writer> {
        self.writer_by(&self.renewers, hub, main).await
    }

    async fn writer_by(
        self: &Arc<Self>,
        permits: &Arc<Semaphore>,
        hub: &Hub,
        main: &Connection,
    ) -> Result<Writer> {
        let patience = hub.config.response_timeout;
        let permit = Arc::clone(permits).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(patience, permit).await else {
            let cause = "too many others wait for replicas at once";
            let action = "waiting for a connection";
            return Err(Error::unavailable(hub.store(), action, cause));
        };
        let fits = |link: &Arc<Connection>| !link.is_broken() && link.run_id == main.run_id;
        let found = {
            let mut idle = held(&self.idle);
            idle.retain(fits);
            idle.pop()
        };
        let link = match found {
            Some(link) => link,
            None => {
                let opening = Opening {
                    watching: &self.watching,
                    config: &hub.config,
                    client: main.client.clone(),
                    purpose: Purpose::Writing,
                    scripts: &hub.scripts,
                    channel: &hub.channel,
                    generation: hub.next_generation(),
                    bell: Arc::default(),
                };
                let action = connecting(&opening.client);
                let opened =
                    tokio::time::timeout(patience, Connection::open(opening, |_| {})).await;
                let Ok(opened) = opened else {
                    let cause = "no answer in time";
                    return Err(Error::unavailable(hub.store(), action, cause));
                };
                let (link, _) = opened?;
                if link.run_id != main.run_id {
                    main.break_off();
                    let cause = "another server answers there";
                    return Err(Error::unavailable(hub.store(), action, cause));
                }
                Arc::new(link)
            }
        };
        Ok(Writer {
            node: Arc::clone(self),
            link,
            spoiled: false,
            waits: false,
            _permit: permit,
        })
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        self.state.send_replace(State::Closed);
        held(&self.idle).clear();
    }

    /// The connection leads to what is the master no more.
    pub(crate) fn leave(&self) {
        if let Some(link) = self.link_if_up() {
            link.break_off();
        }
    }
}

/// A connection of its own for one grant or renewal; it goes back when dropped.
#[derive(Debug)]
pub(crate) struct Writer {
    node: Arc<Node>,
    link: Arc<Connection>,
    spoiled: bool,
    /// Whether an answer is to come.
    waits: bool,
    _permit: OwnedSemaphorePermit,
}

impl Writer {
    /// Something is about to be sent over it. Unless [`Writer::answered`] is called it is not used again.
    pub(crate) fn sends(&mut self) {
        self.waits = true;
    }

    /// Everything sent over it has its answer.
    pub(crate) fn answered(&mut self) {
        self.waits = false;
    }

    /// Something sent over it has no answer: it is not used again.
    pub(crate) fn spoil(&mut self) {
        if !std::mem::replace(&mut self.spoiled, true) {
            self.node.remember(&self.link);
        }
    }
}

impl Deref for Writer {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.link
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.waits || self.link.is_broken() {
            self.spoil();
        }
        if !self.spoiled {
            held(&self.node.idle).push(Arc::clone(&self.link));
        }
    }
}

/// Restores the connection whenever it is lost.
async fn restore(
    hub: Weak<Hub>,
    node: Weak<Node>,
    bell: Arc<Notify>,
    mut state: watch::Receiver<State>,
) {
    loop {
        tokio::select! {
            () = bell.notified() => {}
            () = closed(&mut state) => return,
        }
        let mut pause = Duration::from_millis(5);
        loop {
            let (Some(hub), Some(node)) = (hub.upgrade(), node.upgrade()) else {
                return;
            };
            let stale = match &*node.state.borrow() {
                State::Closed => return,
                State::Up(link) => !link.is_broken(),
                State::Down { .. } => false,
            };
            // The bell of a connection that was replaced meanwhile.
            if stale || !node.note_loss() {
                break;
            }
            match node.connect(&hub).await {
                Ok(_) => break,
                Err(error) => {
                    let refused = matches!(error, Error::Refused { .. } | Error::Config { .. });
                    tracing::debug!(store = hub.store(), %error, "reconnecting failed");
                    let why = match error {
                        Error::Unavailable { action, cause, .. } => format!("{action}: {cause}"),
                        other => other.to_string(),
                    };
                    node.state.send_if_modified(|state| {
                        let down = matches!(state, State::Down { .. });
                        if down {
                            *state = State::Down { why, refused };
                        }
                        down
                    });
                    hub.look_around();
                }
            }
            drop((hub, node));
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

async fn closed(state: &mut watch::Receiver<State>) {
    // An error means that the node is gone.
    let _ = state.wait_for(|state| matches!(state, State::Closed)).await;
}

/// How long ago, or zero.
pub(crate) fn age(instant: BootInstant) -> Duration {
    Clock::Boot.now().since(instant)
}
