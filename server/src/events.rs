//! The events of a replica: what its engine reports of holds, and changes of leaders. Events are hints: a client that gets one
//! asks the service again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, ClaimId, Engine, LockName, Token};
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use crate::bound::Bound;
use crate::metrics::Metrics;

/// How many events a slow listener may have unread. Further ones are lost for it.
const MAX_UNREAD: usize = 1024;

/// The event of a claim that holds after it waited.
pub(crate) const GRANTED: &str = "granted";

/// How long one watch of a lock lasts. Then the task checks whether anybody still listens.
const LOOK_ROUND: Duration = Duration::from_secs(10);

/// The shortest and the longest pause after a lock could not be watched.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The events of a replica, and who listens to them.
#[derive(Debug)]
pub(crate) struct Events {
    engine: Arc<dyn Engine>,
    metrics: Arc<Metrics>,
    /// On a store that is bound to replicas: what this one holds.
    bound: Option<Arc<Bound>>,
    /// The listeners to the claims of a key, by the first bytes of their ids.
    listeners: Mutex<HashMap<[u8; 10], Vec<Listener>>>,
    holds: Mutex<Holds>,
    watched: Mutex<HashMap<LockName, broadcast::Sender<Told>>>,
    streams: AtomicUsize,
    /// Somebody else has taken the engine's events, so this replica gets none.
    deaf: AtomicBool,
}

/// A listener to the claims of a key.
#[derive(Debug)]
struct Listener {
    sender: mpsc::Sender<Told>,
    /// Whether it wants events of grants, which its client also gets as answers.
    hears_grants: bool,
}

/// The events of claims or of a lock, for one listener.
#[derive(Debug)]
pub(crate) enum Receiver {
    Claims(mpsc::Receiver<Told>),
    Lock(broadcast::Receiver<Told>),
}

impl Receiver {
    /// The next event; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        match self {
            Self::Claims(receiver) => receiver.recv().await,
            Self::Lock(receiver) => loop {
                match receiver.recv().await {
                    Ok(told) => return Some(told),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            },
        }
    }
}

/// The holds that were placed or renewed here last.
#[derive(Debug, Default)]
struct Holds {
    by_id: HashMap<ClaimId, Hold>,
    /// At this number of holds, those that are over are forgotten.
    sweep_at: usize,
}

/// How long a hold is kept for which no request comes here.
const KEPT: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
struct Hold {
    name: LockName,
    token: Token,
    /// When its lease is over.
    until: BootInstant,
    /// When it was granted or renewed here last.
    noted: BootInstant,
    /// When it was granted here. `None` if it was granted elsewhere.
    since: Option<BootInstant>,
}

/// A hold that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// `None` if it was granted elsewhere.
    pub(crate) lasted: Option<Duration>,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Told {
    #[serde(skip)]
    pub(crate) event: &'static str,
    pub(crate) claim: Option<ClaimId>,
    name: Option<LockName>,
    token: Option<Token>,
}

