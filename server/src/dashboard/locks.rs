//! All locks that are held, by page, and by what their names begin with.

use axum::extract::RawQuery;
use axum::response::Response;
use fencelock_core::engine::{LockView, Page as Part};
use maud::{Markup, html};

use super::page::{Page, answer, encoded, lock_path, time};
use super::visitor::Visitor;
use crate::incoming::Query;
use crate::listing::list;
use crate::refusal::Refusal;

/// How many locks a page has.
const PAGE: usize = 100;

/// How many holders of a lock are shown in a line.
const HOLDERS: usize = 3;

pub(super) async fn locks(visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    answer(&visitor, page(&visitor, query.as_deref()).await)
}

async fn page(visitor: &Visitor, query: Option<&str>) -> Result<Page, Refusal> {
    visitor.caller.must_be_somebody()?;
    let query = Query::read(query, &["prefix", "cursor"])?;
    let prefix = query.get("prefix").unwrap_or_default();
    let (caller, at) = (&visitor.caller, query.get("cursor"));
    let part = list(&visitor.replica, caller, prefix, at, PAGE).await?;
    let main = table(prefix, part);
    Ok(Page::new("Locks", "/dashboard", main).live())
}

fn table(prefix: &str, part: Part<LockView>) -> Markup {
    let mut locks = part.items;
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    let next = part.next.map(|next| {
        format!(
            "/dashboard?prefix={}&cursor={}",
            encoded(prefix),
            encoded(&next.0)
        )
    });
    html! {
        h1 {
            "Locks held"
            @if !prefix.is_empty() { ", " q { (prefix) } " and after" }
        }
        @if locks.is_empty() {
            p { "No lock that you may look at is held here" @if next.is_some() { " on this page" } "." }
        } @else {
            table {
                thead { tr {
                    th scope="col" { "Lock" } th scope="col" { "Held by" } th scope="col" { "Token" }
                    th scope="col" { "For" } th scope="col" { "Lease left" } th scope="col" { "Waiting" }
                } }
                tbody { @for lock in &locks { (line(lock)) } }
            }
        }
        @if let Some(next) = next { p { a href=(next) { "Next page" } } }
    }
}

fn line(lock: &LockView) -> Markup {
    let first = lock.holders.first();
    let more = lock.holders.len().saturating_sub(HOLDERS);
    html! {
        tr {
            th.long scope="row" { a href=(lock_path(&lock.name)) { (lock.name) } }
            td.long {
                @for (at, holder) in lock.holders.iter().take(HOLDERS).enumerate() {
                    @if at > 0 { ", " }
                    (holder.owner)
                }
                @if more > 0 { " and " (more) " more" }
            }
            td.number { @if let Some(token) = lock.token() { (token) } @else { "-" } }
            td.number { (time(first.and_then(|holder| holder.held))) }
            td.number { (time(first.and_then(|holder| holder.ttl_left))) }
            td.number { (lock.waiters.len()) }
        }
    }
}
