//! What all pages have: the frame, the headers, refusals as pages, and small parts.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use fencelock_core::{LockName, Mode, in_words};
use fencelock_wire::Kind;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY};
use http::{HeaderValue, StatusCode};
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::visitor::Visitor;
use crate::refusal::Refusal;

/// The content policy: nothing from other sites, nothing inline, and no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The pages in the menu: path and name.
const PAGES: [(&str, &str); 3] = [
    ("/dashboard", "Locks"),
    ("/dashboard/hour", "Last hour"),
    ("/dashboard/store", "Store"),
];

/// The main part of a page.
pub(super) struct Page {
    status: StatusCode,
    title: String,
    /// The entry of [`PAGES`] that is highlighted.
    of: &'static str,
    main: Markup,
    /// The script reloads this part again and again.
    live: bool,
    needs_login: bool,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, of: &'static str, main: Markup) -> Self {
        Self {
            status: StatusCode::OK,
            title: title.into(),
            of,
            main,
            live: false,
            needs_login: false,
        }
    }

    /// Marks the page as one whose content changes, so that the script reloads it.
    pub(super) fn live(mut self) -> Self {
        self.live = true;
        self
    }

    fn refusal(refusal: &Refusal) -> Self {
        let problem = refusal.problem();
        let status = StatusCode::from_u16(problem.status);
        let main = html! {
            h1 { (problem.title) }
            p.bad role="alert" { (problem.detail) }
        };
        let mut page = Self::new(problem.title.clone(), "", main);
        page.status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        page.needs_login = refusal.kind() == Some(Kind::Unauthorized);
        // If the store is away, the page shows its content once the store is back.
        page.live = refusal.kind() == Some(Kind::Unavailable);
        page
    }

    /// The main part alone.
    fn part(self, visitor: &Visitor) -> Response {
        let text = html! { (state(visitor)) (self.main) };
        respond(self.status, &text)
    }

    /// The whole page.
    fn whole(self, visitor: &Visitor) -> Response {
        let live = self.live.then_some("2000");
        let text = html! {
            (head(&self.title))
            body {
                header {
                    nav aria-label="Pages" {
                        @for (path, name) in PAGES {
                            a href=(path) aria-current=[(self.of == path).then_some("page")] { (name) }
                        }
                    }
                    form.find action="/dashboard" method="get" role="search" {
                        label for="prefix" { "Names that begin with" }
                        input #prefix name="prefix" type="search" autocomplete="off" spellcheck="false";
                        button { "Show" }
                    }
                    (who(visitor))
                }
                p #lost .bad role="status" hidden { "This replica does not answer. The page shows what it said last." }
                main #main data-live=[live] { (state(visitor)) (self.main) }
                footer { (visitor.replica.engine) " through replica " code { (visitor.replica.id) } }
            }
        };
        respond(self.status, &text)
    }
}

/// The page as the visitor asks for it; a refusal is a page, too.
pub(super) fn answer(visitor: &Visitor, page: Result<Page, Refusal>) -> Response {
    let page = page.unwrap_or_else(|refusal| Page::refusal(&refusal));
    match visitor.part {
        // A visitor without credentials may log in.
        false if page.needs_login => to_login(&visitor.target),
        false => page.whole(visitor),
        true => page.part(visitor),
    }
}

/// A page for a request without a visitor.
pub(super) fn plain(status: StatusCode, title: &str, main: &Markup) -> Response {
    let text = html! {
        (head(title))
        body { main #main { (main) } }
    };
    respond(status, &text)
}

fn head(title: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en";
        meta charset="utf-8";
        meta name="viewport" content="width=device-width";
        title { (title) " - fencelock" }
        link rel="icon" href="/dashboard/icon.svg";
        link rel="stylesheet" href="/dashboard/page.css";
        script src="/dashboard/page.js" defer {}
    }
}

fn who(visitor: &Visitor) -> Markup {
    html! {
        @if visitor.logged_in {
            form.who action="/dashboard/logout" method="post" {
                span { (visitor.caller.shown()) } " " button { "Log out" }
            }
        } @else {
            p.who { span { (visitor.caller.shown()) } " " a href="/dashboard/login" { "Log in" } }
        }
    }
}

/// What is wrong with the replica or its store. It stands at the top.
fn state(visitor: &Visitor) -> Markup {
    let replica = &visitor.replica;
    html! {
        @if let Some((time, why)) = replica.failing() {
            p.bad role="alert" {
                strong { "The store does not answer" } ", since " (in_words(whole_seconds(time))) ": " (why)
            }
        }
        @if replica.draining.is_cancelled() {
            p.bad role="alert" { "This replica is about to end and grants nothing more." }
        }
    }
}

fn respond(status: StatusCode, text: &Markup) -> Response {
    let mut response = file_of("text/html; charset=utf-8", Body::from(text.0.clone()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let set = HeaderValue::from_static;
    headers.insert(CONTENT_SECURITY_POLICY, set(POLICY));
    headers.insert(REFERRER_POLICY, set("same-origin"));
    response
}

/// A file that is the same for everybody.
pub(super) fn file(media: &'static str, text: &'static str) -> Response {
    file_of(media, Body::from(text))
}

fn file_of(media: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Sends the browser to another page.
pub(super) fn go_to(target: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(target) = HeaderValue::from_str(target) {
        response.headers_mut().insert(LOCATION, target);
    }
    response
}

/// Sends the browser to the login, which sends it back afterwards.
fn to_login(back_to: &str) -> Response {
    go_to(&format!("/dashboard/login?to={}", encoded(back_to)))
}

/// The page of a lock.
pub(super) fn lock_path(name: &LockName) -> String {
    format!("/dashboard/lock?name={}", encoded(name.as_str()))
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A time for people. A dash if it is unknown.
pub(super) fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| in_words(whole_seconds(time)))
}

pub(super) fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

pub(super) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permit { of } => format!("one of {of} permits"),
    }
}