impl Events {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        metrics: Arc<Metrics>,
        bound: Option<Arc<Bound>>,
    ) -> Self {
        Self {
            engine,
            metrics,
            bound,
            listeners: Mutex::default(),
            holds: Mutex::default(),
            watched: Mutex::default(),
            streams: AtomicUsize::new(0),
            deaf: AtomicBool::new(false),
        }
    }

    /// Takes the engine's events, which can be taken once, and passes them on.
    pub(crate) fn start(self: &Arc<Self>) {
        let mut events = match self.engine.events() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "the events of the store cannot be read");
                return self.deaf.store(true, Ordering::Relaxed);
            }
        };
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Some(this) = this.upgrade() else {
                    return;
                };
                match event {
                    Ok(event) => this.hear(event),
                    Err(error) => tracing::debug!(%error, "listening to the store failed"),
                }
            }
        });
    }

    /// Whether the replica gets the store's events.
    pub(crate) fn are_heard(&self) -> bool {
        !self.deaf.load(Ordering::Relaxed)
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Counts a stream that was opened.
    pub(crate) fn opened(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream that has ended. `ids` is the key of its claims; `None` if it was a stream of a lock.
    pub(crate) fn closed(&self, ids: Option<&[u8; 10]>) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        let Some(ids) = ids else { return };
        let mut listeners = self.listeners.lock();
        if let Some(of_key) = listeners.get_mut(ids) {
            of_key.retain(|listener| !listener.sender.is_closed());
            if of_key.is_empty() {
                listeners.remove(ids);
            }
        }
    }

    /// Listens to the claims of a key.
    pub(crate) fn of_claims(&self, ids: [u8; 10], hears_grants: bool) -> Receiver {
        let (sender, receiver) = mpsc::channel(MAX_UNREAD);
        let listener = Listener {
            sender,
            hears_grants,
        };
        self.listeners.lock().entry(ids).or_default().push(listener);
        Receiver::Claims(receiver)
    }

    fn hear(&self, event: Event) {
        let (event, claim, hold) = match event {
            Event::Lost(id) | Event::Ended(id, _) => ("lost", id, self.over(id)),
            Event::Asked(id) => {
                let hold = self.holds.lock().by_id.get(&id).cloned();
                ("release-requested", id, hold)
            }
        };
        if event == "lost" {
            if hold.is_some() {
                self.metrics.lost("taken_away");
            }
            if let Some(bound) = &self.bound {
                bound.end(claim);
            }
        }
        let (name, token) = hold.map(|hold| (hold.name, hold.token)).unzip();
        self.tell(claim, || Told {
            event,
            claim: Some(claim),
            name,
            token,
        });
    }

    /// Sends an event to the listeners to the claim's key, and to no others.
    fn tell(&self, claim: ClaimId, told: impl FnOnce() -> Told) {
        let mut ids = [0; 10];
        ids.copy_from_slice(&claim.as_bytes()[..10]);
        let listeners = self.listeners.lock();
        let Some(of_key) = listeners.get(&ids) else {
            return;
        };
        let told = told();
        let is_grant = told.event == GRANTED;
        for listener in of_key.iter().filter(|one| one.hears_grants || !is_grant) {
            // A listener with too many unread events misses this one.
            let _ = listener.sender.try_send(told.clone());
        }
    }

    /// Notes and reports that a claim holds after it waited. A grant without a wait is reported by its answer alone, which
    /// saves a write to each listener.
    pub(crate) fn granted(&self, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
        self.began(id, name, token, until);
        self.tell(id, || Told {
            event: GRANTED,
            claim: Some(id),
            name: Some(name.clone()),
            token: Some(token),
        });
    }

    /// Notes that a claim was granted here.
    pub(crate) fn began(&self, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
        let now = self.engine.clock().now();
        self.note(id, name, token, until, Some(now));
    }

    /// Notes that a claim holds until then, as far as this replica knows.
    pub(crate) fn holds(&self, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
        self.note(id, name, token, until, None);
    }

    fn note(
        &self,
        id: ClaimId,
        name: &LockName,
        token: Token,
        until: BootInstant,
        since: Option<BootInstant>,
    ) {
        let now = self.engine.clock().now();
        let mut holds = self.holds.lock();
        let before = holds.by_id.get(&id).filter(|hold| hold.token == token);
        let hold = Hold {
            name: name.clone(),
            token,
            until,
            noted: now,
            since: before.and_then(|hold| hold.since).or(since),
        };
        holds.by_id.insert(id, hold);
        if holds.by_id.len() > holds.sweep_at {
            // It may have been released at another replica, long before the end of its lease.
            holds
                .by_id
                .retain(|_, hold| hold.until > now && hold.noted + KEPT > now);
            holds.sweep_at = 2 * holds.by_id.len() + MAX_UNREAD;
        }
    }

    /// The token with which a claim holds this lock, as far as this replica knows.
    pub(crate) fn held_with(&self, id: &ClaimId, name: &LockName) -> Option<Token> {
        let now = self.engine.clock().now();
        let holds = self.holds.lock();
        let hold = holds.by_id.get(id);
        let hold = hold.filter(|hold| hold.name == *name && hold.until > now)?;
        Some(hold.token)
    }

    /// Forgets a hold.
    fn over(&self, id: ClaimId) -> Option<Hold> {
        self.holds.lock().by_id.remove(&id)
    }

    /// Forgets a hold that was released. `None` if it was not known to hold.
    pub(crate) fn ended(&self, id: ClaimId) -> Option<Ended> {
        let hold = self.over(id)?;
        let now = self.engine.clock().now();
        Some(Ended {
            lasted: hold.since.map(|since| now.since(since)),
        })
    }

    /// Forgets a hold that a renewal found lost. `false` if it was not known to hold, or holds by a later token: then the renewal
    /// was late.
    pub(crate) fn lost(&self, id: ClaimId, token: Token) -> bool {
        let mut holds = self.holds.lock();
        match holds.by_id.get(&id) {
            Some(hold) if hold.token <= token => holds.by_id.remove(&id).is_some(),
            _ => false,
        }
    }

    /// Listens to the changes of one lock. The lock is watched once, however many listen.
    pub(crate) fn of_lock(self: &Arc<Self>, name: &LockName, seen: Option<Token>) -> Receiver {
        let mut watched = self.watched.lock();
        if let Some(sender) = watched.get(name) {
            return Receiver::Lock(sender.subscribe());
        }
        let (sender, receiver) = broadcast::channel(MAX_UNREAD);
        watched.insert(name.clone(), sender.clone());
        let watch = watch(Arc::downgrade(self), name.clone(), seen, sender);
        tokio::spawn(watch);
        Receiver::Lock(receiver)
    }

    /// Ends the watch of a lock if nobody listens to it. Returns whether nobody does.
    fn leave(&self, name: &LockName, sender: &broadcast::Sender<Told>) -> bool {
        let mut watched = self.watched.lock();
        let nobody = sender.receiver_count() == 0;
        if nobody {
            watched.remove(name);
        }
        nobody
    }
}

