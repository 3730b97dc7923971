//! Reads a request: its claim and key, its query, its body. What cannot be used is answered with a problem.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use fencelock_core::{BootInstant, ClaimId};
use fencelock_wire::{ClaimKey, KEY, Kind, LINES, REPLICA};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::reply::JSON;

/// When the request was received. The client sent it earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received(pub(crate) BootInstant);

impl FromRequestParts<Arc<Replica>> for Received {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, Refusal> {
        // A later time is safe: the client then believes for a shorter time.
        let received = parts.extensions.get::<Self>().copied();
        Ok(received.unwrap_or_else(|| Self(replica.clock.now())))
    }
}

/// The key of the request's claims.
#[derive(Debug)]
pub(crate) struct Key(ClaimKey);

impl Key {
    /// Reads the key from the headers. A request that must name this replica is checked, too.
    pub(crate) fn of(headers: &HeaderMap, replica: &Replica) -> Result<Self, Refusal> {
        check_replica(headers, replica)?;
        let missing = || {
            let detail = "the header Fencelock-Key is missing: it has the key of the claim";
            Refusal::new(Kind::WrongKey, detail)
        };
        claim_key(headers)?.map(Self).ok_or_else(missing)
    }

    /// Refuses a claim of another key.
    pub(crate) fn check(&self, claim: &ClaimId) -> Result<(), Refusal> {
        match self.0.speaks_for(claim) {
            true => Ok(()),
            false => {
                let detail = format!(
                    "the claim {claim} is not one of this key: its id must begin with the first 20 hex digits of the \
                     SHA-256 of the key"
                );
                Err(Refusal::new(Kind::WrongKey, detail))
            }
        }
    }
}

impl FromRequestParts<Arc<Replica>> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, Refusal> {
        Self::of(&parts.headers, replica)
    }
}

/// The key in the headers, if there is one.
pub(crate) fn claim_key(headers: &HeaderMap) -> Result<Option<ClaimKey>, Refusal> {
    let Some(value) = only_header(headers, KEY)? else {
        return Ok(None);
    };
    let key = value.to_str().ok().and_then(|text| text.parse().ok());
    let bad = || {
        Refusal::invalid(format!(
            "the header Fencelock-Key: {}",
            fencelock_wire::BadKey
        ))
    };
    key.map(Some).ok_or_else(bad)
}

/// Refuses a request for another replica, on a store that is bound to replicas.
fn check_replica(headers: &HeaderMap, replica: &Replica) -> Result<(), Refusal> {
    if replica.bound.is_none() {
        return Ok(());
    }
    let Some(named) = only_header(headers, REPLICA)? else {
        let detail = "a claim on this store belongs to the replica that placed it; name that replica in the header Fencelock-Replica (its id is in GET /v1/store)";
        return Err(Refusal::new(Kind::NameTheReplica, detail));
    };
    if named.as_bytes() == replica.id.as_bytes() {
        return Ok(());
    }
    let detail = "the claim belongs to another replica, which may have ended; take a new claim here or there";
    let advertise = replica.config.advertise.as_deref();
    Err(Refusal::new(Kind::OtherReplica, detail).replica(&replica.id, advertise))
}

/// The claim in the path. The request has shown its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaks(pub(crate) ClaimId);

impl FromRequestParts<Arc<Replica>> for Speaks {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, Refusal> {
        let path = Path::<String>::from_request_parts(parts, replica).await;
        let Path(text) =
            path.map_err(|_| Refusal::invalid("the claim id in the path cannot be read"))?;
        let claim: ClaimId = text
            .parse()
            .map_err(|error: fencelock_core::Error| Refusal::of(&error))?;
        let key = Key::from_request_parts(parts, replica).await?;
        key.check(&claim)?;
        Ok(Self(claim))
    }
}

/// Whether the client accepts an answer in lines, of which the first comes before the rest is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantsLines(pub(crate) bool);

impl WantsLines {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(header::ACCEPT).iter();
        let mut media = accepts
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|media| media.split(';').next().unwrap_or_default().trim());
        Self(media.any(|media| media.eq_ignore_ascii_case(LINES)))
    }
}

impl FromRequestParts<Arc<Replica>> for WantsLines {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Replica>) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

/// A header that may be given once.
pub(crate) fn only_header<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        Some(_) => Err(Refusal::invalid(format!(
            "the header {name} occurs more than once"
        ))),
        None => Ok(first),
    }
}

/// A body of JSON. Its type refuses unknown members.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> Json<T> {
    pub(crate) async fn read(
        headers: &HeaderMap,
        body: impl Readable,
        replica: &Replica,
    ) -> Result<Self, Refusal> {
        Ok(Self(
            read_json(headers, body, replica, Longest::usual(replica)).await?,
        ))
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Replica>> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, replica: &Arc<Replica>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        Self::read(&parts.headers, body, replica).await
    }
}

/// How long a body may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest<'a> {
    pub(crate) bytes: usize,
    /// What is longer than so many bytes is read only in turn.
    pub(crate) turn: Option<(usize, &'a Semaphore)>,
}

impl Longest<'_> {
    pub(crate) fn usual(replica: &Replica) -> Self {
        Self {
            bytes: replica.config.limits.body,
            turn: None,
        }
    }
}

/// Reads a body of JSON.
pub(crate) async fn read_json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: impl Readable,
    replica: &Replica,
    limit: Longest<'_>,
) -> Result<T, Refusal> {
    let media = only_header(headers, header::CONTENT_TYPE.as_str())?;
    if !media.is_some_and(is_json) {
        let detail = "the body must be JSON, with the header Content-Type: application/json";
        return Err(Refusal::new(Kind::NotJson, detail));
    }
    let body = read(body, replica, limit).await?;
    // serde would accept an array with the members in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::invalid("the body must be a JSON object"));
    }
    serde_json::from_slice(&body).map_err(|error| {
        let text: String = error.to_string().chars().take(300).collect();
        Refusal::invalid(format!("the body: {text}"))
    })
}

