//! What all calls of one store share: the connection of the moment and whoever restores it, the waiters, the highest
//! token seen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::engine::{Claim, Event};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Promises, Result};
use redis::Cmd;
use tokio::sync::{Notify, mpsc, watch};

use crate::config::Config;
use crate::connection::{COUNTER, Link, Opening};
use crate::facts::Facts;
use crate::refusal::explain;
use crate::scripts::Scripts;
use crate::value::{Message, line_key, mark};
use crate::waiters::{Pushed, Waiters};

/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where the store stands.
#[derive(Clone, Debug)]
enum State {
    Up(Arc<Link>),
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

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) config: Config,
    pub(crate) scripts: Scripts,
    /// What this process listens to is `fencelock:` and this.
    pub(crate) channel: String,
    pub(crate) waiters: Waiters,
    pub(crate) hot: Hot,
    state: watch::Sender<State>,
    bell: Arc<Notify>,
    /// The highest token seen from this store: the floor of whatever is drawn later.
    highest: AtomicU64,
    events: mpsc::UnboundedSender<Event>,
    generations: AtomicU64,
    old: Mutex<Vec<Old>>,
    /// Claims of which a place had no answer: the first connection such a one went over, and when even a late one is
    /// over. A grant changes nothing here: the claim may be withdrawn, and the place run then.
    unsettled: Mutex<HashMap<ClaimId, (u64, BootInstant)>>,
    unsettled_count: AtomicUsize,
    promises: OnceLock<Promises>,
    /// The server process last seen.
    run_id: Mutex<Option<String>>,
}

impl Hub {
    /// Connects for the first time. The connection is restored behind from then on, as long as the hub lives.
    pub(crate) async fn open(
        config: Config,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let (events, heard) = mpsc::unbounded_channel();
        let why = "not connected yet".to_owned();
        let refused = false;
        let hub = Arc::new(Self {
            config,
            scripts: Scripts::new(),
            channel: format!("{:016x}", random_u64()?),
            waiters: Waiters::default(),
            hot: Hot::default(),
            state: watch::Sender::new(State::Down { why, refused }),
            bell: Arc::default(),
            highest: AtomicU64::new(0),
            events,
            generations: AtomicU64::new(0),
            old: Mutex::default(),
            unsettled: Mutex::default(),
            unsettled_count: AtomicUsize::new(0),
            promises: OnceLock::new(),
            run_id: Mutex::default(),
        });
        let facts = hub.connect().await?;
        let _ = hub.promises.set(facts.promises(hub.config.restart_delay));
        let (watched, bell) = (Arc::downgrade(&hub), Arc::clone(&hub.bell));
        let state = hub.state.subscribe();
        tokio::spawn(restore(watched, bell, state));
        Ok((hub, heard))
    }

    pub(crate) fn store(&self) -> &str {
        &self.config.store
    }

    pub(crate) fn promises(&self) -> Promises {
        let promises = self.promises.get().cloned();
        promises.unwrap_or_else(|| Facts::default().promises(self.config.restart_delay))
    }

