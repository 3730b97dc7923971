//! The answers to requests that the service does not handle.

use std::time::Duration;

use fencelock_core::Sequencer;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::error::FenceError;

/// An `application/problem+json` body (RFC 9457) with its status.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    members: Vec<(&'static str, Value)>,
    retry_after: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: String) -> Self {
        Self {
            status,
            kind,
            title,
            detail,
            members: Vec::new(),
            retry_after: None,
        }
    }

    fn member(mut self, name: &'static str, value: Value) -> Self {
        self.members.push((name, value));
        self
    }

    /// The client has already waited for this time without success, so it should not repeat the request at once.
    fn retry_after(mut self, waited: Duration) -> Self {
        self.retry_after = Some(waited.as_secs().clamp(1, 60));
        self
    }

    pub(super) fn missing(lock: &str) -> Self {
        let detail = format!("send the sequencer of lock {lock} in the header Fencelock-Sequencer");
        Self::new(
            StatusCode::PRECONDITION_REQUIRED,
            "missing",
            "A sequencer is required",
            detail,
        )
        .member("lock", json!(lock))
    }

    pub(super) fn unreadable(why: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "unreadable",
            "The sequencer cannot be read",
            format!("Fencelock-Sequencer: {why}; send the sequencer of the holder"),
        )
    }

    pub(super) fn unreadable_key(why: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "unreadable-key",
            "The idempotency key cannot be read",
            format!("Idempotency-Key: {why}; send one of 1 to 255 visible ASCII characters"),
        )
    }

    pub(super) fn of_another(sequencer: &Sequencer, lock: &str) -> Self {
        let detail = format!(
            "lock {lock} protects this resource, not {}; take lock {lock}",
            sequencer.name
        );
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "another-lock",
            "The sequencer is of another lock",
            detail,
        )
        .member("lock", json!(lock))
    }

    pub(super) fn refusal(sequencer: &Sequencer, error: &FenceError) -> Self {
        let Some(stale) = error.stale() else {
            return Self::unknown(sequencer.name.as_str(), error);
        };
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "stale",
            "The fencing token is stale",
            stale.to_string(),
        )
        .member("lock", json!(sequencer.name.as_str()))
        .member("token", json!(stale.late.token.get()))
        .member("won", json!(stale.won.get()))
    }

    pub(super) fn not_held(sequencer: &Sequencer) -> Self {
        let (name, token) = (&sequencer.name, sequencer.token);
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "not-held",
            "The lock is not held",
            format!("the grant of lock {name} with token {token} has ended; take the lock again"),
        )
        .member("lock", json!(name.as_str()))
        .member("token", json!(token.get()))
    }

    pub(super) fn unknown(lock: &str, error: &dyn std::error::Error) -> Self {
        tracing::warn!(lock, %error, "a request cannot be judged");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unknown",
            "The sequencer cannot be judged now",
            // Without the error, which would reveal internals of the service.
            format!("it is unknown whether lock {lock} is held; try again"),
        )
        .member("lock", json!(lock))
    }

    pub(super) fn busy(lock: &str, waited: Duration) -> Self {
        tracing::warn!(
            lock,
            ?waited,
            "a request waited too long for an earlier one"
        );
        let detail = format!(
            "an earlier request of a holder of lock {lock} is still being handled after {waited:?}; try again"
        );
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "An earlier request is not finished",
            detail,
        )
        .member("lock", json!(lock))
        .retry_after(waited)
    }

    pub(super) fn running(key: &str, waited: Duration) -> Self {
        let detail = format!(
            "the first request with Idempotency-Key {key} is still being handled after {waited:?}; \
             try again with the same key"
        );
        Self::new(
            StatusCode::CONFLICT,
            "running",
            "The same operation is running",
            detail,
        )
        .retry_after(waited)
    }

    pub(super) fn another_request(key: &str, first: &str) -> Self {
        let detail = format!(
            "Idempotency-Key {key} was first used with {first}; send a new key with each operation"
        );
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "another-request",
            "The idempotency key belongs to another operation",
            detail,
        )
    }

    pub(super) fn failed() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "failed",
            "The service failed",
            "the service failed while it handled the request, and may have written; check that before you try again"
                .to_owned(),
        )
    }

    pub(super) fn answer_lost(most: usize) -> Self {
        let detail = format!(
            "the operation was carried out, but its answer was incomplete or longer than {most} bytes, and was not kept"
        );
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "answer-lost",
            "The answer is lost",
            detail,
        )
    }

    pub(super) fn into_response<R: From<Vec<u8>>>(self) -> Response<R> {
        let mut body = Map::new();
        body.insert("type".into(), format!("urn:fencelock:{}", self.kind).into());
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        for (member, value) in self.members {
            body.insert(member.into(), value);
        }
        let text = Value::Object(body).to_string();
        let mut response = Response::new(R::from(text.into_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, problem);
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
