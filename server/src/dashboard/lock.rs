//! One lock: who holds it, and who waits.

use axum::extract::RawQuery;
use axum::response::Response;
use fencelock_core::engine::{HolderView, LockView, WaiterView};
use fencelock_core::{LockName, Token};
use maud::{Markup, html};

use super::page::{Page, answer, encoded, mode, time};
use super::visitor::Visitor;
use crate::incoming::Query;
use crate::locks::look;
use crate::principal::Right;
use crate::refusal::Refusal;

pub(super) async fn lock(visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    answer(&visitor, page(&visitor, query.as_deref()).await)
}

async fn page(visitor: &Visitor, query: Option<&str>) -> Result<Page, Refusal> {
    let query = Query::read(query, &["name", "told"])?;
    let name = LockName::new(query.get("name").unwrap_or_default());
    let name = name.map_err(|error| Refusal::of(&error))?;
    visitor.caller.must(Right::Look, &name)?;
    let view = look(&visitor.replica, &name).await?;
    let may_evict = visitor.caller.may(Right::Evict, &name);
    let main = html! {
        h1 { "Lock " (name) }
        @if let Some(told) = query.get("told").and_then(told) { p role="status" { (told) } }
        (holders(&view, may_evict))
        (waiters(&view.waiters))
    };
    Ok(Page::new(format!("Lock {name}"), "/dashboard", main).live())
}

/// The result of the action before this page, as a sentence.
fn told(word: &str) -> Option<&'static str> {
    match word {
        "evicted" => Some("The lock was taken from that holder."),
        "asked" => Some(
            "The holder was asked for the lock. It learns of the request with its next renewal.",
        ),
        "gone" => Some("No holder has that token any more. Nothing was done."),
        _ => None,
    }
}

fn holders(view: &LockView, may_evict: bool) -> Markup {
    html! {
        @if view.holders.is_empty() {
            p { "Nobody holds it." }
        } @else {
            table {
                caption { "Held by" }
                thead { tr {
                    th scope="col" { "Owner" } th scope="col" { "Mode" } th scope="col" { "Token" }
                    th scope="col" { "For" } th scope="col" { "Lease left" } th scope="col" { "Note" }
                    @if may_evict { th scope="col" { "" } }
                } }
                tbody { @for holder in &view.holders { (row(&view.name, holder, may_evict)) } }
            }
        }
    }
}

fn row(name: &LockName, holder: &HolderView, may_evict: bool) -> Markup {
    html! {
        tr {
            th.long scope="row" { (holder.owner) }
            td { (mode(holder.mode)) }
            td.number { @if let Some(token) = holder.token { (token) } @else { "-" } }
            td.number { (time(holder.held)) }
            td.number {
                (time(holder.ttl_left))
                @if !holder.lock_delay.is_zero() { ", " (time(Some(holder.lock_delay))) " of it lock-delay" }
            }
            td.long { @if let Some(label) = &holder.label { (label) } }
            @if may_evict {
                td.deeds {
                    @if let Some(token) = holder.token {
                        a href=(deed(name, token, "ask")) { "Ask for it" }
                        a.danger href=(deed(name, token, "release")) { "Evict" }
                    }
                }
            }
        }
    }
}

/// The URL of the page that asks for confirmation.
fn deed(name: &LockName, token: Token, how: &str) -> String {
    let name = encoded(name.as_str());
    format!("/dashboard/evict?name={name}&token={token}&how={how}")
}

fn waiters(waiters: &[WaiterView]) -> Markup {
    html! {
        @if waiters.is_empty() {
            p { "Nobody waits." }
        } @else {
            table {
                caption { (waiters.len()) @if waiters.len() >= LockView::MOST_WAITERS { " or more" } " waiting" }
                thead { tr {
                    th scope="col" { "Place" } th scope="col" { "Owner" } th scope="col" { "Mode" } th scope="col" { "Note" }
                } }
                tbody {
                    @for (at, waiter) in waiters.iter().enumerate() {
                        tr {
                            td.number { (at + 1) }
                            th.long scope="row" { (waiter.owner) }
                            td { (mode(waiter.mode)) }
                            td { @if let Some(label) = &waiter.label { (label) } }
                        }
                    }
                }
            }
        }
    }
}
