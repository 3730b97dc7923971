//! Takes and releases that start while others are under way go to their replica together: `POST /v1/batch`. A request that is
//! alone is sent as usual. No request in a batch waits for a lock, and each answer is handed on when it comes. Where claims
//! belong to a replica, every request is sent alone.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock};
use fencelock_wire::{LINES, MOST_IN_BATCH};
use futures_util::future::join_all;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::connection::{Answer, Ask, Connections, NoAnswer, UNREAD};
use crate::exchange::{Exchange, Lines};

/// How many requests to one replica are under way before the next ones are collected.
const MOST_OUT: usize = 2;

/// After this time, a request without an answer no longer holds back others.
const SLOW: Duration = Duration::from_millis(2);

/// The longest batch, in bytes. The service accepts one mebibyte.
const MOST_BYTES: usize = 900 << 10;

/// An upper bound for the JSON of one item besides its body, in bytes.
const ITEM_BYTES: usize = 64;

/// How many requests in a row must be sent alone until requests count as few again.
const CROWD: u8 = 16;

/// For how long a replica that does not support batches gets none.
const PLAIN: Duration = Duration::from_secs(60);

/// What a request in a batch asks for. Its body is the same as that of a single request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Take,
    Release,
}

/// A request that may be sent with others.
struct Item {
    what: What,
    claim: ClaimId,
    key: HeaderValue,
    body: Bytes,
    limit: Duration,
    answer: oneshot::Sender<Result<Answer, NoAnswer>>,
}

/// Collects the requests to one replica.
pub(crate) struct Batches {
    connections: Arc<Connections>,
    address: String,
    state: Mutex<Collected>,
}

#[derive(Default)]
struct Collected {
    /// How many requests that hold back others are under way.
    out: usize,
    waiting: Vec<Item>,
    /// While this is above 0, requests are frequent: even the first of those that start together waits for the others.
    crowd: u8,
    /// The replica gets no batches until then.
    plain_until: Option<BootInstant>,
}

impl Batches {
    pub(crate) fn new(connections: Arc<Connections>, address: &str) -> Arc<Self> {
        Arc::new(Self {
            connections,
            address: address.to_owned(),
            state: Mutex::default(),
        })
    }

