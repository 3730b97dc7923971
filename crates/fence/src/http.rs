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
//! | waits too long for an earlier one to be finished ([`FenceLayer::wait_at_most`]) | 503 with `Retry-After` |
//! | is one that the service panics over | 500 |
//! | has an `Idempotency-Key` that was answered before ([`FenceLayer::answer_once`]) | the first answer |
//!
//! A request that has passed is handled to its end, in a task of its own, also when its client disconnects or a timeout
//! outside of the layer drops it: its write may be on its way, and the next holder is kept out until it is over. So the layer
//! needs a tokio runtime, with its clock on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencelock_core::{Client, Sequencer};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use tokio::task::JoinHandle;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use crate::highest::{Highest, Pass};
use answers::{Answer, Mine, Turn};
use problem::Problem;

mod answers;
mod problem;

pub use answers::{Answers, KEY_HEADER};

/// The header that a holder sends its sequencer in.
pub const HEADER: &str = "fencelock-sequencer";

/// How long a request waits for an earlier one unless it is said.
const WAIT: Duration = Duration::from_secs(10);

type LockOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Puts a fence before a service. Cheap to clone; all clones, and all services made with them, are one fence.
///
/// A holder's request has the service to itself, as far as holders of the same lock go, until the service has answered (with
/// the head of its answer), whether or not somebody is there still to hear it: the check and the write are one step. Shared
/// holders and permits come in beside each other.
///
/// ```
/// use axum::Router;
/// use axum::routing::put;
/// use fencelock_fence::http::{Answers, FenceLayer};
/// use std::time::Duration;
///
/// let service: Router = Router::new().route("/ledger", put(async || "written")).layer(
///     FenceLayer::for_lock("ledger")
///         .wait_at_most(Duration::from_secs(5))
///         .answer_once(Answers::in_memory(16 << 20)),
/// );
/// ```
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
    wait: Duration,
    answers: Option<Answers>,
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
            wait: WAIT,
            answers: None,
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

    /// How long a request waits while an earlier one, which it must not overtake, is still being handled: 10 seconds unless
    /// this is said. After that it is answered with 503 and `Retry-After`. The earlier one is never ended for it: a handler
    /// that may hang (for a body that does not come, for a database) needs a timeout of its own, which knows what it wrote.
    #[must_use]
    pub fn wait_at_most(self, limit: Duration) -> Self {
        self.with(|fence| fence.wait = limit)
    }

    /// Answers a request that has the same `Idempotency-Key` as one before with the first one's answer (and the header
    /// `Idempotent-Replayed: true`), without troubling the service: also when its holder was superseded meanwhile. Keys are
    /// counted for each lock by itself. Requests that only read, and those without a key, are handled each time.
    ///
    /// While the first is being handled, the others wait, for [`FenceLayer::wait_at_most`], and are then answered with 409.
    /// A key that comes with another method or target is refused with 422; the bodies are not compared. Every answer is kept,
    /// also that a handler panicked, but for 429 and 503, by which a service says that it has done nothing. An answer with a
    /// key is read whole before it is sent, and may have 1 MiB.
    #[must_use]
    pub fn answer_once(self, answers: Answers) -> Self {
        self.with(|fence| fence.answers = Some(answers))
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer")
            .field("highest", &self.fence.highest)
            .field("client", &self.fence.client)
            .field("always", &self.fence.always)
            .field("wait", &self.fence.wait)
            .field("answers", &self.fence.answers)
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
    R: Body + From<Vec<u8>> + Send + 'static,
    R::Data: Send,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
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
            let verdict = fence.judge(&parts).await;
            let request = Request::from_parts(parts, body);
            let (pass, mine) = match verdict {
                Ok(Verdict::Free) => return inner.call(request).await,
                Ok(Verdict::Passed(pass, mine)) => (pass, mine),
                Ok(Verdict::Done(answer)) => return Ok(answer.again()),
                Err(problem) => return Ok(problem.into_response()),
            };
            // In a task of its own: this future is dropped when the client disconnects, and the handler's write may be on
            // its way by then. The gate opens after it.
            let handle = async move {
                let _pass = pass;
                inner.call(request).await
            };
            let handler = tokio::spawn(handle.in_current_span());
            match mine {
                None => answer_of(handler).await,
                Some(mine) => {
                    let kept = tokio::spawn(keep(handler, mine).in_current_span());
                    kept.await.unwrap_or_else(|_| Ok(failed()))
                }
            }
        })
    }
}

