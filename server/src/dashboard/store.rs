//! The store behind the replica: what it promises, and what is wrong with it now.

use std::sync::Arc;

use axum::response::Response;
use fencelock_core::in_words;
use fencelock_wire::Finding;
use maud::{Markup, html};

use super::page::{Page, answer};
use super::visitor::Visitor;
use crate::principal::Right;
use crate::refusal::Refusal;

pub(super) async fn store(visitor: Visitor) -> Response {
    answer(&visitor, page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Page, Refusal> {
    visitor.caller.must_be_somebody()?;
    let found = match visitor.caller.may_on_all(Right::Look) {
        true => Some(findings(visitor).await),
        false => None,
    };
    let main = html! {
        h1 { "Store" }
        (promises(visitor))
        h2 { "Limits and findings" }
        @match found {
            None => p { "Only those who may look at all locks see what was found." },
            Some(Err(refusal)) => p.bad role="alert" { (refusal.problem().detail) },
            Some(Ok(found)) => (list(&found)),
        }
    };
    Ok(Page::new("Store", "/dashboard/store", main))
}

async fn findings(visitor: &Visitor) -> Result<Vec<Finding>, Refusal> {
    let replica = &visitor.replica;
    let asked = Arc::clone(replica);
    let call = async move { asked.engine.inspect().diagnose().await };
    let found = replica.carry(call).await?;
    replica.hear(&found);
    let found = found.map_err(|error| Refusal::of(&error))?;
    let limits = replica.promises().limits.iter();
    Ok(limits.chain(&found).map(Finding::from).collect())
}

fn promises(visitor: &Visitor) -> Markup {
    let replica = &visitor.replica;
    let promises = replica.promises();
    let word = |yes: bool| if yes { "yes" } else { "no" };
    let lines = [
        ("Store", replica.engine.to_string()),
        ("Order of waiters", promises.order.as_str().to_owned()),
        ("Shared holders", word(promises.shared).to_owned()),
        ("Permits", word(promises.permits).to_owned()),
        ("Lock-delay", word(promises.lock_delay).to_owned()),
        ("A hold lives by", promises.lease.as_str().to_owned()),
        ("Waiters are woken by", promises.wake.as_str().to_owned()),
        ("Locks survive", promises.durability.as_str().to_owned()),
        ("Clock", promises.clock.to_owned()),
        ("Shortest lease", in_words(replica.min_ttl())),
        (
            "Version of this replica",
            env!("CARGO_PKG_VERSION").to_owned(),
        ),
    ];
    html! { dl { @for (what, value) in lines { dt { (what) } dd { (value) } } } }
}

fn list(found: &[Finding]) -> Markup {
    html! {
        @if found.is_empty() { p { "Nothing is wrong." } }
        ul {
            @for finding in found {
                li { strong { (finding.purpose) } ": " (finding.what) " " em { (finding.change) } }
            }
        }
    }
}
