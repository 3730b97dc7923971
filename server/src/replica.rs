//! What a replica is: one engine, and what it must remember while a request lasts.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{
    BootInstant, CancellationToken, ClaimId, Clock, ConfigPart, Engine, Error, LeaseKind, Promises,
    Result, Token,
};
use fencelock_wire::{Binding, Kind};
use futures_util::FutureExt;
use http::HeaderValue;
use tokio::sync::watch;

use crate::access::{Access, Bucket, OPERATOR};
use crate::audit::{Audit, Deed, Line, Reopened, STRANGERS_PER_S, Tail};
use crate::bound::Bound;
use crate::carried::Carried;
use crate::census;
use crate::config::Config;
use crate::events::Events;
use crate::identity::store_here;
use crate::known::Known;
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::principal::{Grant, Principal};
use crate::pulse::Pulse;
use crate::refusal::Refusal;
use crate::renewer::Renewer;
use crate::reserve::Renewers;

/// The longest first grant, whatever the store promises. A poll is at most half as long.
const LONGEST_WINDOW: Duration = Duration::from_secs(10);

/// The window on stores that have none because they grant nothing to a waiter that did not ask.
const OWN_WINDOW: Duration = Duration::from_secs(2);

/// The shortest lease: a request and its answer need some time to travel.
const SHORTEST_TTL: Duration = Duration::from_millis(100);

/// One replica. All of its requests share it.
pub(crate) struct Replica {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    /// The identity of the store, which clients compare between replicas.
    pub(crate) store: String,
    /// 16 hex digits, drawn at its start.
    pub(crate) id: String,
    /// The id as a header of every answer.
    pub(crate) id_header: HeaderValue,
    pub(crate) binding: Binding,
    /// The duration of a first grant, and of a place in the queue.
    pub(crate) window: Duration,
    pub(crate) known: Arc<Known>,
    /// The claims that belong to this replica, on a store that is bound to replicas.
    pub(crate) bound: Option<Arc<Bound>>,
    pub(crate) renewer: Arc<Renewer>,
    /// Cancelled when the replica is about to end.
    pub(crate) draining: CancellationToken,
    pub(crate) audit: Option<Audit>,
    pub(crate) tail: Tail,
    /// What the audit log may say about callers without known credentials.
    pub(crate) strangers: Bucket,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    /// Whether this process stood still.
    pub(crate) pulse: Arc<Pulse>,
    started: AtomicBool,
    pub(crate) renewers: Renewers,
    access: Mutex<Arc<Access>>,
    /// Notified when principals and rights were read again: long requests then check whether they are still allowed.
    reloads: watch::Sender<()>,
    polls: AtomicUsize,
    /// The claims that wait here now.
    pub(crate) waiting: Waiting,
    answers: Mutex<Answers>,
}

/// The store's latest answers.
struct Answers {
    last: Option<BootInstant>,
    failing_since: Option<(BootInstant, String)>,
}