/// What the service answers, if it does not panic.
async fn answer_of<R: From<Vec<u8>>, E>(
    handler: JoinHandle<Result<Response<R>, E>>,
) -> Result<Response<R>, E> {
    // Why it failed is told by the panic's own message.
    handler.await.unwrap_or_else(|_| Ok(failed()))
}

fn failed<R: From<Vec<u8>>>() -> Response<R> {
    Problem::failed().into_response()
}

/// Keeps what the service answers for those who ask again, whoever hears it now.
async fn keep<R, E>(
    handler: JoinHandle<Result<Response<R>, E>>,
    mine: Mine,
) -> Result<Response<R>, E>
where
    R: Body + From<Vec<u8>>,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match handler.await {
        Ok(Ok(response)) => Ok(mine.keep(Some(response)).await),
        Ok(Err(error)) => {
            mine.keep::<R>(None).await;
            Err(error)
        }
        Err(_) => Ok(mine.keep(None).await),
    }
}

/// What is to be done with a request.
enum Verdict {
    /// No lock protects what it does.
    Free,
    /// It may go on. The pass keeps others out; the place is where its answer is to be kept.
    Passed(Pass, Option<Mine>),
    /// It was done before.
    Done(Answer),
}

impl Fence {
    async fn judge(&self, parts: &Parts) -> Result<Verdict, Problem> {
        let Some(lock) = (self.lock_of)(parts) else {
            return Ok(Verdict::Free);
        };
        let Some(sequencer) = self.sequencer(parts, &lock)? else {
            return Ok(Verdict::Free);
        };
        // Before the gate: what was done was done, whoever holds the lock by now.
        let mine = match self.turn(parts, &sequencer).await? {
            Some(Turn::Done(answer)) => return Ok(Verdict::Done(answer)),
            Some(Turn::Mine(mine)) => Some(mine),
            None => None,
        };
        let pass = self.pass(&sequencer).await?;
        Ok(Verdict::Passed(pass, mine))
    }

    /// Whose request it is; `None` for a read that needs no holder.
    fn sequencer(&self, parts: &Parts, lock: &str) -> Result<Option<Sequencer>, Problem> {
        let mut sent = parts.headers.get_all(HEADER).iter();
        let sequencer = match (sent.next(), sent.next()) {
            (None, _) if !self.always && is_read(&parts.method) => return Ok(None),
            (None, _) => return Err(Problem::missing(lock)),
            (Some(sent), None) => read(sent)?,
            (Some(_), Some(_)) => return Err(Problem::unreadable("there is more than one")),
        };
        match sequencer.name.as_str() == lock {
            true => Ok(Some(sequencer)),
            false => Err(Problem::of_another(&sequencer, lock)),
        }
    }

    /// Whether its operation was done; `None` if it names none.
    async fn turn(&self, parts: &Parts, sequencer: &Sequencer) -> Result<Option<Turn>, Problem> {
        let Some(answers) = self.answers.as_ref().filter(|_| !is_read(&parts.method)) else {
            return Ok(None);
        };
        let Some(operation) = answers::operation(&parts.headers)? else {
            return Ok(None);
        };
        let turn = answers.turn(&sequencer.name, &operation, parts, self.wait);
        turn.await.map(Some)
    }

    /// Lets a holder in once nobody is in there who excludes it; what it gets then keeps others out.
    async fn pass(&self, sequencer: &Sequencer) -> Result<Pass, Problem> {
        let lock = sequencer.name.as_str();
        let refuse = |error| Problem::refusal(sequencer, &error);
        let gate = tokio::time::timeout(self.wait, self.highest.gate(sequencer)).await;
        let gate = gate.map_err(|_| Problem::busy(lock, self.wait))?;
        if let Some(client) = &self.client {
            // At the gate, so that the answer is as fresh as it can be; and before anything is remembered, so that a
            // sequencer that nobody was granted keeps nobody out.
            self.highest.judge(sequencer).await.map_err(refuse)?;
            match client.check(sequencer).await {
                Ok(true) => {}
                Ok(false) => return Err(Problem::not_held(sequencer)),
                Err(error) => return Err(Problem::unknown(lock, &error)),
            }
        }
        self.highest.pass(gate, sequencer).await.map_err(refuse)
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
