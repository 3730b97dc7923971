//! A fence before an HTTP service: a tower layer that reads the header `Fencelock-Sequencer` and refuses who is late, with
//! 412 and an `application/problem+json` body (RFC 9457).
//!
//! | the request | the answer |
//! | --- | --- |
//! | has a sequencer that passes | the service's |
//! | `GET`, `HEAD`, `OPTIONS` or `TRACE` without one | the service's, unless [`FenceLayer::always`] |
//! | any other without one | 428 |
//! | has more than one, or one that cannot be read | 400 |
//! | has one of another lock, of a superseded holder, or of one that holds no more ([`FenceLayer::ask`]) | 412 |
//! | cannot be judged: the store does not answer, the marks cannot be written | 503 |

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencelock_core::{Client, Sequencer};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::FenceError;
use crate::highest::{Highest, Pass};

/// The header that a holder sends its sequencer in.
pub const HEADER: &str = "fencelock-sequencer";

type LockOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Puts a fence before a service. Cheap to clone; all clones, and all services made with them, are one fence.
///
/// A holder's request has the service to itself, as far as holders of the same lock go, until the service has answered (with
/// the head of its answer): the check and the write are one step. Shared holders and permits come in beside each other.
#[derive(Clone)]
pub struct FenceLayer {
    fence: Arc<Fence>,
}

#[derive(Clone)]
struct Fence {
    lock_of: LockOf,
    highest: Highest,
    client: Option<Client>,
    always: bool,
}

impl FenceLayer {
    /// A fence for a service that one lock protects. It remembers in memory; see [`FenceLayer::remember`].
    #[must_use]
    pub fn for_lock(name: &str) -> Self {
        let name = name.to_owned();
        Self::for_lock_of(move |_| Some(name.clone()))
    }

    /// A fence for a service whose parts have locks of their own: `lock_of` names the one for a request; `None` for what
    /// no lock protects.
    pub fn for_lock_of(lock_of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        let fence = Arc::new(Fence {
            lock_of: Arc::new(lock_of),
            highest: Highest::in_memory(),
            client: None,
            always: false,
        });
        Self { fence }
    }

    fn with(self, change: impl FnOnce(&mut Fence)) -> Self {
        let mut fence = Arc::unwrap_or_clone(self.fence);
        change(&mut fence);
        let fence = Arc::new(fence);
        Self { fence }
    }

    /// Remembers the highest tokens there, such as in a file.
    #[must_use]
    pub fn remember(self, highest: Highest) -> Self {
        self.with(|fence| fence.highest = highest)
    }

    /// Also asks the lock's store whether that very grant is held now (Chubby's CheckSequencer), which costs a round trip
    /// for each request: it refuses a holder that lost its lock before anybody came after it, and a sequencer that nobody
    /// was ever granted.
    #[must_use]
    pub fn ask(self, client: Client) -> Self {
        self.with(|fence| fence.client = Some(client))
    }

    /// Wants a sequencer with reads, too.
    #[must_use]
    pub fn always(self) -> Self {
        self.with(|fence| fence.always = true)
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer")
            .field("highest", &self.fence.highest)
            .field("client", &self.fence.client)
            .field("always", &self.fence.always)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        let fence = Arc::clone(&self.fence);
        Fenced { inner, fence }
    }
}

/// A service behind a fence; see [`FenceLayer`].
#[derive(Clone)]
pub struct Fenced<S> {
    inner: S,
    fence: Arc<Fence>,
}

impl<S: fmt::Debug> fmt::Debug for Fenced<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: From<String> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes along, and a clone of it stays.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let fence = Arc::clone(&self.fence);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Kept until the service has answered.
            let _pass = match fence.judge(&parts).await {
                Ok(pass) => pass,
                Err(problem) => return Ok(problem.into_response()),
            };
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}