impl Replica {
    pub(crate) fn new(engine: Arc<dyn Engine>, config: Config) -> Result<Self> {
        let promises = engine.promises();
        if promises.lease == LeaseKind::Connection {
            let why = "its locks depend on a connection to the database, and cannot be served over HTTP; use strategy=lease";
            return Err(Error::config(&engine, ConfigPart::Server, why));
        }
        let metrics = Metrics::new(&config.metrics);
        let measured = Measured::new(engine, Arc::clone(&metrics));
        let engine: Arc<dyn Engine> = Arc::new(measured);
        let promises = engine.promises();
        config
            .check()
            .map_err(|error| Error::config(&engine, ConfigPart::Server, error.to_string()))?;
        let access = Access::new(&config.principals, &config.anonymous, None)?;
        let audit = config.audit.as_ref().map(|log| {
            let opened = Audit::open(log);
            let file = log.file.display();
            opened.map_err(|error| {
                Error::config(
                    &engine,
                    ConfigPart::Server,
                    format!("the audit log {file}: {error}"),
                )
            })
        });
        let window = match promises.claim_window < promises.max_ttl {
            true => promises.claim_window.min(LONGEST_WINDOW),
            false => OWN_WINDOW,
        };
        let known = Known::new(Arc::clone(&engine), window);
        let bound =
            (!promises.portable).then(|| Bound::new(Arc::clone(&engine), Arc::clone(&known)));
        let id = draw_id(&engine)?;
        let id_header = HeaderValue::from_str(&id)
            .map_err(|error| Error::internal(&engine, format!("the id of a replica: {error}")))?;
        let events = Events::new(Arc::clone(&engine), Arc::clone(&metrics), bound.clone());
        Ok(Self {
            clock: engine.clock(),
            store: store_here(&*engine),
            id,
            id_header,
            binding: match bound {
                Some(_) => Binding::Replica,
                None => Binding::Store,
            },
            window,
            known,
            bound,
            renewer: Renewer::new(Arc::clone(&engine)),
            draining: CancellationToken::new(),
            audit: audit.transpose()?,
            tail: Tail::default(),
            strangers: Bucket::new(STRANGERS_PER_S),
            events: Arc::new(events),
            metrics,
            pulse: Arc::new(Pulse::new(engine.clock(), window)),
            started: AtomicBool::new(false),
            renewers: Renewers::default(),
            access: Mutex::new(Arc::new(access)),
            reloads: watch::Sender::new(()),
            polls: AtomicUsize::new(0),
            waiting: Waiting::default(),
            answers: Mutex::new(Answers {
                last: None,
                failing_since: None,
            }),
            engine,
            config,
        })
    }

