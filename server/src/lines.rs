//! Answers of several lines. Each line is written once it is known, so a slow one delays no other.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use fencelock_core::ClaimId;
use fencelock_wire::{BatchAnswer, BatchBody, Kind, LINES};
use futures_util::future::{BoxFuture, poll_fn};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::refusal::Refusal;
use crate::replica::Replica;

/// The result of a request about one claim, as a line.
pub(crate) async fn line(
    replica: &Replica,
    claim: ClaimId,
    served: impl Future<Output = Result<(StatusCode, BatchBody), Refusal>>,
) -> Vec<u8> {
    let served = AssertUnwindSafe(served).catch_unwind().await;
    let served = served.unwrap_or_else(|_| {
        let detail = "the request met a bug; what it asked for may have been done";
        Err(Refusal::new(Kind::Internal, detail))
    });
    to_line(&match served {
        Ok((status, body)) => BatchAnswer {
            claim,
            status: status.as_u16(),
            retry_after_s: None,
            body,
        },
        Err(refusal) => {
            if let Some(kind) = refusal.kind() {
                replica.metrics.refused(kind);
            }
            BatchAnswer {
                claim,
                status: refusal.problem().status,
                retry_after_s: refusal.retries_after(),
                body: BatchBody::Problem(refusal.problem().clone()),
            }
        }
    })
}

pub(crate) fn to_line(value: &impl Serialize) -> Vec<u8> {
    // Writing it as JSON cannot fail: it has no maps and no types of other crates.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// An answer in lines, with the first lines if they are known.
pub(crate) fn in_lines(
    first: Option<Bytes>,
    rest: impl IntoIterator<Item = BoxFuture<'static, Vec<u8>>>,
) -> Response {
    rest.into_iter().collect::<Answers>().after(first)
}

/// The answers that are not written yet. If this is dropped, their calls of the store go on.
pub(crate) struct Answers(FuturesUnordered<BoxFuture<'static, Vec<u8>>>);

impl FromIterator<BoxFuture<'static, Vec<u8>>> for Answers {
    fn from_iter<T: IntoIterator<Item = BoxFuture<'static, Vec<u8>>>>(answers: T) -> Self {
        Self(answers.into_iter().collect())
    }
}

impl Answers {
    /// All lines that are known now: at least one, or `None` if none is left.
    pub(crate) fn poll_known(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut known = BytesMut::new();
        loop {
            match Pin::new(&mut self.0).poll_next(context) {
                Poll::Ready(Some(line)) => known.extend_from_slice(&line),
                Poll::Ready(None) if known.is_empty() => return Poll::Ready(None),
                Poll::Pending if known.is_empty() => return Poll::Pending,
                _ => return Poll::Ready(Some(known.freeze())),
            }
        }
    }

    /// The whole answer, beginning with these lines. The rest is served in a task of its own: a client that does not read must not
    /// stop calls of the store in the middle.
    pub(crate) fn after(mut self, first: Option<Bytes>) -> Response {
        let body = match self.0.is_empty() {
            true => Body::from(first.unwrap_or_default()),
            false => {
                // At most one message for each answer.
                let (sender, rest) = mpsc::unbounded_channel();
                let task = tokio::spawn(async move {
                    while let Some(known) = poll_fn(|context| self.poll_known(context)).await {
                        // Sending fails if the client is gone. Then this task is about to be ended.
                        let _ = sender.send(known);
                    }
                });
                let task = task.abort_handle();
                Body::new(Streamed { first, rest, task })
            }
        };
        let mut response = Response::new(body);
        let media = HeaderValue::from_static(LINES);
        response.headers_mut().insert(CONTENT_TYPE, media);
        response
    }
}

/// A body that is written as the lines become known.
struct Streamed {
    first: Option<Bytes>,
    rest: mpsc::UnboundedReceiver<Bytes>,
    task: AbortHandle,
}

impl Drop for Streamed {
    /// The client is gone, or has got everything.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let known = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.rest.poll_recv(context),
        };
        known.map(|known| known.map(|lines| Ok(Frame::data(lines))))
    }
}
