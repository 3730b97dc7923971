//! `GET /v1/events`: hints, as server-sent events. Nothing may be believed from them: whoever hears one asks again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use fencelock_core::engine::Event;
use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, ClaimId, Clock, LockName, Token};
use fencelock_wire::{ClaimKey, Kind};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::access::Streams;
use crate::caller::Caller;
use crate::incoming::{Query, claim_key};
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;

/// How many events a slow reader may be behind. What comes beyond is lost for it.
const BEHIND: usize = 1024;

/// A stream says something at least this often.
const BEAT: Duration = Duration::from_secs(10);

/// A stream ends then, and its client opens another one.
const LONGEST: Duration = Duration::from_secs(600);

/// The shortest and the longest pause after a lock could not be watched.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What a replica knows to tell.
#[derive(Debug)]
pub(crate) struct Events {
    clock: Clock,
    told: broadcast::Sender<Told>,
    holds: Mutex<Holds>,
    watched: Mutex<HashMap<LockName, broadcast::Sender<Told>>>,
    streams: AtomicUsize,
    /// The engine's events have another listener.
    deaf: AtomicBool,
}

/// The holds that were placed or renewed here last.
#[derive(Debug, Default)]
struct Holds {
    by_id: HashMap<ClaimId, Hold>,
    /// When there are so many, those that are over are forgotten.
    sweep_at: usize,
}

#[derive(Clone, Debug)]
struct Hold {
    name: LockName,
    token: Token,
    /// Its lease is over then.
    until: BootInstant,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
struct Told {
    #[serde(skip)]
    event: &'static str,
    claim: Option<ClaimId>,
    name: Option<LockName>,
    token: Option<Token>,
}

impl Events {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            told: broadcast::Sender::new(BEHIND),
            holds: Mutex::default(),
            watched: Mutex::default(),
            streams: AtomicUsize::new(0),
            deaf: AtomicBool::new(false),
        }
    }

    /// Listens to the engine, whose events have one listener.
    pub(crate) fn start(&self, replica: &Arc<Replica>) {
        let mut events = match replica.engine.events() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "no event of the store is told");
                return self.deaf.store(true, Ordering::Relaxed);
            }
        };
        let replica = Arc::downgrade(replica);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Some(replica) = replica.upgrade() else {
                    return;
                };
                match event {
                    Ok(event) => replica.events.hear(&replica, event),
                    Err(error) => tracing::debug!(%error, "listening to the store failed"),
                }
            }
        });
    }

    /// Whether the store's events are told.
    pub(crate) fn are_heard(&self) -> bool {
        !self.deaf.load(Ordering::Relaxed)
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    fn hear(&self, replica: &Replica, event: Event) {
        let (event, claim, hold) = match event {
            Event::Lost(id) => ("lost", id, self.over(id)),
            Event::Asked(id) => {
                let hold = self.holds.lock().by_id.get(&id).cloned();
                ("release-requested", id, hold)
            }
        };
        if event == "lost" && hold.is_some() {
            replica.metrics.lost("taken_away");
        }
        let (name, token) = hold.map(|hold| (hold.name, hold.token)).unzip();
        self.tell(Told {
            event,
            claim: Some(claim),
            name,
            token,
        });
    }

    fn tell(&self, told: Told) {
        // Nobody may listen.
        let _ = self.told.send(told);
    }

    /// A claim came to hold here.
    pub(crate) fn granted(&self, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
        self.holds(id, name, token, until);
        self.tell(Told {
            event: "granted",
            claim: Some(id),
            name: Some(name.clone()),
            token: Some(token),
        });
    }

    /// A claim holds for so long, as far as this replica knows.
    pub(crate) fn holds(&self, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
        let mut holds = self.holds.lock();
        let hold = Hold {
            name: name.clone(),
            token,
            until,
        };
        holds.by_id.insert(id, hold);
        if holds.by_id.len() > holds.sweep_at {
            let now = self.clock.now();
            holds.by_id.retain(|_, hold| hold.until > now);
            holds.sweep_at = 2 * holds.by_id.len() + BEHIND;
        }
    }

    /// A claim holds no more.
    fn over(&self, id: ClaimId) -> Option<Hold> {
        self.holds.lock().by_id.remove(&id)
    }

    /// A claim was released. Whether it was known to hold.
    pub(crate) fn ended(&self, id: ClaimId) -> bool {
        self.over(id).is_some()
    }

    /// The changes of one lock. It is watched once, however many listen.
    fn of_lock(
        &self,
        replica: &Arc<Replica>,
        name: &LockName,
        seen: Option<Token>,
    ) -> broadcast::Receiver<Told> {
        let mut watched = self.watched.lock();
        if let Some(sender) = watched.get(name) {
            return sender.subscribe();
        }
        let (sender, receiver) = broadcast::channel(BEHIND);
        watched.insert(name.clone(), sender.clone());
        let watch = watch(Arc::downgrade(replica), name.clone(), seen, sender);
        tokio::spawn(watch);
        receiver
    }

    /// Whether nobody listens to a lock any more; then it is watched no longer.
    fn leave(&self, name: &LockName, sender: &broadcast::Sender<Told>) -> bool {
        let mut watched = self.watched.lock();
        let nobody = sender.receiver_count() == 0;
        if nobody {
            watched.remove(name);
        }
        nobody
    }
}

