//! The forms of the dashboard, as a browser posts them.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use fencelock_wire::Kind;
use http::header::CONTENT_TYPE;

use crate::incoming::{Longest, Query, only_header, read};
use crate::refusal::Refusal;
use crate::replica::Replica;

/// The header by which a browser says which site a request comes from.
const FROM: &str = "sec-fetch-site";

const FORM: &str = "application/x-www-form-urlencoded";

/// The members of a form that a page of this service posted.
pub(super) struct Form(pub(super) Query);

impl FromRequest<Arc<Replica>> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, replica: &Arc<Replica>) -> Result<Self, Response> {
        read_form(request, replica)
            .await
            .map_err(Refusal::into_response)
    }
}

async fn read_form(request: Request, replica: &Replica) -> Result<Form, Refusal> {
    let headers = request.headers();
    let from = only_header(headers, FROM)?;
    if from.is_none_or(|from| from != "same-origin") {
        let detail = "the dashboard takes orders from its own pages only (header Sec-Fetch-Site)";
        return Err(Refusal::new(Kind::Forbidden, detail));
    }
    let media = only_header(headers, CONTENT_TYPE.as_str())?;
    if media.is_none_or(|media| media != FORM) {
        return Err(Refusal::invalid(format!(
            "the body must be a form ({FORM})"
        )));
    }
    let body = read(request.into_body(), replica, Longest::usual(replica)).await?;
    let text = std::str::from_utf8(&body).map_err(|_| Refusal::invalid("the form is not UTF-8"))?;
    let known = ["token", "to", "name", "how"];
    Ok(Form(Query::read(Some(text), &known)?))
}