    /// Sends a request, alone or with others, and returns its answer. Must be called within a tokio runtime.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        (what, claim): (What, ClaimId),
        ask: Ask<'_>,
        (key, body): (&HeaderValue, &Bytes),
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        if let Some(slot) = self.alone() {
            let asked = self.connections.ask(&self.address, ask, limit);
            return slot.until_slow(asked).await;
        }
        let item = (what, claim, key, body);
        // Boxed, so that the future of a request that goes alone stays small.
        Box::pin(self.ask_with_others(item, limit)).await
    }

    /// A slot for a request that may be sent alone.
    fn alone(self: &Arc<Self>) -> Option<Slot> {
        let mut state = self.state.lock();
        let alone = state.crowd == 0 && state.out < MOST_OUT && state.waiting.is_empty();
        state.out += usize::from(alone);
        alone.then(|| Slot::new(self, true))
    }

    async fn ask_with_others(
        self: &Arc<Self>,
        (what, claim, key, body): (What, ClaimId, &HeaderValue, &Bytes),
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        let item = Item {
            what,
            claim,
            key: key.clone(),
            body: body.clone(),
            limit,
            answer,
        };
        let begin = {
            let mut state = self.state.lock();
            state.waiting.push(item);
            state.crowd = CROWD;
            let begin = state.out < MOST_OUT;
            state.out += usize::from(begin);
            begin
        };
        if begin {
            tokio::spawn(Slot::new(self, false).send());
        }
        let mut answered = answered;
        let first = timeout(SLOW.min(limit), &mut answered).await;
        let answer = match first {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.send_without_slot(claim);
                timeout(limit.saturating_sub(SLOW), &mut answered).await
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(_) => match timeout(UNREAD, answered).await {
                Ok(answer) => answer,
                Err(_) => {
                    let why = format!("no answer within {limit:?}");
                    return Err(NoAnswer::InDoubt(why));
                }
            },
        };
        let early = |_| {
            Err(NoAnswer::InDoubt(
                "the batch had no answer to it".to_owned(),
            ))
        };
        answer.unwrap_or_else(early)
    }

    /// Sends what was collected if a request about this claim still waits there. Those that hold it back may be futures that
    /// nobody polls, and then their time is never over.
    fn send_without_slot(self: &Arc<Self>, claim: ClaimId) {
        let waits = {
            let mut state = self.state.lock();
            let waits = state.waiting.iter().any(|item| item.claim == claim);
            state.out += usize::from(waits);
            waits
        };
        if waits {
            tokio::spawn(Slot::new(self, false).send());
        }
    }

    /// Ends the holding back by one request, and sends what was collected meanwhile. Must be called within a tokio runtime.
    fn pass_on(self: &Arc<Self>) {
        let goes_on = {
            let mut state = self.state.lock();
            let goes_on = !state.waiting.is_empty() && state.out <= MOST_OUT;
            state.out -= usize::from(!goes_on);
            goes_on
        };
        if goes_on {
            tokio::spawn(Slot::new(self, false).send());
        }
    }

    /// Sends each as a request of its own.
    async fn send_each(&self, batch: Vec<Item>) {
        let each = batch.into_iter().map(async |item| {
            let (method, path) = match item.what {
                What::Take => (&Method::PUT, format!("/v1/claims/{}", item.claim)),
                What::Release => (&Method::POST, format!("/v1/claims/{}/release", item.claim)),
            };
            let ask = Ask {
                method,
                path: &path,
                key: Some(&item.key),
                body: Some(&item.body),
                ..Ask::get("")
            };
            let answer = self.connections.ask(&self.address, ask, item.limit).await;
            // Sending fails if the caller is gone.
            let _ = item.answer.send(answer);
        });
        join_all(each).await;
    }

    async fn send_together(&self, batch: Vec<Item>, slot: Slot) {
        let limit = batch.iter().map(|item| item.limit).max();
        let limit = limit.unwrap_or_default() + UNREAD;
        let body = body(&batch);
        let key = batch.first().map(|item| item.key.clone());
        let ask = Ask {
            method: &Method::POST,
            key: key.as_ref(),
            body: Some(&body),
            accept: LINES,
            ..Ask::get("/v1/batch")
        };
        let asked = self.connections.begin(&self.address, ask, limit);
        let exchange = match slot.until_slow(asked).await {
            Ok(exchange) => exchange,
            Err(none) => {
                for item in batch {
                    let _ = item.answer.send(Err(none.clone()));
                }
                return;
            }
        };
        match exchange.status() {
            StatusCode::OK => {
                // Callers without an answer at the end get an error.
                if let Ok(Some(exchange)) =
                    timeout(limit, hand_on(batch, Lines::of(exchange))).await
                {
                    self.connections.keep(&self.address, exchange);
                }
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                tracing::debug!(replica = self.address, "this replica knows no batches");
                self.state.lock().plain_until = Some(Clock::Boot.now() + PLAIN);
                self.send_each(batch).await;
            }
            // One of them may be at fault for all. Nothing was done, so each is sent alone.
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => self.send_each(batch).await,
            status => {
                let replica = exchange.replica();
                let read = timeout(limit, self.connections.read(&self.address, exchange)).await;
                let body = read.map(|answer| answer.map(|answer| answer.body));
                let body = body.ok().and_then(Result::ok).unwrap_or_default();
                for item in batch {
                    let (replica, body) = (replica.clone(), body.clone());
                    let _ = item.answer.send(Ok(Answer {
                        status,
                        replica,
                        body,
                        rest: None,
                    }));
                }
            }
        }
    }
}

impl Collected {
    /// Takes out the next batch: requests of one key, each claim once. Requests whose caller is gone are not sent.
    fn next_batch(&mut self) -> Vec<Item> {
        let (mut batch, mut left): (Vec<Item>, Vec<Item>) = (Vec::new(), Vec::new());
        let (mut claims, mut bytes) = (HashSet::new(), 0);
        for item in std::mem::take(&mut self.waiting) {
            if item.answer.is_closed() {
                continue;
            }
            let size = item.body.len() + ITEM_BYTES;
            // The first one goes in any case, even if it is too long.
            let goes = batch.first().is_none_or(|first| {
                batch.len() < MOST_IN_BATCH && bytes + size <= MOST_BYTES && first.key == item.key
            });
            let fits = goes && claims.insert(item.claim);
            match fits {
                true => {
                    bytes += size;
                    batch.push(item);
                }
                false => left.push(item),
            }
        }
        self.waiting = left;
        batch
    }
}