/// Tells who leads: each change of the highest token of a lock.
async fn watch(
    replica: Weak<Replica>,
    name: LockName,
    mut seen: Option<Token>,
    sender: broadcast::Sender<Told>,
) {
    let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
    loop {
        let Some(replica) = replica.upgrade() else {
            return;
        };
        if replica.events.leave(&name, &sender) {
            return;
        }
        let watch = replica.engine.inspect().watch(&name, seen);
        let view = match tokio::time::timeout(BEAT, watch).await {
            Ok(Ok(view)) => view,
            // To see whether anybody listens still.
            Err(_) => continue,
            Ok(Err(error)) => {
                tracing::debug!(%name, %error, "watching a lock failed");
                drop(replica);
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

/// What one client listens to.
struct Stream {
    replica: Arc<Replica>,
    receiver: broadcast::Receiver<Told>,
    /// None: everything that comes is for it.
    ids: Option<[u8; 10]>,
    until: Instant,
    begun: bool,
    over: bool,
    _streams: Streams,
    _open: Open,
}

/// An open stream, counted until it is dropped.
struct Open(Arc<Replica>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.events.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stream {
    async fn next(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        if !std::mem::replace(&mut self.begun, true) {
            return Some("retry: 1000\n\n".to_owned());
        }
        let beat = Instant::now() + BEAT;
        loop {
            let told = tokio::select! {
                biased;
                () = self.replica.draining.cancelled() => {
                    self.over = true;
                    return Some("event: draining\ndata: {}\n\n".to_owned());
                }
                told = self.receiver.recv() => told,
                () = tokio::time::sleep_until(self.until) => return None,
                () = tokio::time::sleep_until(beat) => return Some(":\n\n".to_owned()),
            };
            match told {
                Ok(told) if self.is_for_me(&told) => {
                    let data = serde_json::to_string(&told).unwrap_or_default();
                    return Some(format!("event: {}\ndata: {data}\n\n", told.event));
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn is_for_me(&self, told: &Told) -> bool {
        match (&self.ids, &told.claim) {
            (None, _) => true,
            (Some(ids), Some(claim)) => claim.as_bytes()[..10] == *ids,
            (Some(_), None) => false,
        }
    }
}

/// Tells what happens to the claims of a key, or to one lock.
pub(crate) async fn events(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    replica.start();
    let query = Query::read(query.as_deref(), &["lock"])?;
    let (receiver, ids) = match (query.get("lock"), claim_key(&headers)?) {
        (Some(_), Some(_)) => {
            let detail = "a stream is about the lock of the parameter lock or about the claims of the header \
                          Fencelock-Key, not both";
            return Err(Refusal::invalid(detail));
        }
        (Some(name), None) => {
            let name = LockName::new(name).map_err(|error| Refusal::of(&error))?;
            caller.must(Right::Look, &name)?;
            // What changes after the answer is told.
            let view = replica.engine.inspect().look(&name).await;
            let view = view.map_err(|error| Refusal::of(&error).name(&name))?;
            (replica.events.of_lock(&replica, &name, view.token()), None)
        }
        (None, Some(key)) => {
            caller.must_be_somebody()?;
            (
                replica.events.told.subscribe(),
                Some(ClaimKey::claim_ids(&key)),
            )
        }
        (None, None) => {
            let detail = "which events? Send the header Fencelock-Key, or the parameter lock";
            return Err(Refusal::invalid(detail));
        }
    };
    if replica.draining.is_cancelled() {
        let detail = "this replica is about to end; use another one";
        return Err(Refusal::new(Kind::Draining, detail).close());
    }
    let streams = caller.count_stream()?;
    replica.events.streams.fetch_add(1, Ordering::Relaxed);
    let stream = Stream {
        _open: Open(Arc::clone(&replica)),
        replica,
        receiver,
        ids,
        until: Instant::now() + LONGEST,
        begun: false,
        over: false,
        _streams: streams,
    };
    let chunks = stream::unfold(stream, |mut stream| async move {
        let text = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(text), stream))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let media = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, media);
    Ok(response)
}