    /// Starts the background tasks, once. Needs a tokio runtime.
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.started.swap(true, Ordering::AcqRel) {
            self.pulse.start(Arc::clone(&self.metrics));
            census::start(&self.engine, &self.metrics);
            self.events.start();
        }
    }

    /// Refuses a request that was read before this process stood still. Its client no longer waits for it.
    pub(crate) fn check_fresh(&self, received: BootInstant) -> Result<(), Refusal> {
        match self.pulse.stood_still_since(received) {
            false => Ok(()),
            true => {
                let detail = "this replica stood still after it had read the request, and has sent nothing to the store since; ask again";
                Err(Refusal::new(Kind::Unavailable, detail))
            }
        }
    }

    /// The principals and rights as they are now.
    pub(crate) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.lock())
    }

    /// Notified of each change of principals and rights. The first notification comes at once, because the caller may have been
    /// checked before the last change.
    pub(crate) fn reloads(&self) -> watch::Receiver<()> {
        let mut reloads = self.reloads.subscribe();
        reloads.mark_changed();
        reloads
    }

    /// Uses other principals and rights. If they cannot be used, nothing changes.
    pub(crate) fn reload(
        &self,
        principals: &[Principal],
        anonymous: &[Grant],
    ) -> Result<Option<Reopened>> {
        let mut access = self.access.lock();
        *access = Arc::new(Access::new(principals, anonymous, Some(&access))?);
        drop(access);
        self.reloads.send_replace(());
        let line = Line::new(&self.id, OPERATOR, None, Deed::Reload);
        let reopened = self.audit.as_ref().map(Audit::reopen);
        if let Some(audit) = &self.audit {
            audit.note(&line);
        }
        self.tail.push(line);
        Ok(reopened)
    }

    pub(crate) fn promises(&self) -> &Promises {
        self.engine.promises()
    }

    /// The longest time that a request waits.
    pub(crate) fn poll(&self) -> Duration {
        self.window / 2
    }

    pub(crate) fn min_ttl(&self) -> Duration {
        self.promises().min_ttl.max(SHORTEST_TTL)
    }

    pub(crate) fn max_ttl(&self) -> Duration {
        self.promises().max_ttl.min(self.config.limits.max_ttl)
    }

    /// The lease of a first grant. A request that arrives late or twice leaves behind no longer lease than that.
    pub(crate) fn first_ttl(&self, ttl: Duration) -> Duration {
        if self.bound.is_some() && self.promises().lease == LeaseKind::Session {
            // A session is chosen once, for the whole lease. This replica withdraws a claim that is not renewed.
            return ttl;
        }
        self.window.max(self.min_ttl()).min(ttl)
    }

    /// Counts a request that waits. An error if too many wait, unless this one is `in_queue` already.
    pub(crate) fn open_poll(self: &Arc<Self>, in_queue: bool) -> Result<Poll, Refusal> {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        let poll = Poll(Arc::clone(self));
        if polls >= self.config.limits.polls && !in_queue {
            let detail =
                format!("{polls} requests wait at this replica; ask again later, or another one");
            return Err(Refusal::new(Kind::Quota, detail));
        }
        Ok(poll)
    }

    /// If claims wait here, lets the requests that bring a grant be answered first.
    pub(crate) async fn let_grants_go_first(&self) {
        if self.waiting.any() {
            tokio::task::yield_now().await;
        }
    }

    /// How many requests wait.
    pub(crate) fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }

    /// Runs a call of the engine to its end, even if the request goes away.
    pub(crate) async fn carry<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let done = AssertUnwindSafe(Carried::new(call)).catch_unwind().await;
        done.ok().flatten().ok_or_else(|| {
            tracing::error!("a call of the store ended early");
            Refusal::new(
                Kind::Internal,
                "a call of the store ended early; the outcome is unknown",
            )
        })
    }

    /// Notes that the client of a hold is about to be told to believe until then. Returns until when it may believe, which is
    /// not longer than a replica keeps a claim that belongs to it. `None` if such a claim has ended.
    pub(crate) fn tells(
        &self,
        id: ClaimId,
        token: Token,
        until: BootInstant,
    ) -> Option<BootInstant> {
        match &self.bound {
            None => Some(until),
            Some(bound) => bound.tells(id, token, until, false),
        }
    }

    /// Notes an answer of the store, for `/readyz`.
    pub(crate) fn hear<T>(&self, answer: &Result<T>) {
        let now = self.clock.now();
        let mut answers = self.answers.lock();
        match answer {
            Err(error @ (Error::Unavailable { .. } | Error::Refused { .. })) => {
                answers
                    .failing_since
                    .get_or_insert_with(|| (now, error.to_string()));
            }
            _ => answers.failing_since = None,
        }
        answers.last = Some(now);
    }

    /// Whether the store answered a call, with success or failure, within this time.
    pub(crate) fn heard_within(&self, time: Duration) -> bool {
        let last = self.answers.lock().last;
        last.is_some_and(|last| self.clock.now().since(last) < time)
    }

    /// How long the store has failed every call, and the first of these errors.
    pub(crate) fn failing(&self) -> Option<(Duration, String)> {
        let answers = self.answers.lock();
        let (since, why) = answers.failing_since.as_ref()?;
        Some((self.clock.now().since(*since), why.clone()))
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replica({}, {})", self.id, self.engine)
    }
}

/// A request that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Poll(Arc<Replica>);

impl Drop for Poll {
    fn drop(&mut self) {
        self.0.polls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many claims wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Arc<AtomicUsize>);

/// A claim that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits(Arc<AtomicUsize>);

impl Waiting {
    pub(crate) fn one_more(&self) -> Waits {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waits(Arc::clone(&self.0))
    }

    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn draw_id(engine: &Arc<dyn Engine>) -> Result<String> {
    let mut bytes = [0; 8];
    let drawn = getrandom::fill(&mut bytes);
    drawn.map_err(|error| Error::internal(engine, format!("no random numbers: {error}")))?;
    Ok(format!("{:016x}", u64::from_be_bytes(bytes)))
}