/// Reports changes of the leader: each change of the highest token of a lock.
async fn watch(
    events: Weak<Events>,
    name: LockName,
    mut seen: Option<Token>,
    sender: broadcast::Sender<Told>,
) {
    let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
    loop {
        let Some(events) = events.upgrade() else {
            return;
        };
        if events.leave(&name, &sender) {
            return;
        }
        let watch = events.engine.inspect().watch(&name, seen);
        let view = match tokio::time::timeout(LOOK_ROUND, watch).await {
            Ok(Ok(view)) => view,
            // Check whether anybody still listens.
            Err(_) => continue,
            Ok(Err(error)) => {
                tracing::debug!(%name, %error, "watching a lock failed");
                drop(events);
                tokio::time::sleep(pauses.next_pause()).await;
                continue;
            }
        };
        let token = view.token();
        if seen != token {
            let claim = view.holders.first().and_then(|holder| holder.claim);
            let _ = sender.send(Told {
                event: "leader",
                claim,
                name: Some(name.clone()),
                token,
            });
        }
        seen = token;
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::{ClaimIds, Clock, Memory};
    use tokio::time::{Instant, advance};

    use super::*;

    /// A client takes many locks for a day here, and releases them at another replica.
    #[tokio::test(start_paused = true)]
    async fn a_hold_about_which_nobody_asks_is_forgotten_before_its_lease_is_over() {
        let store = Arc::new(Memory::with_clock(Clock::Tokio(Instant::now())));
        let events = Events::new(store.clone(), Metrics::new(&[]), None);
        let (ids, name) = (ClaimIds::new().unwrap(), LockName::new("a").unwrap());
        let take = |id| {
            let tomorrow = store.clock().now() + KEPT * 24;
            events.began(id, &name, Token(1), tomorrow);
        };
        let first = ids.next();
        take(first);
        (0..MAX_UNREAD).for_each(|_| take(ids.next()));
        advance(KEPT * 2).await;
        let renewed = ids.next();
        take(renewed);
        (0..2 * MAX_UNREAD).for_each(|_| take(ids.next()));
        assert_eq!(events.held_with(&first, &name), None);
        assert_eq!(events.held_with(&renewed, &name), Some(Token(1)));
        assert!(events.holds.lock().by_id.len() <= 2 * MAX_UNREAD + 2);
    }
}
