//! `GET /metrics`: the counters, and the state of the replica at this moment.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use fencelock_wire::Binding;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use metrics::Label;

use crate::audit::Audit;
use crate::metrics::{AUDIT_DROPPED, BOUND, BUILD, DRAINING, POLLS, STREAMS, text};
use crate::replica::Replica;

/// `GET /metrics`.
pub(crate) async fn metrics(State(replica): State<Arc<Replica>>) -> Response {
    let mut response = Response::new(Body::from(render(&replica)));
    let media = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

fn render(replica: &Replica) -> String {
    let metrics = &replica.metrics;
    metrics.set(POLLS, Vec::new(), replica.polls() as f64);
    metrics.set(STREAMS, Vec::new(), replica.events.streams() as f64);
    let draining = replica.draining.is_cancelled();
    metrics.set(DRAINING, Vec::new(), f64::from(u8::from(draining)));
    if let Some(bound) = &replica.bound {
        for (state, count) in bound.states() {
            metrics.set(BOUND, vec![text("state", state)], count as f64);
        }
    }
    let dropped = replica.audit.as_ref().map_or(0, Audit::dropped);
    metrics.counted(AUDIT_DROPPED, dropped);
    let binding = match replica.binding {
        Binding::Store => "store",
        Binding::Replica => "replica",
    };
    let build = vec![
        text("version", env!("CARGO_PKG_VERSION")),
        text("engine", replica.promises().engine),
        text("binding", binding),
        Label::new("replica", replica.id.clone()),
    ];
    metrics.set(BUILD, build, 1.0);
    metrics.text()
}
