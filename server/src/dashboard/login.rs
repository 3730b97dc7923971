//! Login with a bearer token, which the browser keeps as a cookie, and logout.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use maud::html;

use super::form::Form;
use super::page::{go_to, plain};
use super::visitor::{Visitor, set_cookie};
use crate::audit::Deed;
use crate::incoming::Query;
use crate::principal::BearerToken;
use crate::replica::Replica;

/// The page after the login, unless the browser came from another one.
const HOME: &str = "/dashboard";

pub(super) async fn form(RawQuery(query): RawQuery) -> Response {
    let query = Query::read(query.as_deref(), &["to"]).ok();
    let to = query.as_ref().and_then(|query| query.get("to"));
    ask(StatusCode::OK, None, own(to))
}

fn ask(status: StatusCode, wrong: Option<&str>, to: &str) -> Response {
    let main = html! {
        h1 { "fencelock" }
        @if let Some(wrong) = wrong { p.bad role="alert" { (wrong) } }
        form action="/dashboard/login" method="post" {
            input type="hidden" name="to" value=(to);
            p {
                // For password managers, which keep a name with each secret.
                input type="text" autocomplete="username" value="fencelock" hidden;
                label for="token" { "Bearer token" } " "
                input #token name="token" type="password" required autocomplete="current-password" placeholder="flk_...";
                " " button { "Log in" }
            }
        }
        p { "The operator of this service draws tokens with " code { "fencelock serve token NAME" } "." }
    };
    plain(status, "Log in", &main)
}

/// The page to go to. Only a page of the dashboard is accepted.
fn own(to: Option<&str>) -> &str {
    let inside =
        |to: &&str| *to == HOME || to.starts_with("/dashboard?") || to.starts_with("/dashboard/");
    to.filter(inside).unwrap_or(HOME)
}

pub(super) async fn login(
    State(replica): State<Arc<Replica>>,
    visitor: Visitor,
    Form(form): Form,
) -> Response {
    let token = form.get("token").and_then(|text| text.trim().parse().ok());
    let token = token.filter(|token: &BearerToken| replica.access().of_token(token).is_some());
    let to = own(form.get("to"));
    let Some(token) = token else {
        visitor
            .caller
            .note(|line| line.outcome("bad token"), Deed::Login);
        let wrong = "This service does not know the token, or the token has expired.";
        return ask(StatusCode::FORBIDDEN, Some(wrong), to);
    };
    if let Some(known) = replica.access().of_token(&token) {
        visitor.caller.note(
            |line| line.principal(known.shown()).outcome("done"),
            Deed::Login,
        );
    }
    let mut response = go_to(to);
    set_cookie(&mut response, Some(&token), &replica);
    response
}

pub(super) async fn logout(State(replica): State<Arc<Replica>>, _: Form) -> Response {
    let mut response = go_to("/dashboard/logout");
    set_cookie(&mut response, None, &replica);
    response
}

pub(super) async fn over() -> Response {
    let main = html! {
        h1 { "fencelock" }
        p { "You are logged out. " a href="/dashboard/login" { "Log in" } }
    };
    plain(StatusCode::OK, "Logged out", &main)
}
