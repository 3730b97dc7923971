//! Evicting a holder, or asking it to release: a page that asks for confirmation, and then the action.

use axum::extract::RawQuery;
use axum::response::Response;
use fencelock_core::{LockName, Token};
use fencelock_wire::EvictHow;
use maud::html;

use super::form::Form;
use super::page::{Page, answer, go_to, lock_path};
use super::visitor::Visitor;
use crate::asked::token;
use crate::incoming::{Query, Received};
use crate::locks::take_away;
use crate::principal::Right;
use crate::refusal::Refusal;

/// An action on a lock.
struct Deed {
    name: LockName,
    token: Token,
    how: EvictHow,
}

impl Deed {
    fn read(query: &Query, visitor: &Visitor) -> Result<Self, Refusal> {
        let name = LockName::new(query.get("name").unwrap_or_default());
        let name = name.map_err(|error| Refusal::of(&error))?;
        let token = token(Token(query.number("token")?.unwrap_or_default()))?;
        let how = match query.get("how") {
            Some("release") => EvictHow::Release,
            Some("ask") => EvictHow::Ask,
            _ => return Err(Refusal::invalid("how is ask or release")),
        };
        visitor.caller.must(Right::Evict, &name)?;
        Ok(Self { name, token, how })
    }
}

pub(super) async fn confirm(visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    let page = Query::read(query.as_deref(), &["name", "token", "how"])
        .and_then(|query| Deed::read(&query, &visitor));
    answer(&visitor, page.map(|deed| question(&deed)))
}

fn question(deed: &Deed) -> Page {
    let Deed { name, token, how } = deed;
    let (title, told, button, word) = match how {
        EvictHow::Release => (
            "Evict the holder?",
            "The store takes the lock away at once. The holder learns of its loss with its next renewal at the latest; until then it \
             may go on with its work. A resource that checks tokens refuses that work once the next holder has been there.",
            "Evict",
            "release",
        ),
        EvictHow::Ask => (
            "Ask for the lock?",
            "The holder learns that another client wants the lock, and decides whether to release it.",
            "Ask for it",
            "ask",
        ),
    };
    let main = html! {
        h1 { (title) }
        dl { dt { "Lock" } dd { (name) } dt { "Token" } dd { (token) } }
        p { (told) }
        form action="/dashboard/evict" method="post" {
            input type="hidden" name="name" value=(name);
            input type="hidden" name="token" value=(token);
            input type="hidden" name="how" value=(word);
            button.danger { (button) " the holder with token " (token) }
            " " a href=(lock_path(name)) { "Cancel" }
        }
    };
    Page::new(title, "/dashboard", main)
}

pub(super) async fn evict(
    visitor: Visitor,
    Received(received): Received,
    Form(form): Form,
) -> Response {
    let deed = match Deed::read(&form, &visitor) {
        Ok(deed) => deed,
        Err(refusal) => return answer(&visitor, Err(refusal)),
    };
    let Deed { name, token, how } = deed;
    let (replica, caller) = (&visitor.replica, &visitor.caller);
    let done = take_away(replica, caller, received, &name, token, how).await;
    let told = match (done, how) {
        (Ok(true), EvictHow::Release) => "evicted",
        (Ok(true), EvictHow::Ask) => "asked",
        (Ok(false), _) => "gone",
        (Err(refusal), _) => return answer(&visitor, Err(refusal)),
    };
    go_to(&format!("{}&told={told}", lock_path(&name)))
}