/// A request that is under way and holds back others.
struct Slot {
    batches: Option<Arc<Batches>>,
    /// Whether its caller runs it, instead of a task of its own.
    is_alone: bool,
}

impl Slot {
    fn new(batches: &Arc<Batches>, is_alone: bool) -> Self {
        Self {
            batches: Some(Arc::clone(batches)),
            is_alone,
        }
    }

    /// Sends what was collected.
    async fn send(self) {
        // Tasks that were woken together also send together.
        tokio::task::yield_now().await;
        let Some(batches) = self.batches.clone() else {
            return;
        };
        let (batch, is_plain) = {
            let mut state = batches.state.lock();
            let now = Clock::Boot.now();
            let is_plain = state.plain_until.is_some_and(|until| now < until);
            let batch = state.next_batch();
            state.crowd -= u8::from(batch.len() < 2).min(state.crowd);
            (batch, is_plain)
        };
        match is_plain || batch.len() < 2 {
            true => self.until_slow(batches.send_each(batch)).await,
            false => batches.send_together(batch, self).await,
        }
    }

    /// Runs a request. It holds back others until it is done, but only for a short time.
    async fn until_slow<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let done = timeout(SLOW, work.as_mut()).await;
        self.pass_on();
        match done {
            Ok(done) => done,
            Err(_) => work.await,
        }
    }

    /// Sends what was collected meanwhile.
    fn pass_on(mut self) {
        if let Some(batches) = self.batches.take() {
            batches.pass_on();
        }
    }
}

impl Drop for Slot {
    /// Runs if the request ended early: its caller dropped it, or its task ended with its runtime. Then the collected requests
    /// must still be sent.
    fn drop(&mut self) {
        let Some(batches) = self.batches.take() else {
            return;
        };
        if self.is_alone && Handle::try_current().is_ok() {
            return batches.pass_on();
        }
        let unsent = {
            let mut state = batches.state.lock();
            state.out -= 1;
            std::mem::take(&mut state.waiting)
        };
        drop(unsent);
    }
}

fn body(batch: &[Item]) -> Bytes {
    let bytes = batch.iter().map(|item| item.body.len() + ITEM_BYTES);
    let mut body = Vec::with_capacity(bytes.sum::<usize>() + ITEM_BYTES);
    body.extend_from_slice(b"{\"claims\":[");
    for (at, item) in batch.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let what = match item.what {
            What::Take => "take",
            What::Release => "release",
        };
        let head = format!("{comma}{{\"claim\":\"{}\",\"{what}\":", item.claim);
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&item.body);
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
    Bytes::from(body)
}

/// One line of the answer.
#[derive(Deserialize)]
struct Line<'a> {
    claim: ClaimId,
    status: u16,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Gives each answer to its caller, as it comes. Returns the exchange if all of it was read.
async fn hand_on(batch: Vec<Item>, mut lines: Lines) -> Option<Exchange> {
    let replica = lines.replica();
    let answers = batch.into_iter().map(|item| (item.claim, item.answer));
    let mut open: HashMap<ClaimId, oneshot::Sender<_>> = answers.collect();
    while let Some(line) = lines.next().await.ok()? {
        let Some((claim, status, body)) = read_line(&line) else {
            continue;
        };
        let Some(answer) = open.remove(&claim) else {
            continue;
        };
        let _ = answer.send(Ok(Answer {
            status,
            replica: replica.clone(),
            body,
            rest: None,
        }));
    }
    Some(lines.into_exchange())
}

/// The claim, the status and the body in a line.
pub(crate) fn read_line(line: &Bytes) -> Option<(ClaimId, StatusCode, Bytes)> {
    let said = serde_json::from_slice::<Line<'_>>(line).ok()?;
    let status = StatusCode::from_u16(said.status).ok()?;
    let body = line.slice_ref(said.body.get().as_bytes());
    Some((said.claim, status, body))
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batches({})", self.address)
    }
}
