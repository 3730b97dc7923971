//! Answers: JSON.

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

/// A body of JSON.
pub(crate) const JSON: &str = "application/json";

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    json_as(JSON, status, body)
}

/// JSON under another media type.
pub(crate) fn json_as(media: &'static str, status: StatusCode, body: &impl Serialize) -> Response {
    // Writing it as JSON cannot fail: it has no maps and no types of other crates.
    let text = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}
