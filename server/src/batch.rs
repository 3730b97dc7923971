//! `POST /v1/batch`: takes and releases of several claims in one request, none of which waits. Each is served as if it had come
//! alone, and its answer is a line that is written once it is known: a slow one holds up no other.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::{BootInstant, ClaimId};
use fencelock_wire::{Batch, BatchBody, BatchOne, MOST_IN_BATCH, Release, Take};
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use http::StatusCode;

use crate::caller::Caller;
use crate::go_on::releasing;
use crate::incoming::{Key, LongJson, Received};
use crate::lines::{Answers, line};
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::take::taking;

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
        one(replica, received, caller, claim, asks).boxed()
    });
    let mut open: Answers = open.collect();
    // Most often all are known at once, and then the answer is whole.
    let first = poll_fn(|context| open.poll_known(context)).await;
    Ok(open.after(first))
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
    let mut ids: Vec<&ClaimId> = asked.iter().map(|(claim, _)| claim).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        let detail = format!("the claim {} occurs more than once", twice[0]);
        return Err(Refusal::invalid(detail));
    }
    Ok(asked)
}

/// Serves one of them, and writes its answer.
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
