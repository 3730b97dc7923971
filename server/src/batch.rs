//! `POST /v1/batch`: takes and releases of several claims in one request, none of which waits. Each is served as if it had come
//! alone, and its answer is a line that is written once it is known: a slow one holds up no other.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use fencelock_core::{BootInstant, ClaimId};
use fencelock_wire::{
    Batch, BatchAnswer, BatchBody, BatchOne, Kind, LINES, MOST_IN_BATCH, Release, Take,
};
use futures_util::future::{BoxFuture, poll_fn};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::Frame;

use crate::caller::Caller;
use crate::go_on::releasing;
use crate::incoming::{Key, LongJson, Received};
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::take::{Taken, taking};

/// What one of them asks for.
enum Asks {
    Take(Take),
    Release(Release),
}

pub(crate) async fn batch(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    key: Key,
    LongJson(body): LongJson<Batch>,
) -> Result<Response, Refusal> {
    let asked = all(&key, body)?;
    let caller = Arc::new(caller);
    let open = asked.into_iter().map(|(claim, asks)| {
        let (replica, caller) = (Arc::clone(&replica), Arc::clone(&caller));
        line(replica, received, caller, claim, asks).boxed()
    });
    let mut answers = Answers {
        open: open.collect(),
    };
    // Most often all are known at once, and then the answer is whole.
    let first = poll_fn(|context| answers.poll_known(context)).await;
    let body = match answers.open.is_empty() {
        true => Body::from(first.unwrap_or_default()),
        false => Body::new(Streamed {
            first,
            rest: answers,
        }),
    };
    let mut response = Response::new(body);
    let media = HeaderValue::from_static(LINES);
    response.headers_mut().insert(CONTENT_TYPE, media);
    Ok(response)
}

/// The requests, each with a claim of its own for which the key speaks.
fn all(key: &Key, body: Batch) -> Result<Vec<(ClaimId, Asks)>, Refusal> {
    let count = body.claims.len();
    if count > MOST_IN_BATCH {
        let detail =
            format!("{count} requests are too many for one batch; {MOST_IN_BATCH} are allowed");
        return Err(Refusal::invalid(detail));
    }
    let asked = body.claims.into_iter().map(|one| {
        let BatchOne {
            claim,
            take,
            release,
        } = one;
        key.check(&claim)?;
        match (take, release) {
            (Some(take), None) if take.wait_ms == 0 => Ok((claim, Asks::Take(take))),
            (Some(_), None) => {
                let detail = format!(
                    "the claim {claim} is to wait (wait_ms), which nothing in a batch does"
                );
                Err(Refusal::invalid(detail))
            }
            (None, Some(release)) => Ok((claim, Asks::Release(release))),
            _ => {
                let detail = format!("the claim {claim} needs either take or release");
                Err(Refusal::invalid(detail))
            }
        }
    });
    let asked: Vec<_> = asked.collect::<Result<_, _>>()?;
    let mut ids: Vec<&ClaimId> = asked.iter().map(|(claim, _)| claim).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        let detail = format!("the claim {} is there more than once", twice[0]);
        return Err(Refusal::invalid(detail));
    }
    Ok(asked)
}

/// Serves one of them, and writes its answer.
async fn line(
    replica: Arc<Replica>,
    received: BootInstant,
    caller: Arc<Caller>,
    claim: ClaimId,
    asks: Asks,
) -> Vec<u8> {
    let served = async {
        Ok(match asks {
            Asks::Take(take) => match taking(&replica, received, &caller, claim, take).await? {
                Taken::Granted(granted) => (StatusCode::OK, BatchBody::Granted(granted)),
                Taken::Waiting(waiting) => (StatusCode::ACCEPTED, BatchBody::Waiting(waiting)),
            },
            Asks::Release(release) => {
                let released = releasing(&replica, received, &caller, claim, release).await?;
                (StatusCode::OK, BatchBody::Released(released))
            }
        })
    };
    let served = AssertUnwindSafe(served).catch_unwind().await;
    let served = served.unwrap_or_else(|_| {
        let detail = "the request met a bug; what it asked for may have been done";
        Err(Refusal::new(Kind::Internal, detail))
    });
    let answer = match served {
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
    };
    // Nothing that is answered can fail to be written as JSON: no maps, no foreign types.
    let mut text = serde_json::to_vec(&answer).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The answers that are not written yet. Calls of the store go on if this is dropped.
struct Answers {
    open: FuturesUnordered<BoxFuture<'static, Vec<u8>>>,
}

impl Answers {
    /// All lines that are known by now; at least one, unless there is none left.
    fn poll_known(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut known = BytesMut::new();
        loop {
            match Pin::new(&mut self.open).poll_next(context) {
                Poll::Ready(Some(line)) => known.extend_from_slice(&line),
                Poll::Ready(None) if known.is_empty() => return Poll::Ready(None),
                Poll::Pending if known.is_empty() => return Poll::Pending,
                _ => return Poll::Ready(Some(known.freeze())),
            }
        }
    }
}

/// A body that is written as answers come to be known.
struct Streamed {
    first: Option<Bytes>,
    rest: Answers,
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
            None => self.rest.poll_known(context),
        };
        known.map(|known| known.map(|lines| Ok(Frame::data(lines))))
    }
}
