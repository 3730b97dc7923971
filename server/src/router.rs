//! The routes and their handlers.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use fencelock_wire::Kind;
use http::Uri;

use crate::boundary::boundary;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::{about, batch, dashboard, go_on, locks, openapi, scrape, simple, stream, take};

pub(crate) fn router(replica: Arc<Replica>) -> Router {
    let mut router = Router::new();
    if replica.config.admin.is_none() {
        router = for_operators();
    }
    let router = router
        .route("/v1/store", get(about::store))
        .route("/v1/store/findings", get(about::findings))
        .route("/v1/claims", post(simple::take))
        .route("/v1/claims/{id}", put(take::take))
        .route("/v1/claims/{id}/renew", post(go_on::renew))
        .route("/v1/claims/{id}/release", post(go_on::release))
        .route("/v1/renewals", post(go_on::renew_many))
        .route("/v1/batch", post(batch::batch))
        .route("/v1/lock", get(locks::lock))
        .route("/v1/locks", get(locks::locks))
        .route("/v1/attest", post(locks::attest))
        .route("/v1/check", post(locks::check))
        .route("/v1/evict", post(locks::evict))
        .route("/v1/events", get(stream::events))
        .route("/v1/openapi.json", get(openapi::json))
        .route("/docs", get(openapi::page))
        .route("/docs/page.css", get(openapi::style))
        .merge(dashboard::routes());
    finish(router, replica)
}

/// The routes of the listener for operators.
pub(crate) fn admin(replica: Arc<Replica>) -> Router {
    finish(for_operators(), replica)
}

fn for_operators() -> Router<Arc<Replica>> {
    Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/healthz", get(about::healthz))
        .route("/readyz", get(about::readyz))
}

fn finish(router: Router<Arc<Replica>>, replica: Arc<Replica>) -> Router {
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&replica), boundary))
        .with_state(replica)
}

async fn not_found(uri: Uri) -> Refusal {
    Refusal::new(Kind::NotFound, format!("there is no {}", shown(&uri)))
}

async fn method_not_allowed(method: http::Method, uri: Uri) -> Refusal {
    let detail = format!("{} does not allow the method {method}", shown(&uri));
    Refusal::new(Kind::MethodNotAllowed, detail)
}

/// The first characters of a path.
fn shown(uri: &Uri) -> String {
    uri.path().chars().take(100).collect()
}
