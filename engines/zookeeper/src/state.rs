//! What all parts of the engine share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::engine::{Claim, Event};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Result};
use foldhash::fast::RandomState;
use futures_util::future::join_all;
use tokio::sync::{Notify, mpsc};
use zookeeper_client::Error as Refusal;

use crate::config::Config;
use crate::connection::{Life, Link, patience};
use crate::entry::Spot;
use crate::error::{Trouble, error};
use crate::lock_node::{Above, Parent};
use crate::names;
use crate::queue::Line;
use crate::session::{Listeners, Session};

/// How many sessions one client opens with just the timeouts that its holds want. Each ttl and lock-delay may want one of
/// its own.
const SESSIONS: usize = 16;

/// How many requests to tidy up are on their way at once.
pub(crate) const AT_ONCE: usize = 256;

/// The state behind the engine.
pub(crate) struct Store {
    pub(crate) config: Arc<Config>,
    /// The session of those who wait.
    pub(crate) line: Arc<Session>,
    /// The shortest and the longest session that the servers grant.
    pub(crate) limits: (Duration, Duration),
    /// Those of holds, by what was asked for.
    sessions: tokio::sync::Mutex<HashMap<Duration, Arc<Session>>>,
    listeners: Listeners,
    pub(crate) tell: mpsc::UnboundedSender<Event>,
    pub(crate) watch: mpsc::UnboundedSender<(Arc<Spot>, Arc<Link>)>,
    pub(crate) state: Mutex<State>,
    /// There is more to tidy up.
    pub(crate) work: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) closed: bool,
    pub(crate) spots: HashMap<ClaimId, Arc<Spot>, RandomState>,
    /// When holds end unless they were prolonged meanwhile.
    pub(crate) ends: BinaryHeap<Reverse<(BootInstant, ClaimId)>>,
    /// The nodes of names that this client used.
    pub(crate) parents: HashMap<LockName, Parent, RandomState>,
    /// Whether it will be tidied up before long, without a word.
    pub(crate) tidies: bool,
}

impl Store {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(
        config: Arc<Config>,
        line: Arc<Session>,
        limits: (Duration, Duration),
        listeners: Listeners,
        tell: mpsc::UnboundedSender<Event>,
        watch: mpsc::UnboundedSender<(Arc<Spot>, Arc<Link>)>,
    ) -> Self {
        Self {
            config,
            line,
            limits,
            sessions: tokio::sync::Mutex::default(),
            listeners,
            tell,
            watch,
            state: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// The node of a name.
    pub(crate) fn parent(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.root, names::encode(name))
    }

    /// A claim's node.
    pub(crate) fn path(&self, name: &LockName, node: &str) -> String {
        format!("{}/{node}", self.parent(name))
    }

    /// The session that a hold of this claim wants: two thirds of it are the ttl, after which the client gives up.
    pub(crate) fn wanted(&self, claim: &Claim) -> Duration {
        let wanted = claim.ttl.saturating_mul(3) / 2;
        let wanted = wanted.saturating_add(claim.lock_delay);
        wanted.clamp(self.limits.0, self.limits.1)
    }

    /// For how long a hold can be believed in this session.
    pub(crate) fn lease(&self, claim: &Claim, life: &Life) -> Duration {
        let sure = life.timeout.saturating_sub(claim.lock_delay) * 2 / 3;
        sure.min(claim.ttl)
    }

    /// The session that a claim is to stand in line with.
    pub(crate) async fn line_session(&self, claim: &Claim) -> Result<Arc<Session>, Trouble> {
        let wanted = self.wanted(claim);
        if wanted >= self.line.timeout {
            return Ok(Arc::clone(&self.line));
        }
        self.session(wanted).await
    }

    /// A session with this timeout; with one up to twice as long if there are many already, so that holds share them.
    pub(crate) async fn session(&self, wanted: Duration) -> Result<Arc<Session>, Trouble> {
        let open = async {
            let mut sessions = self.sessions.lock().await;
            if let Some(session) = sessions.get(&wanted) {
                return Ok(Arc::clone(session));
            }
            let mut timeout = wanted;
            if sessions.len() >= SESSIONS {
                // There are few such lengths, and one of them is long enough for any hold.
                timeout = self.rounded(wanted);
                let all = sessions.values().chain([&self.line]);
                let fit = all.filter(|session| (wanted..=timeout).contains(&session.timeout));
                if let Some(fit) = fit.min_by_key(|session| session.timeout) {
                    return Ok(Arc::clone(fit));
                }
                // Whoever has a node, or may have one, has its session, too; and others come by it only here.
                let unused = sessions.extract_if(|_, session| Arc::strong_count(session) == 1);
                let unused: Vec<_> = unused.map(|(_, session)| session).collect();
                join_all(unused.iter().map(|session| session.close(true))).await;
            }
            let opened = Session::open(&self.config, timeout, self.listeners.clone()).await;
            let opened = opened.map_err(|error| Trouble::Silent(error.to_string()))?;
            sessions.insert(timeout, Arc::clone(&opened));
            Ok(opened)
        };
        // Time for one server that is silent, and an answer of another.
        let limit = patience(wanted) + self.config.response_timeout;
        match tokio::time::timeout(limit, open).await {
            Ok(opened) => opened,
            Err(_) => Err(Trouble::Silent(format!("no session within {limit:?}"))),
        }
    }

    /// The next power of two, in nanoseconds.
    fn rounded(&self, timeout: Duration) -> Duration {
        let nanos = u64::try_from(timeout.as_nanos()).ok();
        let next = nanos.and_then(u64::checked_next_power_of_two);
        next.map_or(self.limits.1, Duration::from_nanos)
            .min(self.limits.1)
    }

    /// All sessions.
    pub(crate) async fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock().await;
        let all = sessions.values().chain([&self.line]);
        all.map(Arc::clone).collect()
    }

