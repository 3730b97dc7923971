//! The first answers to operations, for those who ask again.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::LockName;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use tokio::sync::{Mutex as Turns, OwnedMutexGuard};

use super::problem::Problem;
use crate::highest::Gates;

/// The header that names an operation.
pub const KEY_HEADER: &str = "idempotency-key";

/// The header of an answer that was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest answer that is kept.
const LONGEST: usize = 1 << 20;

/// What an answer costs beside its text: about what the maps and the allocator take.
const OVERHEAD: usize = 256;

/// The first answers to operations, in memory. Cheap to clone; all clones are one.
///
/// Bounded in size: the oldest answers are forgotten first. All are forgotten with the process. An operation that must not be
/// done twice over a restart needs its outcome in the database that it writes to: see
/// [`sql::Operations`](crate::sql::Operations).
#[derive(Clone)]
pub struct Answers {
    kept: Arc<Mutex<Kept>>,
}

/// An operation: the lock that protects what it writes to, and the key that its client chose.
type Key = (LockName, String);

struct Kept {
    answers: HashMap<Key, Known>,
    /// From the oldest on.
    order: VecDeque<Key>,
    size: usize,
    most: usize,
    /// Operations that are running.
    running: Gates<Key, Turns<()>>,
}

#[derive(Clone)]
struct Known {
    /// Method and target.
    request: String,
    answer: Answer,
}

/// What the service answered.
#[derive(Clone)]
pub(super) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// What comes of looking an operation up.
pub(super) enum Turn {
    /// It was done: its first answer.
    Done(Answer),
    /// It is to be done now, and nobody else does it while this is kept.
    Mine(Mine),
}

pub(super) struct Mine {
    answers: Answers,
    key: Key,
    request: String,
    _turn: OwnedMutexGuard<()>,
}

impl Answers {
    /// Keeps answers of `bytes` together, with their headers and some 256 bytes for each; and always the last one.
    #[must_use]
    pub fn in_memory(bytes: usize) -> Self {
        let kept = Kept {
            answers: HashMap::new(),
            order: VecDeque::new(),
            size: 0,
            most: bytes,
            running: Gates::default(),
        };
        let kept = Arc::new(Mutex::new(kept));
        Self { kept }
    }

    /// The first answer to an operation, or the right to do it. Waits while somebody else does it.
    pub(super) async fn turn(
        &self,
        lock: &LockName,
        operation: &str,
        parts: &Parts,
        limit: Duration,
    ) -> Result<Turn, Problem> {
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
        let turn = tokio::time::timeout(limit, running.lock_owned()).await;
        let turn = turn.map_err(|_| Problem::running(operation, limit))?;
        // Whoever did it meanwhile has kept the answer before it let us in.
        if let Some(done) = self.kept().done(&key, &request) {
            return done;
        }
        Ok(Turn::Mine(Mine {
            answers: self.clone(),
            key,
            request,
            _turn: turn,
        }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing in there panics halfway.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept();
        f.debug_struct("Answers")
            .field("count", &kept.answers.len())
            .field("size", &kept.size)
            .field("most", &kept.most)
            .finish()
    }
}

impl Kept {
    fn done(&self, key: &Key, request: &str) -> Option<Result<Turn, Problem>> {
        let known = self.answers.get(key)?;
        Some(match known.request == request {
            true => Ok(Turn::Done(known.answer.clone())),
            false => Err(Problem::another_request(&key.1, &known.request)),
        })
    }

    fn keep(&mut self, key: Key, known: Known) {
        self.size += size(&key, &known);
        self.order.push_back(key.clone());
        self.answers.insert(key, known);
        while self.size > self.most && self.order.len() > 1 {
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
    // The key is in the queue, too.
    let key = 2 * (key.0.as_str().len() + key.1.len());
    OVERHEAD + key + known.request.len() + headers + known.answer.body.len()
}

impl Mine {
    /// Keeps the answer, and gives it back for whoever asked first. `None`: the service failed without one.
    pub(super) async fn keep<R>(self, response: Option<Response<R>>) -> Response<R>
    where
        R: Body + From<Vec<u8>>,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let answer = match response {
            // By these the service says that it has done nothing.
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

    /// The same for whoever asks again.
    pub(super) fn again<R: From<Vec<u8>>>(self) -> Response<R> {
        let mut response = self.into_response();
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        response
    }
}

/// The operation that a request names; `None` if it names none.
pub(super) fn operation(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut sent = headers.get_all(KEY_HEADER).iter();
    let key = match (sent.next(), sent.next()) {
        (None, _) => return Ok(None),
        (Some(key), None) => key,
        (Some(_), Some(_)) => return Err(Problem::unreadable_key("there is more than one")),
    };
    let key = key.to_str().map(str::trim);
    let key = key.map_err(|_| Problem::unreadable_key("it is not ASCII"))?;
    // The draft standard wants quotes around it; most clients send none.
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = bare.unwrap_or(key);
    match key.len() {
        1..=255 => Ok(Some(key.to_owned())),
        length => Err(Problem::unreadable_key(&format!(
            "it has {length} characters"
        ))),
    }
}