    /// The connection of the moment; waits for one no longer than for an answer.
    pub(crate) async fn link(&self) -> Result<Arc<Link>> {
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
        if let Ok(Ok(state)) = tokio::time::timeout(self.config.response_timeout, come).await
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
            Error::refused(self.store(), action, why)
        } else {
            Error::unavailable(self.store(), action, why)
        })
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// A token, or the counter, was seen.
    pub(crate) fn saw(&self, token: u64) {
        self.highest.fetch_max(token, Ordering::SeqCst);
    }

    /// A place went out over this connection, and no answer came.
    pub(crate) fn unsettle(&self, claim: &Claim, generation: u64) {
        let now = Clock::Boot.now();
        // The core gives up after one lease from the last try; twice that is enough to remember.
        let over = now + claim.ttl.saturating_add(claim.lock_delay).saturating_mul(2);
        let mut unsettled = self
            .unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unsettled.retain(|_, (_, over)| *over > now);
        let (first, _) = *unsettled.entry(claim.id).or_insert((generation, over));
        unsettled.insert(claim.id, (first.min(generation), over));
        self.unsettled_count
            .store(unsettled.len(), Ordering::SeqCst);
    }

    /// A withdrawal went through over this connection: can an earlier place of the claim still take effect?
    pub(crate) fn settle(&self, id: &ClaimId, link: &Link) -> bool {
        if self.unsettled_count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut unsettled = self
            .unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((first, over)) = unsettled.get(id).copied() else {
            return true;
        };
        let old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        let another = |old: &Old| old.generation >= first && old.generation != link.generation;
        let lives = Clock::Boot.now() < over && old.iter().any(another);
        if !lives {
            unsettled.remove(id);
            self.unsettled_count
                .store(unsettled.len(), Ordering::SeqCst);
        }
        !lives
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        self.state.send_replace(State::Closed);
        self.waiters.stir_all();
    }

    async fn connect(self: &Arc<Self>) -> Result<Facts> {
        let generation = self.generations.fetch_add(1, Ordering::SeqCst) + 1;
        let opening = Opening {
            config: &self.config,
            scripts: &self.scripts,
            channel: &self.channel,
            generation,
            bell: Arc::clone(&self.bell),
        };
        let hub = Arc::downgrade(self);
        let hear = move |payload: &[u8]| {
            if let Some(hub) = hub.upgrade()
                && let Some(message) = Message::parse(payload)
            {
                hub.hear(message, generation);
            }
        };
        let (mut link, facts) = Link::open(opening, hear).await?;
        if self.is_another(&link) {
            // Long up, but not the one before: somebody put it in the other's place.
            let from = Clock::Boot.now() + self.config.restart_delay;
            link.grants_from = link.grants_from.max(Some(from));
        }
        self.saw(link.floor);
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
        self.waiters.stir_all();
        Ok(facts)
    }

    /// Whether this is another server process than the one before.
    fn is_another(&self, link: &Link) -> bool {
        let mut run_id = self.run_id.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *run_id, link.run_id.clone());
        let another = before.is_some() && before != link.run_id;
        another && !self.config.restart_delay.is_zero()
    }

    /// Makes sure that nothing sent over earlier connections can still take effect.
    async fn end_old(&self, link: &Link) {
        let take = || {
            let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *old)
        };
        let mut left = Vec::new();
        for old in take() {
            let ended = match (&old.run_id, &link.run_id, old.client_id) {
                // Another process: whatever the former had to do is over.
                (Some(before), Some(now), _) if before != now => true,
                (Some(_), Some(_), Some(id)) => link.end_other(id).await,
                _ => false,
            };
            if !ended {
                left.push(old);
            }
        }
        // Claims give up on them after one lease; a few are enough to remember.
        let surplus = left.len().saturating_sub(64);
        left.drain(..surplus);
        *self.old.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }

    /// Notes that the connection is gone. `false` if it is not, or nobody wants another.
    fn note_loss(&self) -> bool {
        let mut lost = false;
        self.state.send_if_modified(|state| {
            let State::Up(link) = state else {
                lost = matches!(state, State::Down { .. });
                return false;
            };
            let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
            old.push(Old {
                generation: link.generation,
                client_id: link.client_id,
                run_id: link.run_id.clone(),
            });
            lost = true;
            *state = State::Down {
                why: "the connection was lost".into(),
                refused: false,
            };
            true
        });
        lost
    }

    /// A message came over the connection of this generation.
    fn hear(self: &Arc<Self>, message: Message, generation: u64) {
        match message {
            Message::Granted {
                claim,
                first,
                count,
                name,
            } => {
                self.saw(first + u64::from(count.max(1)) - 1);
                if generation != self.generations.load(Ordering::SeqCst) {
                    // The same message may come over the newer connection; all who wait place again over that one.
                    return;
                }
                if let Some(waiter) = self.waiters.find(&claim) {
                    waiter.push(Pushed { first, count });
                } else if self.gives_back(generation) {
                    // Nobody waits for it here any more: give it back at once.
                    let hub = Arc::clone(self);
                    tokio::spawn(async move { hub.give_back(claim, name).await });
                }
            }
            Message::Lost(claim) => {
                let _ = self.events.send(Event::Lost(claim));
            }
            Message::Asked(claim) => {
                let _ = self.events.send(Event::Asked(claim));
            }
        }
    }

    /// Whether a grant that nobody waits for is one that nobody has. On one connection messages and answers come in order.
    /// Soon after a reconnect the claim may hold by an answer that came over the connection before; then the claim window
    /// has to do.
    fn gives_back(&self, generation: u64) -> bool {
        match &*self.state.borrow() {
            State::Up(link) if link.generation == generation => {
                generation == 1 || Clock::Boot.now().since(link.opened_at) > self.config.window
            }
            _ => false,
        }
    }

    async fn give_back(&self, claim: ClaimId, name: LockName) {
        let Ok(link) = self.link().await else { return };
        let line = line_key(name.as_str());
        let args = |command: &mut Cmd| {
            command.arg(3).arg(name.as_str()).arg(&line).arg(COUNTER);
            command.arg(&mark(&claim)[..]).arg("").arg(self.highest());
        };
        if let Err(error) = link.run(&self.scripts.withdraw, args).await {
            let error = explain(self.store(), "giving back a grant", Some(&name), error);
            tracing::debug!(%name, %error, "a grant nobody waits for stays until its window is over");
        }
    }
}