    pub(crate) fn spot(&self, id: ClaimId) -> Option<Arc<Spot>> {
        self.state().spots.get(&id).map(Arc::clone)
    }

    /// Notes that a claim has a place, or may have one soon.
    pub(crate) fn add(&self, claim: &Claim, session: Arc<Session>, life: Arc<Life>) -> Arc<Spot> {
        let mut state = self.state();
        let parent = state.parents.entry(claim.name.clone());
        let parent = parent.or_insert_with(|| Parent {
            uses: 0,
            ours: false,
            idle_since: Clock::Boot.now(),
            above: Arc::new(Above::new(self.parent(&claim.name))),
        });
        parent.uses += 1;
        let spot = Arc::new(Spot::new(claim, Arc::clone(&parent.above), session, life));
        state.spots.insert(spot.id, Arc::clone(&spot));
        spot
    }

    /// Notes that a claim has no place any more.
    pub(crate) fn remove(&self, spot: &Spot) {
        let mut state = self.state();
        if state.spots.remove(&spot.id).is_none() {
            return;
        }
        let idle = match state.parents.get_mut(&spot.name) {
            Some(parent) => {
                parent.uses -= 1;
                parent.idle_since = Clock::Boot.now();
                parent.uses == 0 && !state.tidies
            }
            None => false,
        };
        drop(state);
        if idle {
            self.work.notify_one();
        }
    }

    /// Notes that the node of a name is there; whether this client made it.
    pub(crate) fn parent_made(&self, spot: &Spot, ours: bool) {
        spot.above.set_exists(true);
        if let Some(parent) = self.state().parents.get_mut(&spot.name) {
            parent.ours = ours;
        }
    }

    /// Notes until when a hold is to stand.
    pub(crate) fn stand_until(&self, spot: &Spot, until: BootInstant) {
        let first = {
            let mut now = spot.now();
            let first = !now.held;
            now.held = true;
            now.until = until;
            first
        };
        // A prolonged hold is found in its old place in the heap, and put back.
        if first {
            let mut state = self.state();
            let soonest = state.ends.peek().is_none_or(|Reverse((at, _))| until < *at);
            state.ends.push(Reverse((until, spot.id)));
            drop(state);
            if soonest {
                self.work.notify_one();
            }
        }
    }

    /// The line at a name; none if there is no such node.
    pub(crate) fn sorted(&self, name: &LockName, children: Vec<String>) -> Result<Line> {
        Line::new(children).map_err(|word| Error::NotALock {
            store: self.config.store.clone(),
            name: name.clone(),
            why: format!("somebody stands in line in the mode {word:?}, which this version does not know; use the newer fencelock"),
        })
    }

    /// The children of a name's node; none if there is no such node.
    pub(crate) async fn children(
        &self,
        link: &Link,
        list: impl Future<Output = Result<Vec<String>, Refusal>>,
    ) -> Result<Vec<String>, Trouble> {
        match link.read(list).await {
            Err(Trouble::Answered(Refusal::NoNode)) => Ok(Vec::new()),
            children => children,
        }
    }

    /// The children of a name's node as they are after all that the servers have taken so far.
    pub(crate) async fn fresh_children(
        &self,
        link: &Link,
        name: &LockName,
    ) -> Result<Vec<String>, Trouble> {
        let parent = self.parent(name);
        let sync = link.client().sync(self.config.root_path());
        let list = link.client().list_children(&parent);
        // Both are on their way before the first answer is awaited.
        let (synced, children) = tokio::join!(link.read(sync), self.children(link, list));
        match synced {
            Ok(()) | Err(Trouble::Answered(_)) => children,
            Err(trouble) => Err(trouble),
        }
    }

    /// An error that says what was asked.
    pub(crate) fn error(&self, action: impl Into<String>, trouble: Trouble) -> Error {
        error(&self.config, action, trouble)
    }
}
