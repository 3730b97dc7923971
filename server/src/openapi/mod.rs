//! The description of the API: the OpenAPI document (`GET /v1/openapi.json`), made from the bodies of the crate fencelock-wire
//! and the table of routes, and a page that shows it (`GET /docs`).

mod document;
mod page;
mod routes;

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

/// The document, the same for each replica of this version.
static DOCUMENT: LazyLock<Value> = LazyLock::new(document::document);
static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());
static PAGE: LazyLock<String> = LazyLock::new(|| page::page(&DOCUMENT));

/// What the page may load: its own style, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// `GET /v1/openapi.json`.
pub(crate) async fn json() -> Response {
    with("application/json", TEXT.as_str())
}

/// `GET /docs`.
pub(crate) async fn page() -> Response {
    let mut response = with("text/html; charset=utf-8", PAGE.as_str());
    let policy = HeaderValue::from_static(POLICY);
    response
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, policy);
    response
}

/// `GET /docs/page.css`.
pub(crate) async fn style() -> Response {
    with("text/css; charset=utf-8", include_str!("page.css"))
}

fn with(media: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}