impl Fence {
    /// Whether a request may go on; what it holds then keeps others out.
    async fn judge(&self, parts: &Parts) -> Result<Option<Pass>, Problem> {
        let Some(lock) = (self.lock_of)(parts) else {
            return Ok(None);
        };
        let mut sent = parts.headers.get_all(HEADER).iter();
        let sequencer = match (sent.next(), sent.next()) {
            (None, _) if !self.always && is_read(&parts.method) => return Ok(None),
            (None, _) => return Err(Problem::missing(&lock)),
            (Some(sent), None) => read(sent)?,
            (Some(_), Some(_)) => return Err(Problem::unreadable("there is more than one")),
        };
        if sequencer.name.as_str() != lock {
            return Err(Problem::of_another(&sequencer, &lock));
        }
        let refuse = |error| Problem::refusal(&sequencer, &error);
        let gate = self.highest.gate(&sequencer).await;
        if let Some(client) = &self.client {
            // At the gate, so that the answer is as fresh as it can be; and before anything is remembered, so that a
            // sequencer that nobody was granted keeps nobody out.
            self.highest.judge(&sequencer).await.map_err(refuse)?;
            match client.check(&sequencer).await {
                Ok(true) => {}
                Ok(false) => return Err(Problem::not_held(&sequencer)),
                Err(error) => return Err(Problem::unknown(&lock, &error)),
            }
        }
        let pass = self.highest.pass(gate, &sequencer).await;
        pass.map(Some).map_err(refuse)
    }
}

fn is_read(method: &Method) -> bool {
    method.is_safe()
}

fn read(sent: &HeaderValue) -> Result<Sequencer, Problem> {
    let text = sent
        .to_str()
        .map_err(|error| Problem::unreadable(&error.to_string()))?;
    let parsed = text.trim().parse::<Sequencer>();
    parsed.map_err(|error| Problem::unreadable(&error.to_string()))
}

/// Why a request does not get to the service.
struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    members: Vec<(&'static str, Value)>,
}

impl Problem {
    fn missing(lock: &str) -> Self {
        Self {
            status: StatusCode::PRECONDITION_REQUIRED,
            kind: "missing",
            title: "A sequencer is required",
            detail: format!("send the sequencer of lock {lock} in the header Fencelock-Sequencer"),
            members: vec![("lock", json!(lock))],
        }
    }

    fn unreadable(why: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "unreadable",
            title: "The sequencer cannot be read",
            detail: format!("Fencelock-Sequencer: {why}"),
            members: Vec::new(),
        }
    }

    fn of_another(sequencer: &Sequencer, lock: &str) -> Self {
        Self {
            status: StatusCode::PRECONDITION_FAILED,
            kind: "another-lock",
            title: "The sequencer is of another lock",
            detail: format!("lock {lock} protects this, and not {}", sequencer.name),
            members: vec![("lock", json!(lock))],
        }
    }

    fn refusal(sequencer: &Sequencer, error: &FenceError) -> Self {
        let Some(stale) = error.stale() else {
            return Self::unknown(sequencer.name.as_str(), error);
        };
        Self {
            status: StatusCode::PRECONDITION_FAILED,
            kind: "stale",
            title: "The fencing token is stale",
            detail: stale.to_string(),
            members: vec![
                ("lock", json!(sequencer.name.as_str())),
                ("token", json!(stale.late.token.get())),
                ("won", json!(stale.won.get())),
            ],
        }
    }

    fn not_held(sequencer: &Sequencer) -> Self {
        let (name, token) = (&sequencer.name, sequencer.token);
        Self {
            status: StatusCode::PRECONDITION_FAILED,
            kind: "not-held",
            title: "The lock is not held",
            detail: format!("the grant of lock {name} with token {token} is over"),
            members: vec![
                ("lock", json!(name.as_str())),
                ("token", json!(token.get())),
            ],
        }
    }

    fn unknown(lock: &str, error: &dyn std::error::Error) -> Self {
        tracing::warn!(lock, %error, "a request cannot be judged");
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "unknown",
            title: "The sequencer cannot be judged now",
            // Not the error: it tells of the inside of the service.
            detail: format!("whether lock {lock} is held cannot be found out; try again"),
            members: vec![("lock", json!(lock))],
        }
    }

    fn into_response<R: From<String>>(self) -> Response<R> {
        let mut body = Map::new();
        body.insert("type".into(), format!("urn:fencelock:{}", self.kind).into());
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        for (member, value) in self.members {
            body.insert(member.into(), value);
        }
        let mut response = Response::new(R::from(Value::Object(body).to_string()));
        *response.status_mut() = self.status;
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, problem);
        response
    }
}
