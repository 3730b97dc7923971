//! A fence before an HTTP service: a tower layer that reads the header `Fencelock-Sequencer` and refuses late holders, with
//! 412 and an `application/problem+json` body (RFC 9457).
//!
//! | the request | the answer |
//! | --- | --- |
//! | has a sequencer that passes | the service's |
//! | is `GET`, `HEAD`, `OPTIONS` or `TRACE`, without a sequencer | the service's, unless [`FenceLayer::always`] |
//! | has another method, and no sequencer | 428 |
//! | has more than one sequencer, or an invalid one | 400 |
//! | has a sequencer of another lock, of a superseded holder, or of one that no longer holds ([`FenceLayer::ask`]) | 412 |
//! | cannot be judged: the store does not answer, or the marks cannot be written | 503 |
//! | waits too long for an earlier request ([`FenceLayer::wait_at_most`]) | 503 with `Retry-After` |
//! | makes the service panic | 500 |
//! | has an `Idempotency-Key` that was answered before ([`FenceLayer::answer_once`]) | the first answer |
//!
//! A request that has passed is handled to its end in a task of its own. That is so even if its client disconnects, or if a
//! timeout outside the layer drops it. Its write may be in flight, and the next holder must wait for its end. So the layer
//! needs a tokio runtime with its timer enabled.

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
use answers::{Answer, FirstAttempt, Lookup};
use problem::Problem;

mod answers;
mod problem;

pub use answers::{Answers, KEY_HEADER};

/// The header for the sequencer of the holder.
pub const HEADER: &str = "fencelock-sequencer";

/// The default of [`FenceLayer::wait_at_most`].
const WAIT: Duration = Duration::from_secs(10);

type LockOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Puts a fence before a service. Cheap to clone: all clones, and all services made with them, are one fence.
///
/// Requests of other holders of the same lock wait until the service has answered a request (with the head of its response).
/// They wait even if the client has disconnected. So the check and the write are one step. Shared holders and permits do not
/// wait for each other.
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
    /// A fence for a service that one lock protects. It keeps its marks in memory; see [`FenceLayer::remember`].
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// let layer = FenceLayer::for_lock("ledger");
    /// ```
    #[must_use]
    pub fn for_lock(name: &str) -> Self {
        let name = name.to_owned();
        Self::for_lock_of(move |_| Some(name.clone()))
    }

    /// A fence for a service that several locks protect. `lock_of` returns the lock for a request, and `None` for a request
    /// that needs no lock.
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// // PUT /orders/4711 needs the lock orders/4711.
    /// let layer = FenceLayer::for_lock_of(|request| {
    ///     Some(request.uri.path().trim_start_matches('/').to_owned())
    /// });
    /// ```
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

    /// Keeps the marks here, for example in a file.
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("fencelock-example-http-{}", std::process::id()));
    /// let layer = FenceLayer::for_lock("ledger").remember(Highest::open(&path)?);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remember(self, highest: Highest) -> Self {
        self.with(|fence| fence.highest = highest)
    }

    /// Also asks the store of the lock whether exactly this grant is held now (Chubby's CheckSequencer). This costs a round
    /// trip for each request. It refuses a holder that lost its lock before the next one was granted, and a sequencer that
    /// was never granted.
    ///
    /// ```
    /// # use fencelock_fence::http::FenceLayer;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = fencelock::connect("memory:").await?;
    /// let layer = FenceLayer::for_lock("ledger").ask(client);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ask(self, client: Client) -> Self {
        self.with(|fence| fence.client = Some(client))
    }

    /// Requires a sequencer for reads, too.
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// let layer = FenceLayer::for_lock("ledger").always();
    /// ```
    #[must_use]
    pub fn always(self) -> Self {
        self.with(|fence| fence.always = true)
    }

    /// How long a request waits while an earlier one, which it must not overtake, is being handled. The default is 10 seconds.
    /// After that it is answered with 503 and `Retry-After`. The earlier request is never ended: a handler that may hang
    /// (waiting for a body or a database) needs a timeout of its own, because only the handler knows what it wrote.
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// # use std::time::Duration;
    /// let layer = FenceLayer::for_lock("ledger").wait_at_most(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn wait_at_most(self, limit: Duration) -> Self {
        self.with(|fence| fence.wait = limit)
    }

    /// Answers a request with the same `Idempotency-Key` as an earlier one with the first answer (and the header
    /// `Idempotent-Replayed: true`), without calling the service, even if its holder was superseded meanwhile. Keys are
    /// counted for each lock separately. Requests that only read, and those without a key, are handled each time.
    ///
    /// While the first request is being handled, the others wait for [`FenceLayer::wait_at_most`], and are then answered with
    /// 409. A key with another method or target is refused with 422; the bodies are not compared. Every answer is kept, even
    /// that a handler panicked. Only 429 and 503 are not kept, because they say that the service has done nothing. An answer
    /// with a key is read completely before it is sent, and may have up to 1 MiB.
    ///
    /// ```
    /// # use fencelock_fence::http::{Answers, FenceLayer};
    /// # use fencelock_fence::Highest;
    /// let layer = FenceLayer::for_lock("ledger").answer_once(Answers::in_memory(16 << 20));
    /// ```
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
///
/// ```
/// # use fencelock_fence::http::{Answers, FenceLayer};
/// # use fencelock_fence::Highest;
/// use tower_layer::Layer;
///
/// # struct Service;
/// let fenced = FenceLayer::for_lock("ledger").layer(Service);
/// ```
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
        // The ready service handles this request, and a clone of it stays.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let fence = Arc::clone(&self.fence);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let verdict = fence.judge(&parts).await;
            let request = Request::from_parts(parts, body);
            let (pass, first) = match verdict {
                Ok(Verdict::Free) => return inner.call(request).await,
                Ok(Verdict::Passed(pass, first)) => (pass, first),
                Ok(Verdict::Done(answer)) => return Ok(answer.again()),
                Err(problem) => return Ok(problem.into_response()),
            };
            // Run it in its own task. When the client disconnects, this future is dropped, but the handler's write may
            // be in flight. The gate opens only after the task has ended.
            let handle = async move {
                let _pass = pass;
                inner.call(request).await
            };
            let handler = tokio::spawn(handle.in_current_span());
            match first {
                None => answer_of(handler).await,
                Some(first) => {
                    let kept = tokio::spawn(keep(handler, first).in_current_span());
                    kept.await.unwrap_or_else(|_| Ok(failed()))
                }
            }
        })
    }
}

