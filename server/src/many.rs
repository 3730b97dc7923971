//! A request about many claims of one key: `POST /v1/renewals` and `POST /v1/batch`.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Request};
use http::HeaderMap;
use serde::de::DeserializeOwned;

use crate::caller::{Caller, Origin};
use crate::incoming::{Key, Longest, Readable, read_json};
use crate::refusal::Refusal;
use crate::replica::Replica;

/// Who asks, the key of all claims, and the body.
pub(crate) struct Many<T> {
    pub(crate) caller: Caller,
    pub(crate) key: Key,
    pub(crate) body: T,
}

impl<T: DeserializeOwned> Many<T> {
    /// Reads the body. It may be longer than that of other requests, so it is read only for a caller that may do something
    /// here.
    pub(crate) async fn read(
        caller: Caller,
        key: Key,
        headers: &HeaderMap,
        body: impl Readable,
        (replica, origin): (&Replica, Option<&Origin>),
    ) -> Result<Self, Refusal> {
        caller.must_be_somebody()?;
        let limits = &replica.config.limits;
        let limit = Longest {
            bytes: limits.renewals_body,
            // As long as the body of any other request, it needs no turn: renewals of few holds never wait for others.
            turn: origin.map(|origin| (limits.body, &origin.long_bodies)),
        };
        let body = read_json(headers, body, replica, limit).await?;
        Ok(Self { caller, key, body })
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Replica>> for Many<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, replica: &Arc<Replica>) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, replica).await?;
        let key = Key::from_request_parts(&mut parts, replica).await?;
        let origin = parts.extensions.get::<Arc<Origin>>();
        let origin = origin.map(|origin| &**origin);
        Self::read(caller, key, &parts.headers, body, (replica, origin)).await
    }
}
