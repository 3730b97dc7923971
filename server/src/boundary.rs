//! The checks that every request must pass, and the headers of every answer. Listening on loopback is no protection: a web page
//! in a browser reaches it.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fencelock_wire::{Kind, REPLICA};
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tracing::{Instrument, Span};

use crate::caller::Origin;
use crate::incoming::{Received, only_header};
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::spans;

/// Checks a request, serves it, and completes its answer.
pub(crate) async fn boundary(
    State(replica): State<Arc<Replica>>,
    mut request: Request,
    next: Next,
) -> Response {
    // A program may serve the router by itself.
    replica.start();
    let received = Received(replica.clock.now());
    request.extensions_mut().insert(received);
    let origin = request.extensions().get::<Arc<Origin>>();
    let checked = check(
        &replica,
        request.uri(),
        request.headers(),
        origin.map(|origin| &**origin),
    );
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let route = route.as_ref().map(MatchedPath::as_str);
    let span = spans::http(&method, route, request.headers());
    let served = async {
        checked?;
        Ok(next.run(request).await)
    };
    let response = served_whole(served).instrument(span.clone()).await;
    complete(&replica, received, (route, &method), &span, response)
}

/// The answer to a request. A panic becomes an error answer.
pub(crate) async fn served_whole(
    served: impl Future<Output = Result<Response, Refusal>>,
) -> Response {
    // A panic cannot leave broken state behind: what it touched belongs to this request alone.
    let served = AssertUnwindSafe(served).catch_unwind().await;
    let bug = |_| {
        let detail = "the request met a bug; what it asked for may have been done";
        Err(Refusal::new(Kind::Internal, detail))
    };
    served
        .unwrap_or_else(bug)
        .unwrap_or_else(Refusal::into_response)
}

/// Completes an answer, and counts it.
pub(crate) fn complete(
    replica: &Replica,
    received: Received,
    (route, method): (Option<&str>, &Method),
    span: &Span,
    mut response: Response,
) -> Response {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(REPLICA), replica.id_header.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(kind) = response.extensions().get::<Kind>() {
        replica.metrics.refused(*kind);
    }
    span.record("status", response.status().as_u16());
    let took = replica.clock.now().since(received.0);
    let metrics = &replica.metrics;
    metrics.request(route, method, response.status(), took);
    response
}

/// Refuses a request that is too large, or that a page of another site sent.
pub(crate) fn check(
    replica: &Replica,
    uri: &Uri,
    headers: &HeaderMap,
    origin: Option<&Origin>,
) -> Result<(), Refusal> {
    check_sizes(replica, uri, headers)?;
    let host = host(uri, headers)?;
    if !is_own(replica, &host, origin.and_then(|origin| origin.local)) {
        let detail = format!(
            "this service does not have the name {}; use its address, or let its operator add the name (--host)",
            host.host()
        );
        return Err(Refusal::new(Kind::Forbidden, detail));
    }
    check_origin(headers, &host)
}

fn check_sizes(replica: &Replica, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let limits = &replica.config.limits;
    let url = uri.path_and_query();
    let too_large = |what: String| Err(Refusal::new(Kind::TooLarge, what).close());
    if url.is_some_and(|url| url.as_str().len() > limits.url) {
        return too_large(format!(
            "the path and query are longer than {} bytes",
            limits.url
        ));
    }
    if headers.len() > limits.headers {
        return too_large(format!("there are more than {} headers", limits.headers));
    }
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    if bytes.sum::<usize>() > limits.header_bytes {
        return too_large(format!(
            "the headers have more than {} bytes",
            limits.header_bytes
        ));
    }
    Ok(())
}

/// The host and port in the request.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refusal> {
    if let Some(authority) = uri.authority() {
        return Ok(authority.clone());
    }
    let value = only_header(headers, HOST.as_str())?;
    let text = value.and_then(|value| value.to_str().ok());
    let authority = text.and_then(|text| text.parse::<Authority>().ok());
    let bad = || Refusal::invalid("the header Host is missing, or names no host");
    let authority = authority.ok_or_else(bad)?;
    match authority.as_str().contains('@') {
        true => Err(bad()),
        false => Ok(authority),
    }
}

/// Whether the host is this service. A request from a page of another site has the name of that site here.
fn is_own(replica: &Replica, host: &Authority, local: Option<SocketAddr>) -> bool {
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        let is_local = local.is_some_and(|local| local.ip().to_canonical() == address);
        return address.is_loopback() || is_local || named(replica, name);
    }
    name.eq_ignore_ascii_case("localhost") || named(replica, name)
}

fn named(replica: &Replica, host: &str) -> bool {
    let config = &replica.config;
    let advertised = config.advertise.as_deref().and_then(|url| {
        let uri: http::Uri = url.parse().ok()?;
        Some(uri.host()?.eq_ignore_ascii_case(host))
    });
    let mut names = config.hosts.iter();
    advertised == Some(true) || names.any(|name| name.eq_ignore_ascii_case(host))
}

/// Refuses what a page of another site sent, even if its browser allows the request.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
    let Some(origin) = only_header(headers, ORIGIN.as_str())? else {
        return Ok(());
    };
    let own = origin.to_str().ok().and_then(|origin| {
        let (scheme, rest) = origin.split_once("://")?;
        let known = matches!(scheme, "http" | "https");
        Some(known && rest.eq_ignore_ascii_case(host.as_str()))
    });
    match own {
        Some(true) => Ok(()),
        _ => {
            let detail = "pages of other sites may not use this service (header Origin)";
            Err(Refusal::new(Kind::Forbidden, detail))
        }
    }
}