/// The answer of the service, if the service does not panic.
async fn answer_of<R: From<Vec<u8>>, E>(
    handler: JoinHandle<Result<Response<R>, E>>,
) -> Result<Response<R>, E> {
    // The panic has printed its own message.
    handler.await.unwrap_or_else(|_| Ok(failed()))
}

fn failed<R: From<Vec<u8>>>() -> Response<R> {
    Problem::failed().into_response()
}

/// Keeps the answer of the service for repeated requests, even if the client has disconnected.
async fn keep<R, E>(
    handler: JoinHandle<Result<Response<R>, E>>,
    first: FirstAttempt,
) -> Result<Response<R>, E>
where
    R: Body + From<Vec<u8>>,
    R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match handler.await {
        Ok(Ok(response)) => Ok(first.keep(Some(response)).await),
        Ok(Err(error)) => {
            first.keep::<R>(None).await;
            Err(error)
        }
        Err(_) => Ok(first.keep(None).await),
    }
}

/// What to do with a request.
enum Verdict {
    /// It needs no lock.
    Free,
    /// The service handles it. The pass keeps other holders out. The first attempt of an operation keeps its answer.
    Passed(Pass, Option<FirstAttempt>),
    /// Its operation was done before.
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
        // Before the gate, since the answer of a finished operation does not depend on the present holder.
        let first = match self.look_up(parts, &sequencer).await? {
            Some(Lookup::Done(answer)) => return Ok(Verdict::Done(answer)),
            Some(Lookup::First(first)) => Some(first),
            None => None,
        };
        let pass = self.pass(&sequencer).await?;
        Ok(Verdict::Passed(pass, first))
    }

    /// The sequencer of the request; `None` for a read that needs none.
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

    /// Whether the operation of the request was done; `None` if the request names no operation.
    async fn look_up(
        &self,
        parts: &Parts,
        sequencer: &Sequencer,
    ) -> Result<Option<Lookup>, Problem> {
        let Some(answers) = self.answers.as_ref().filter(|_| !is_read(&parts.method)) else {
            return Ok(None);
        };
        let Some(operation) = answers::operation(&parts.headers)? else {
            return Ok(None);
        };
        let found = answers.look_up(&sequencer.name, &operation, parts, self.wait);
        found.await.map(Some)
    }

    /// Lets a holder pass when no holder that excludes it has a request in the service.
    async fn pass(&self, sequencer: &Sequencer) -> Result<Pass, Problem> {
        let lock = sequencer.name.as_str();
        let refuse = |error| Problem::refusal(sequencer, &error);
        let gate = tokio::time::timeout(self.wait, self.highest.gate(sequencer)).await;
        let gate = gate.map_err(|_| Problem::busy(lock, self.wait))?;
        if let Some(client) = &self.client {
            // After the wait for the gate, so that the answer is fresh. Before the marks are raised, so that a
            // sequencer that was never granted keeps no holder out.
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
