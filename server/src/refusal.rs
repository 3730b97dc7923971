//! The answer to a request that is not served: `application/problem+json`.

use axum::response::{IntoResponse, Response};
use fencelock_core::{Error, LockName};
use fencelock_wire::{CONTENT_TYPE, Kind, Problem};
use http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};

use crate::reply::json_as;

/// A problem to be sent to the client.
#[derive(Debug)]
pub(crate) struct Refusal {
    problem: Box<Problem>,
    retry_after: Option<u32>,
    close: bool,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            problem: Box::new(Problem::new(kind, detail)),
            retry_after: matches!(kind, Kind::Unavailable | Kind::Quota).then_some(1),
            close: false,
        }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, detail)
    }

    /// The answer to a new claim on this lock while the replica drains.
    pub(crate) fn draining(name: &LockName) -> Self {
        let detail = "this replica is about to end, and sent nothing to the store; use another one";
        Self::new(Kind::Draining, detail).name(name).close()
    }

    /// The problem for an error of the store.
    pub(crate) fn of(error: &Error) -> Self {
        let kind = match error {
            Error::Invalid { .. } => Kind::Invalid,
            Error::Held { .. } | Error::TimedOut { .. } => Kind::Held,
            Error::Lost { .. } => Kind::Lost,
            Error::Unsupported { .. } => Kind::Unsupported,
            Error::Unavailable { .. } | Error::Closed => Kind::Unavailable,
            Error::Refused { .. } | Error::Config { .. } | Error::ConfigFile { .. } => {
                Kind::StoreRefuses
            }
            Error::NotALock { .. } => Kind::NotALock,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }

    /// Sets the lock that the request was about.
    pub(crate) fn name(mut self, name: &LockName) -> Self {
        self.problem.name = Some(name.to_string());
        self
    }

    /// Sets a title that says more than the general one of the kind.
    pub(crate) fn title(mut self, title: &str) -> Self {
        self.problem.title = title.to_owned();
        self
    }

    /// Names the replica where a new claim may be taken.
    pub(crate) fn replica(mut self, id: &str, advertise: Option<&str>) -> Self {
        self.problem.replica = Some(id.to_owned());
        self.problem.advertise = advertise.map(str::to_owned);
        self
    }

    /// Sets when to ask again, in seconds.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Closes the connection after this answer.
    pub(crate) fn close(mut self) -> Self {
        self.close = true;
        self
    }

    pub(crate) fn retries_after(&self) -> Option<u32> {
        self.retry_after
    }

    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        self.problem.kind()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = self.kind();
        let mut response = json_as(CONTENT_TYPE, status, &self.problem);
        if let Some(kind) = kind {
            // The metrics read the kind.
            response.extensions_mut().insert(kind);
        }
        let headers = response.headers_mut();
        let set = HeaderValue::from_static;
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.close {
            headers.insert(CONNECTION, set("close"));
        }
        if kind == Some(Kind::Unauthorized) {
            headers.insert(WWW_AUTHENTICATE, set("Bearer realm=\"fencelock\""));
        }
        response
    }
}