/// Whether the media type is JSON, with or without parameters such as `charset=utf-8`.
fn is_json(media: &HeaderValue) -> bool {
    let media = media.to_str().unwrap_or_default();
    let essence = media.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(JSON)
}

/// The body of a request, from the router or not.
pub(crate) trait Readable:
    http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>>
{
}

impl<B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>>> Readable for B {}

/// The whole body, if it is short enough and arrives in time.
pub(crate) async fn read(
    body: impl Readable,
    replica: &Replica,
    limit: Longest<'_>,
) -> Result<bytes::Bytes, Refusal> {
    let time = replica.config.limits.body_timeout;
    match tokio::time::timeout(time, collect(body, limit)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("the body is longer than {} bytes", limit.bytes);
            Err(Refusal::new(Kind::TooLarge, detail).close())
        }
        Ok(Err(error)) => {
            Err(Refusal::invalid(format!("the body could not be read: {error}")).close())
        }
        Err(_) => {
            let seconds = time.as_secs_f64();
            let detail = format!("the body did not arrive within {seconds} s");
            Err(Refusal::invalid(detail).close())
        }
    }
}

/// While a long body waits for its turn, the flow control of HTTP holds its sender.
async fn collect(body: impl Readable, limit: Longest<'_>) -> Result<bytes::Bytes, axum::BoxError> {
    let mut body = pin!(Limited::new(body, limit.bytes));
    let (mut all, mut turn) = (Vec::new(), None);
    loop {
        if let Some((most, turns)) = limit.turn
            && all.len() > most
            && turn.is_none()
        {
            turn = Some(turns.acquire().await?);
        }
        let Some(frame) = body.frame().await else {
            return Ok(all.into());
        };
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        // Usually it is the only frame.
        if all.is_empty() && http_body::Body::is_end_stream(&*body) {
            return Ok(data);
        }
        all.extend_from_slice(&data);
    }
}

/// The parameters of a query, percent-decoded once.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query. Only these parameters are allowed, each of them once.
    pub(crate) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut found: Vec<(String, String)> = Vec::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                let detail = format!("the parameter {name:?} is unknown; there are {known}");
                return Err(Refusal::invalid(detail));
            }
            if found.iter().any(|(before, _)| *before == name) {
                let detail = format!("the parameter {name:?} occurs more than once");
                return Err(Refusal::invalid(detail));
            }
            found.push((name, value));
        }
        Ok(Self(found))
    }

    /// A parameter, if it is given.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter();
        let found = found.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A number, if it is given.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        let bad = || {
            Refusal::invalid(format!(
                "the parameter {name} must be a whole number, not {text:?}"
            ))
        };
        number.map(Some).ok_or_else(bad)
    }
}

fn decode(text: &str) -> Result<String, Refusal> {
    let hex = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(hex) {
        return Err(Refusal::invalid("the query has a % without two hex digits"));
    }
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8();
    let decoded = decoded.map_err(|_| Refusal::invalid("the query is not UTF-8"))?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{FutureExt, StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    /// A body that arrives in the parts that are sent, and the sender, which has room for one part.
    fn body() -> (mpsc::Sender<&'static str>, impl Readable) {
        let (sender, receiver) = mpsc::channel(1);
        let parts = stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        let frames = parts.map(|part: &str| Ok::<_, Infallible>(Frame::data(Bytes::from(part))));
        (sender, StreamBody::new(frames))
    }

    #[test]
    fn long_bodies_are_read_in_turn_and_short_ones_at_once() {
        let turns = Semaphore::new(1);
        let limit = Longest {
            bytes: 1000,
            turn: Some((4, &turns)),
        };
        let [(one, first), (two, second), (three, third)] = [body(), body(), body()];
        let mut first = Box::pin(collect(first, limit));
        let mut second = Box::pin(collect(second, limit));
        let third = collect(third, limit);
        one.try_send("first").unwrap();
        assert!((&mut first).now_or_never().is_none());
        two.try_send("second").unwrap();
        assert!((&mut second).now_or_never().is_none());
        // Its next part stays with the sender.
        two.try_send(" body").unwrap();
        assert!((&mut second).now_or_never().is_none());
        assert!(two.try_send("more").is_err());
        three.try_send("3rd").unwrap();
        drop(three);
        assert_eq!(third.now_or_never().unwrap().unwrap(), "3rd");
        one.try_send(" body").unwrap();
        drop(one);
        assert_eq!(first.now_or_never().unwrap().unwrap(), "first body");
        drop(two);
        assert_eq!(second.now_or_never().unwrap().unwrap(), "second body");
    }

    #[test]
    fn a_query_is_decoded_once() {
        let query = Query::read(Some("name=a%2Fb%2525+c&wait_ms=5"), &["name", "wait_ms"]).unwrap();
        assert_eq!(query.get("name"), Some("a/b%25 c"));
        assert_eq!(query.number("wait_ms").unwrap(), Some(5));
        assert_eq!(query.get("seen"), None);
    }

    #[test]
    fn invalid_queries_are_refused() {
        for bad in [
            "name=%zz",
            "name=%f",
            "name=%ff",
            "other=1",
            "name=a&name=b",
        ] {
            assert!(Query::read(Some(bad), &["name"]).is_err(), "{bad}");
        }
        for bad in ["", "-1", "+1", "1.5", "x", "99999999999999999999"] {
            let query = Query(vec![("n".to_owned(), bad.to_owned())]);
            assert!(query.number("n").is_err(), "{bad}");
        }
    }
}
