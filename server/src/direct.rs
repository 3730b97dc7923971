//! The most frequent requests, served without the router: taking and releasing a lock, alone and in batches. The router serves
//! them, too, by the same handlers, for those who serve it on a listener of their own.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::ClaimId;
use http::request::Parts;
use http::{Method, Request};
use hyper::body::Incoming;
use tracing::Instrument;

use crate::boundary::{check, complete, served_whole};
use crate::caller::{Caller, Origin};
use crate::incoming::{Json, Key, Received, Speaks, WantsLines};
use crate::many::Many;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::{batch, go_on, spans, take};

/// The routes as they are written in the router and in `/metrics`.
const CLAIM: &str = "/v1/claims/{id}";
const RELEASE: &str = "/v1/claims/{id}/release";
const BATCH: &str = "/v1/batch";

/// A request that needs no router.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direct {
    Take(ClaimId),
    Release(ClaimId),
    Batch,
}

impl Direct {
    /// `None` if the router must serve it.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        let path = request.uri().path();
        let method = request.method();
        if method == Method::POST && path == BATCH {
            return Some(Self::Batch);
        }
        let rest = path.strip_prefix("/v1/claims/")?;
        match rest.split_once('/') {
            None if method == Method::PUT => rest.parse().ok().map(Self::Take),
            Some((id, "release")) if method == Method::POST => id.parse().ok().map(Self::Release),
            _ => None,
        }
    }

    const fn route(self) -> &'static str {
        match self {
            Self::Take(_) => CLAIM,
            Self::Release(_) => RELEASE,
            Self::Batch => BATCH,
        }
    }

    /// Checks the request, serves it, and completes its answer.
    pub(crate) async fn serve(
        self,
        replica: Arc<Replica>,
        origin: Arc<Origin>,
        request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let received = Received(replica.clock.now());
        let (parts, body) = request.into_parts();
        let served = async {
            check(&replica, &parts.uri, &parts.headers, Some(&origin))?;
            self.handle(&replica, received, &origin, &parts, body).await
        };
        let asked = (Some(self.route()), &parts.method);
        let span = spans::http(asked.1, asked.0, &parts.headers);
        let response = served_whole(served).instrument(span.clone()).await;
        Ok(complete(&replica, received, asked, &span, response))
    }

    async fn handle(
        self,
        replica: &Arc<Replica>,
        received: Received,
        origin: &Origin,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response, Refusal> {
        let headers = &parts.headers;
        let caller = Caller::by_credentials(Some(origin), headers, replica)?;
        let key = Key::of(headers, replica)?;
        let state = State(Arc::clone(replica));
        match self {
            Self::Take(id) => {
                key.check(&id)?;
                let body = Json::read(headers, body, replica).await?;
                let lines = WantsLines::of(headers);
                take::take(state, received, caller, Speaks(id), lines, body).await
            }
            Self::Release(id) => {
                key.check(&id)?;
                let body = Json::read(headers, body, replica).await?;
                go_on::release(state, received, caller, Speaks(id), body).await
            }
            Self::Batch => {
                let many = Many::read(caller, key, headers, body, (replica, Some(origin))).await?;
                batch::batch(state, received, many).await
            }
        }
    }
}
