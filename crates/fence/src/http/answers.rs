//! The first answers to operations, for repeated requests.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::LockName;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::problem::Problem;
use crate::gates::Gates;

/// The header that names an operation.
pub const KEY_HEADER: &str = "idempotency-key";

/// The header of a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest answer.
const LONGEST: usize = 1 << 20;

/// The approximate cost of an answer beyond its text, for the maps and the allocator.
const OVERHEAD: usize = 256;

/// The first answers to operations, in memory. Cheap to clone: all clones share the answers.
///
/// Bounded in size: the oldest answers are dropped first. All end with the process. For an operation that must not be done
/// twice over a restart, store the outcome in the database that it writes to: see
/// [`sql::Operations`](crate::sql::Operations).
///
/// ```
/// # use fencelock_fence::http::{Answers, FenceLayer};
/// # use fencelock_fence::Highest;
/// let answers = Answers::in_memory(16 << 20); // 16 MiB
/// let layer = FenceLayer::for_lock("ledger").answer_once(answers);
/// ```
#[derive(Clone)]
pub struct Answers {
    kept: Arc<Mutex<Kept>>,
}

/// An operation: its lock, and the key that the client chose.
type Key = (LockName, String);

struct Kept {
    answers: HashMap<Key, Known>,
    /// The operations, the oldest first.
    order: VecDeque<Key>,
    size: usize,
    max_size: usize,
    /// The operations that are running.
    running: Gates<Key, AsyncMutex<()>>,
}

#[derive(Clone)]
struct Known {
    /// Method and target.
    request: String,
    answer: Answer,
}

/// An answer of the service.
#[derive(Clone)]
pub(super) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// The state of an operation.
pub(super) enum Lookup {
    /// It was done. This is its first answer.
    Done(Answer),
    /// It was not done before.
    First(FirstAttempt),
}

/// The right to do an operation. Meanwhile no other request does it.
pub(super) struct FirstAttempt {
    answers: Answers,
    key: Key,
    request: String,
    _running: OwnedMutexGuard<()>,
}

impl Answers {
    /// Keeps answers of up to `bytes` in total, counting their headers and some 256 bytes for each. The last answer is always
    /// kept.
    #[must_use]
    pub fn in_memory(bytes: usize) -> Self {
        let kept = Kept {
            answers: HashMap::new(),
            order: VecDeque::new(),
            size: 0,
            max_size: bytes,
            running: Gates::default(),
        };
        let kept = Arc::new(Mutex::new(kept));
        Self { kept }
    }

    /// The first answer to an operation, or the right to do the operation. Waits while another request does it.
    pub(super) async fn look_up(
        &self,
        lock: &LockName,
        operation: &str,
        parts: &Parts,
        limit: Duration,
    ) -> Result<Lookup, Problem> {
        let key = (lock.clone(), operation.to_owned());
        let target = parts
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        let request = format!("{} {target}", parts.method);
        let running = {
            let mut kept = self.kept();
            if let Some(done) = kept.done(&key, &request) {
                return done;
            }
            kept.running.of(&key)
        };
        let running = tokio::time::timeout(limit, running.lock_owned()).await;
        let running = running.map_err(|_| Problem::running(operation, limit))?;
        // The other request has kept its answer before it released the operation.
        if let Some(done) = self.kept().done(&key, &request) {
            return done;
        }
        Ok(Lookup::First(FirstAttempt {
            answers: self.clone(),
            key,
            request,
            _running: running,
        }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while the mutex is locked.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept();
        f.debug_struct("Answers")
            .field("count", &kept.answers.len())
            .field("size", &kept.size)
            .field("max_size", &kept.max_size)
            .finish()
    }
}

impl Kept {
    fn done(&self, key: &Key, request: &str) -> Option<Result<Lookup, Problem>> {
        let known = self.answers.get(key)?;
        Some(match known.request == request {
            true => Ok(Lookup::Done(known.answer.clone())),
            false => Err(Problem::another_request(&key.1, &known.request)),
        })
    }

    fn keep(&mut self, key: Key, known: Known) {
        self.size += size(&key, &known);
        self.order.push_back(key.clone());
        self.answers.insert(key, known);
        while self.size > self.max_size && self.order.len() > 1 {
            let oldest = self.order.pop_front();
            let gone = oldest.and_then(|key| self.answers.remove_entry(&key));
            self.size -= gone.map_or(0, |(key, known)| size(&key, &known));
        }
    }
}

fn size(key: &Key, known: &Known) -> usize {
    let headers = known.answer.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    // The key is also in the queue.
    let key = 2 * (key.0.as_str().len() + key.1.len());
    OVERHEAD + key + known.request.len() + headers + known.answer.body.len()
}

impl FirstAttempt {
    /// Keeps the answer, and returns it for this request. `None`: the service failed without an answer.
    pub(super) async fn keep<R>(self, response: Option<Response<R>>) -> Response<R>
    where
        R: Body + From<Vec<u8>>,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let answer = match response {
            // These answers say that the service has done nothing.
            Some(response) if is_refusal(response.status()) => return response,
            Some(response) => Answer::read(response).await,
            None => Err(Problem::failed()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(problem) => Answer::of(problem),
        };
        let known = Known {
            request: self.request,
            answer: answer.clone(),
        };
        self.answers.kept().keep(self.key, known);
        answer.into_response()
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
}

impl Answer {
    async fn read<R>(response: Response<R>) -> Result<Self, Problem>
    where
        R: Body,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| {
            tracing::warn!(%error, "the answer to an operation cannot be kept");
            Problem::answer_lost(LONGEST)
        })?;
        Ok(Self {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes().to_vec(),
        })
    }

    fn of(problem: Problem) -> Self {
        let (parts, body) = problem.into_response::<Vec<u8>>().into_parts();
        Self {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    fn into_response<R: From<Vec<u8>>>(self) -> Response<R> {
        let mut response = Response::new(R::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// The answer to a repeated request.
    pub(super) fn again<R: From<Vec<u8>>>(self) -> Response<R> {
        let mut response = self.into_response();
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        response
    }
}

/// The operation of a request, if it names one.
pub(super) fn operation(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut sent = headers.get_all(KEY_HEADER).iter();
    let key = match (sent.next(), sent.next()) {
        (None, _) => return Ok(None),
        (Some(key), None) => key,
        (Some(_), Some(_)) => return Err(Problem::unreadable_key("there is more than one")),
    };
    let key = key.to_str().map(str::trim);
    let key = key.map_err(|_| Problem::unreadable_key("it is not ASCII"))?;
    // The draft standard requires quotes, but most clients send none.
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = bare.unwrap_or(key);
    match key.len() {
        1..=255 => Ok(Some(key.to_owned())),
        length => Err(Problem::unreadable_key(&format!(
            "it has {length} characters"
        ))),
    }
}
