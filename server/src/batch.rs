//! `POST /v1/batch`: takes and releases of several claims in one request. None of them waits. Each is served like a request of
//! its own, and its answer is one line, written once it is known. So a slow one delays no other.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::{BootInstant, ClaimId};
use fencelock_wire::{Batch, BatchBody, BatchOne, MOST_IN_BATCH, Release, Take};
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use http::StatusCode;

use crate::asked::check_once;
use crate::caller::Caller;
use crate::go_on::releasing;
use crate::incoming::{Key, Received};
use crate::lines::{Answers, line};
use crate::many::Many;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::take::taking;

/// What one request of the batch asks for.
enum Asks {
    Take(Take),
    Release(Release),
}

pub(crate) async fn batch(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    Many { caller, key, body }: Many<Batch>,
) -> Result<Response, Refusal> {
    let asked = all(&key, body)?;
    let caller = Arc::new(caller);
    let open = asked.into_iter().map(|(claim, asks)| {
        let (replica, caller) = (Arc::clone(&replica), Arc::clone(&caller));
        one(replica, received, caller, claim, asks).boxed()
    });
    let mut open: Answers = open.collect();
    // Usually all answers are known at once, and the response is not streamed.
    let first = poll_fn(|context| open.poll_known(context)).await;
    Ok(open.after(first))
}

/// The requests, each for a different claim of this key.
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
                    "the claim {claim} asks to wait (wait_ms), and nothing in a batch waits"
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
    check_once(asked.iter().map(|(claim, _)| *claim))?;
    Ok(asked)
}

/// Serves one request, and writes its answer.
async fn one(
    replica: Arc<Replica>,
    received: BootInstant,
    caller: Arc<Caller>,
    claim: ClaimId,
    asks: Asks,
) -> Vec<u8> {
    let served = async {
        Ok(match asks {
            Asks::Take(take) => {
                let taken = taking(&replica, received, &caller, claim, take, None).await?;
                taken.in_line()
            }
            Asks::Release(release) => {
                let released = releasing(&replica, received, &caller, claim, release).await?;
                (StatusCode::OK, BatchBody::Released(released))
            }
        })
    };
    line(&replica, claim, served).await
}
