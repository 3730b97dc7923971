//! `GET /v1/events`: hints, as server-sent events. A client does not rely on them: it asks again.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use fencelock_core::LockName;
use fencelock_wire::{ClaimKey, Kind, WITHOUT};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access::Streams;
use crate::caller::Caller;
use crate::events::{GRANTED, Receiver};
use crate::incoming::{Query, claim_key};
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;

/// One client's stream of events.
struct Stream {
    replica: Arc<Replica>,
    caller: Caller,
    /// The lock; `None` for a stream of claims.
    name: Option<LockName>,
    reloads: watch::Receiver<()>,
    receiver: Receiver,
    until: Instant,
    begun: bool,
    over: bool,
    _streams: Streams,
    _open: Open,
}

/// An open stream, counted until it is dropped.
struct Open {
    replica: Arc<Replica>,
    /// The key of its claims; `None` for a stream of a lock.
    ids: Option<[u8; 10]>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.replica.events.closed(self.ids.as_ref());
    }
}

impl Stream {
    /// Whether its client may listen, by the current rights.
    fn may(&self) -> bool {
        let may = self.caller.again().and_then(|caller| match &self.name {
            Some(name) => caller.must(Right::Look, name),
            None => caller.must_be_somebody(),
        });
        may.is_ok()
    }

    async fn next(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        if !std::mem::replace(&mut self.begun, true) {
            return Some("retry: 1000\n\n".to_owned());
        }
        let beat = Instant::now() + self.replica.config.limits.stream_beat;
        let told = loop {
            tokio::select! {
                biased;
                _ = self.reloads.changed() => if !self.may() {
                    return None;
                },
                () = self.replica.draining.cancelled() => {
                    self.over = true;
                    return Some("event: draining\ndata: {}\n\n".to_owned());
                }
                told = self.receiver.next() => break told,
                () = tokio::time::sleep_until(self.until) => return None,
                () = tokio::time::sleep_until(beat) => return Some(":\n\n".to_owned()),
            }
        };
        let told = told?;
        let data = serde_json::to_string(&told).unwrap_or_default();
        Some(format!("event: {}\ndata: {data}\n\n", told.event))
    }
}

/// `GET /v1/events`: reports what happens to the claims of a key, or to one lock.
pub(crate) async fn events(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["lock", WITHOUT])?;
    let hears_grants = match query.get(WITHOUT) {
        None => true,
        Some(GRANTED) => false,
        Some(other) => {
            let detail = format!("the parameter {WITHOUT} may be {GRANTED}, and not {other:?}");
            return Err(Refusal::invalid(detail));
        }
    };
    if replica.draining.is_cancelled() {
        let detail = "this replica is about to end; use another one";
        return Err(Refusal::new(Kind::Draining, detail).close());
    }
    // A stream that is refused leaves no listener behind.
    let streams = caller.count_stream()?;
    let (receiver, ids, name) = match (query.get("lock"), claim_key(&headers)?) {
        (Some(_), Some(_)) => {
            let detail = "give either the parameter lock or the header Fencelock-Key, not both";
            return Err(Refusal::invalid(detail));
        }
        (Some(name), None) => {
            let name = LockName::new(name).map_err(|error| Refusal::of(&error))?;
            caller.must(Right::Look, &name)?;
            // The stream reports changes from this view on.
            let view = replica.engine.inspect().look(&name).await;
            let view = view.map_err(|error| Refusal::of(&error).name(&name))?;
            let receiver = replica.events.of_lock(&name, view.token());
            (receiver, None, Some(name))
        }
        (None, Some(key)) => {
            caller.must_be_somebody()?;
            let ids = ClaimKey::claim_ids(&key);
            (replica.events.of_claims(ids, hears_grants), Some(ids), None)
        }
        (None, None) => {
            let detail =
                "no events are named; send the header Fencelock-Key, or the parameter lock";
            return Err(Refusal::invalid(detail));
        }
    };
    replica.events.opened();
    let open = Open {
        replica: Arc::clone(&replica),
        ids,
    };
    let stream = Stream {
        _open: open,
        caller,
        name,
        reloads: replica.reloads(),
        until: Instant::now() + replica.config.limits.stream_longest,
        replica,
        receiver,
        begun: false,
        over: false,
        _streams: streams,
    };
    let chunks = stream::unfold(stream, |mut stream| async move {
        let text = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(text), stream))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let media = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, media);
    Ok(response)
}
