//! The checks that every request must pass, and the headers of every answer. Loopback is no boundary: a web page in a browser
//! reaches it.

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
use http::{HeaderName, HeaderValue};

use crate::incoming::{Received, only_header};
use crate::refusal::Refusal;
use crate::replica::Replica;

/// The address on which a request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local(pub(crate) SocketAddr);

/// Checks a request, serves it, and completes its answer.
pub(crate) async fn boundary(
    State(replica): State<Arc<Replica>>,
    mut request: Request,
    next: Next,
) -> Response {
    let received = Received(replica.clock.now());
    request.extensions_mut().insert(received);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let mut response = match check(&replica, &request) {
        Ok(()) => serve(request, next).await,
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(REPLICA), replica.id_header.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(kind) = response.extensions().get::<Kind>() {
        replica.metrics.refused(*kind);
    }
    let took = replica.clock.now().since(received.0);
    let metrics = &replica.metrics;
    let route = route.as_ref().map(MatchedPath::as_str);
    metrics.request(route, &method, response.status(), took);
    response
}

async fn serve(request: Request, next: Next) -> Response {
    // What a panic leaves behind belongs to this request alone.
    let served = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    served.unwrap_or_else(|_| {
        let detail = "the request met a bug; what it asked for may have been done";
        Refusal::new(Kind::Internal, detail).into_response()
    })
}

fn check(replica: &Replica, request: &Request) -> Result<(), Refusal> {
    check_sizes(replica, request)?;
    let host = host(request)?;
    let local = request.extensions().get::<Local>().copied();
    if !is_own(replica, &host, local) {
        let detail = format!(
            "this service is not {}; ask for it by its address, or have its operator name the host",
            host.host()
        );
        return Err(Refusal::new(Kind::Forbidden, detail));
    }
    check_origin(request, &host)
}

fn check_sizes(replica: &Replica, request: &Request) -> Result<(), Refusal> {
    let limits = &replica.config.limits;
    let url = request.uri().path_and_query();
    let too_large = |what: String| Err(Refusal::new(Kind::TooLarge, what).close());
    if url.is_some_and(|url| url.as_str().len() > limits.url) {
        return too_large(format!(
            "the path and query are longer than {} bytes",
            limits.url
        ));
    }
    let headers = request.headers();
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

/// The host and port that the client asked for.
fn host(request: &Request) -> Result<Authority, Refusal> {
    if let Some(authority) = request.uri().authority() {
        return Ok(authority.clone());
    }
    let value = only_header(request.headers(), HOST.as_str())?;
    let text = value.and_then(|value| value.to_str().ok());
    let authority = text.and_then(|text| text.parse::<Authority>().ok());
    let bad = || Refusal::invalid("the header Host is missing, or names no host");
    let authority = authority.ok_or_else(bad)?;
    match authority.as_str().contains('@') {
        true => Err(bad()),
        false => Ok(authority),
    }
}

/// Whether the host is this service. A page of another site reaches it under a name of that site only.
fn is_own(replica: &Replica, host: &Authority, local: Option<Local>) -> bool {
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        let is_local = local.is_some_and(|Local(local)| local.ip().to_canonical() == address);
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

/// A page of another site must not do anything here, even if its browser lets it send the request.
fn check_origin(request: &Request, host: &Authority) -> Result<(), Refusal> {
    let Some(origin) = only_header(request.headers(), ORIGIN.as_str())? else {
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
