//! Spans of `tracing`: one for each request, and in it one for each call of the store that places or withdraws its claim.
//! Renewals are sent in batches, so their calls have spans of their own. No span contains the name of a lock, a key, or a
//! bearer token.

use fencelock_core::ClaimId;
use fencelock_core::engine::HeldClaim;
use http::{HeaderMap, Method};
use tracing::field::{Empty, display};
use tracing::{Span, debug_span};

/// The target of all spans of fencelock.
const SPANS: &str = "fencelock::spans";

/// The header with the client's trace and span.
const TRACEPARENT: &str = "traceparent";

/// The span of a request.
pub(crate) fn http(method: &Method, route: Option<&str>, headers: &HeaderMap) -> Span {
    let span = debug_span!(
        target: SPANS, "fencelock.http", method = Empty, route = Empty, status = Empty, trace_id = Empty, parent_id = Empty
    );
    if span.is_disabled() {
        return span;
    }
    span.record("method", method.as_str());
    span.record("route", route.unwrap_or("other"));
    if let Some((trace, parent)) = traceparent(headers) {
        span.record("trace_id", trace);
        span.record("parent_id", parent);
    }
    span
}

/// The span of a call that places a claim.
pub(crate) fn place(claim: &ClaimId) -> Span {
    debug_span!(target: SPANS, "fencelock.place", claim = %claim, token = Empty)
}

/// The span of a call that withdraws a claim.
pub(crate) fn withdraw(claim: &ClaimId) -> Span {
    debug_span!(target: SPANS, "fencelock.withdraw", claim = %claim)
}

/// The span of a call that renews holds. If it renews one hold, the span has its claim.
pub(crate) fn renew(held: &[HeldClaim]) -> Span {
    let span = debug_span!(
        target: SPANS, "fencelock.renew", count = held.len(), claim = Empty, token = Empty
    );
    if let [one] = held {
        span.record("claim", display(one.claim.id));
        span.record("token", one.token.get());
    }
    span
}

/// The ids of the trace and of the span above, as W3C Trace Context has them. `None` if the header is invalid.
fn traceparent(headers: &HeaderMap) -> Option<(&str, &str)> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace) = (parts.next()?, parts.next()?);
    let (parent, flags) = (parts.next()?, parts.next()?);
    let hex = |text: &str, digits: usize| {
        text.len() == digits
            && text
                .bytes()
                .all(|digit| b"0123456789abcdef".contains(&digit))
    };
    let is_none = |text: &str| text.bytes().all(|digit| digit == b'0');
    let fits = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    // A later version may have more parts.
    let whole = version != "00" || parts.next().is_none();
    let known = fits && whole && version != "ff" && !is_none(trace) && !is_none(parent);
    known.then_some((trace, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, text.parse().unwrap());
            traceparent(&headers).is_some_and(|read| read == (trace, parent))
        };
        assert!(read(&format!("00-{trace}-{parent}-01")));
        assert!(read(&format!("01-{trace}-{parent}-01-more")));
        for bad in [
            String::new(),
            format!("00-{trace}-{parent}"),
            format!("00-{trace}-{parent}-01-more"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{trace}0-{parent}-01"),
        ] {
            assert!(!read(&bad), "{bad}");
        }
    }
}