/// Restores the connection whenever it is lost, until the hub is gone or closed.
async fn restore(hub: Weak<Hub>, bell: Arc<Notify>, mut state: watch::Receiver<State>) {
    loop {
        tokio::select! {
            () = bell.notified() => {}
            () = closed(&mut state) => return,
        }
        let mut pause = Duration::from_millis(5);
        loop {
            let Some(hub) = hub.upgrade() else { return };
            let stale = match &*hub.state.borrow() {
                State::Closed => return,
                State::Up(link) => !link.is_broken(),
                State::Down { .. } => false,
            };
            // The bell of a connection that was replaced meanwhile.
            if stale || !hub.note_loss() {
                break;
            }
            match hub.connect().await {
                Ok(_) => break,
                Err(error) => {
                    let refused = matches!(error, Error::Refused { .. } | Error::Config { .. });
                    tracing::debug!(store = hub.store(), %error, "reconnecting failed");
                    let why = error.to_string();
                    hub.state.send_if_modified(|state| {
                        let down = matches!(state, State::Down { .. });
                        if down {
                            *state = State::Down { why, refused };
                        }
                        down
                    });
                }
            }
            drop(hub);
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

async fn closed(state: &mut watch::Receiver<State>) {
    // An error means that the hub is gone.
    let _ = state.wait_for(|state| matches!(state, State::Closed)).await;
}

/// Which names were found taken of late: for those the way by script is the shorter one. A guess, shared by names of
/// the same hash; wrong guesses cost a command and nothing else.
#[derive(Debug)]
pub(crate) struct Hot(Box<[Heat; 1024]>);

/// How contended a name was lately.
#[derive(Debug)]
pub(crate) struct Heat(AtomicU8);

impl Heat {
    /// How many grants without anybody else it takes to cool down.
    const MOST: u8 = 8;

    pub(crate) fn is_hot(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn heat(&self) {
        self.0.store(Self::MOST, Ordering::Relaxed);
    }

    /// A little. Two who cool it at once may count as one: it is a guess all the same.
    pub(crate) fn cool(&self) {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(1);
        self.0.store(left, Ordering::Relaxed);
    }
}

impl Default for Hot {
    fn default() -> Self {
        Self(Box::new([const { Heat(AtomicU8::new(0)) }; 1024]))
    }
}

impl Hot {
    pub(crate) fn of(&self, name: &LockName) -> &Heat {
        // FNV-1a.
        let hash = name
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        &self.0[(hash >> 32) as usize % 1024]
    }
}

/// Unlike that of any other process.
fn random_u64() -> Result<u64> {
    let id = fencelock_core::ClaimIds::new()?.next();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id.as_bytes()[..8]);
    Ok(u64::from_be_bytes(bytes))
}
