//! The meaning of the service's answers.

use fencelock_core::{ConfigPart, Error, LockName};
use fencelock_wire::{Kind, Problem};
use http::StatusCode;

/// A request that has no result.
#[derive(Debug)]
pub(crate) struct RequestError {
    pub(crate) error: Error,
    /// The request may have taken effect nevertheless, or may take effect later.
    pub(crate) in_doubt: bool,
    /// The kind of the service's problem, if it sent one.
    pub(crate) kind: Option<Kind>,
}

impl From<RequestError> for Error {
    fn from(failed: RequestError) -> Self {
        failed.error
    }
}

impl From<Error> for RequestError {
    /// The error of a request that was not sent.
    fn from(error: Error) -> Self {
        Self {
            error,
            in_doubt: false,
            kind: None,
        }
    }
}

/// What a request should do, for error texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action<'a> {
    /// For example "taking" or "releasing".
    pub(crate) what: &'static str,
    pub(crate) name: Option<&'a LockName>,
}

impl<'a> Action<'a> {
    pub(crate) const fn of(what: &'static str, name: &'a LockName) -> Self {
        let name = Some(name);
        Self { what, name }
    }

    pub(crate) const fn plain(what: &'static str) -> Self {
        let name = None;
        Self { what, name }
    }

    pub(crate) fn text(self) -> String {
        match self.name {
            Some(name) => format!("{} lock {name}", self.what),
            None => self.what.to_owned(),
        }
    }
}

/// The error of an answer that is a problem, or that another server sent.
pub(crate) fn refused(
    store: &str,
    replica: &str,
    action: Action<'_>,
    status: StatusCode,
    body: &[u8],
) -> RequestError {
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let kind = problem.as_ref().and_then(Problem::kind);
    let detail = match &problem {
        Some(problem) => format!("{replica} says: {}", problem.detail),
        None => format!("{replica} answers {status}, but not like the lock service"),
    };
    let in_doubt = match kind {
        Some(Kind::Unavailable | Kind::Internal) => true,
        Some(_) => false,
        None => status.is_server_error(),
    };
    let error = explain(store, action, kind, status, detail);
    RequestError {
        error,
        in_doubt,
        kind,
    }
}

fn explain(
    store: &str,
    action: Action<'_>,
    kind: Option<Kind>,
    status: StatusCode,
    detail: String,
) -> Error {
    match (kind, action.name) {
        (Some(Kind::NotALock), Some(name)) => Error::not_a_lock(store, name, detail),
        (Some(Kind::Unauthorized), _) => Error::refused(
            store,
            format!("{}; check token-file or tls-cert", action.text()),
            detail,
        ),
        (Some(Kind::Forbidden | Kind::WrongKey | Kind::StoreRefuses), _) => {
            Error::refused(store, action.text(), detail)
        }
        (Some(Kind::Unsupported), _) => Error::unsupported(store, action.what, detail),
        (Some(Kind::Invalid | Kind::TooLarge), Some(name)) => {
            Error::invalid("request for lock", name.as_str(), detail)
        }
        (Some(Kind::Invalid | Kind::TooLarge), None) => {
            Error::invalid("request", action.text(), detail)
        }
        // This does not mean that a hold is lost: it lasts as long as the session of the replica that had it.
        (Some(Kind::Quota | Kind::OtherReplica), _) => {
            Error::unavailable(store, action.text(), detail)
        }
        _ if status.is_server_error() => Error::unavailable(store, action.text(), detail),
        // The answer of a proxy, which may accept the request later.
        (None, _) if status == StatusCode::TOO_MANY_REQUESTS => {
            Error::unavailable(store, action.text(), detail)
        }
        (None, _) => Error::config(
            store,
            ConfigPart::Server,
            format!("{}: {detail}; check host and port", action.text()),
        ),
        (Some(_), _) => Error::internal(store, format!("{}: {detail}", action.text())),
    }
}

/// The error of an answer of status 200 that cannot be read.
pub(crate) fn unreadable(
    store: &str,
    replica: &str,
    action: Action<'_>,
    why: &str,
) -> RequestError {
    let detail = format!("the answer of {replica} cannot be read: {why}");
    RequestError {
        error: Error::unavailable(store, action.text(), detail),
        in_doubt: true,
        kind: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(kind: Kind) -> RequestError {
        let name = LockName::new("a").unwrap();
        let problem = Problem::new(kind, "the detail");
        let status = StatusCode::from_u16(kind.status()).unwrap();
        let body = serde_json::to_vec(&problem).unwrap();
        refused("store", "h:1", Action::of("taking", &name), status, &body)
    }

    #[test]
    fn every_problem_has_a_meaning() {
        for &kind in Kind::ALL {
            let failed = answered(kind);
            let text = failed.error.to_string();
            assert!(text.contains("the detail") && text.contains('a'), "{text}");
            assert_eq!(failed.kind, Some(kind));
            // A request is tried again if the server calls the problem transient.
            let transient = (kind.status() >= 500 && kind != Kind::StoreRefuses)
                || matches!(kind, Kind::Quota | Kind::OtherReplica);
            assert_eq!(failed.error.is_away(), transient, "{text}");
        }
    }

    #[test]
    fn only_requests_that_may_have_taken_effect_are_in_doubt() {
        assert!(answered(Kind::Unavailable).in_doubt);
        assert!(answered(Kind::Internal).in_doubt);
        for kind in [Kind::Draining, Kind::Held, Kind::Quota, Kind::Forbidden] {
            assert!(!answered(kind).in_doubt, "{kind:?}");
        }
    }

    #[test]
    fn another_server_is_not_mistaken_for_the_service() {
        let action = Action::plain("opening the store");
        let html = b"<html>";
        let failed = refused("store", "h:1", action, StatusCode::NOT_FOUND, html);
        assert!(matches!(failed.error, Error::Config { .. }), "{failed:?}");
        let failed = refused("store", "h:1", action, StatusCode::BAD_GATEWAY, html);
        assert!(failed.error.is_away() && failed.in_doubt, "{failed:?}");
        let many = StatusCode::TOO_MANY_REQUESTS;
        let failed = refused("store", "h:1", action, many, html);
        assert!(failed.error.is_away() && !failed.in_doubt, "{failed:?}");
    }
}
