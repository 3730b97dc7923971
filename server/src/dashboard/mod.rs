//! The dashboard: pages for people who want to see which locks are held, and may evict a holder. The pages need no build step
//! and load nothing from other sites. See docs/service.md.

mod deeds;
mod form;
mod last_hour;
mod lock;
mod locks;
mod login;
mod page;
mod store;
mod visitor;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::get;

use crate::replica::Replica;

/// The paths of the dashboard.
pub(crate) fn routes() -> Router<Arc<Replica>> {
    Router::new()
        .route("/dashboard", get(locks::locks))
        .route("/dashboard/lock", get(lock::lock))
        .route("/dashboard/hour", get(last_hour::last_hour))
        .route("/dashboard/store", get(store::store))
        .route("/dashboard/evict", get(deeds::confirm).post(deeds::evict))
        .route("/dashboard/login", get(login::form).post(login::login))
        .route("/dashboard/logout", get(login::over).post(login::logout))
        .route("/dashboard/page.css", get(style))
        .route("/dashboard/page.js", get(script))
        .route("/dashboard/icon.svg", get(icon))
}

async fn style() -> Response {
    page::file("text/css; charset=utf-8", include_str!("page.css"))
}

async fn script() -> Response {
    page::file("text/javascript; charset=utf-8", include_str!("page.js"))
}

async fn icon() -> Response {
    page::file("image/svg+xml", include_str!("icon.svg"))
}
