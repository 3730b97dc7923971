//! What happened at this replica in the last hour: grants, refusals and losses by the minute, and the last lines of the audit
//! log.

use axum::response::Response;
use maud::{Markup, html};

use super::page::{Page, answer};
use super::visitor::Visitor;
use crate::audit::Line;
use crate::hour::{MINUTES, Minute};
use crate::principal::Right;
use crate::refusal::Refusal;

/// Which number of a minute is shown.
type Count = fn(&Minute) -> u64;

/// The height of the bars, and the width of one with its gap.
const HEIGHT: u64 = 60;
const WIDTH: usize = 10;

pub(super) async fn last_hour(visitor: Visitor) -> Response {
    answer(&visitor, page(&visitor))
}

fn page(visitor: &Visitor) -> Result<Page, Refusal> {
    visitor.caller.must_on_all(Right::Look)?;
    let minutes = visitor.replica.metrics.hour.minutes();
    let rows: [(&str, Count); 4] = [
        ("Granted at once", |minute| minute.at_once),
        ("Granted after a wait", |minute| minute.waited),
        ("Refused: held by others", |minute| minute.refused),
        ("Lost", |minute| minute.lost),
    ];
    let lines = visitor.replica.tail.lines();
    let main = html! {
        h1 { "Last hour" }
        p { "What this replica has seen, by the minute; now is on the right." }
        table {
            tbody {
                @for (what, count) in rows {
                    tr {
                        th scope="row" { (what) }
                        td.number { (minutes.iter().map(count).sum::<u64>()) }
                        td { (bars(what, &minutes, count)) }
                    }
                }
            }
        }
        h2 { "Audit" }
        (audit(&lines))
    };
    Ok(Page::new("Last hour", "/dashboard/hour", main).live())
}

fn bars(what: &str, minutes: &[Minute], count: Count) -> Markup {
    let most = minutes.iter().map(count).max().unwrap_or_default().max(1);
    html! {
        svg viewBox=(format!("0 0 {} {HEIGHT}", MINUTES * WIDTH)) role="img" aria-label=(format!("{what}, by the minute; at most {most}")) {
            @for (at, minute) in minutes.iter().enumerate() {
                @let height = (count(minute) * HEIGHT).div_ceil(most);
                rect x=(at * WIDTH) y=(HEIGHT - height) width=(WIDTH - 2) height=(height) {}
            }
        }
    }
}

fn audit(lines: &[Line]) -> Markup {
    html! {
        @if lines.is_empty() {
            p { "Nothing yet since this replica was started." }
        } @else {
            table {
                thead { tr {
                    th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "From" } th scope="col" { "What" }
                    th scope="col" { "Lock" } th scope="col" { "Token" } th scope="col" { "Outcome" }
                } }
                tbody {
                    @for line in lines {
                        tr {
                            td.number { (line.at) }
                            td { (line.principal) }
                            td { (line.peer.as_deref().unwrap_or("-")) }
                            td { (line.r#do.as_str()) }
                            td.long { (line.name.as_deref().unwrap_or("-")) }
                            td.number { @if let Some(token) = line.token { (token) } }
                            td { (line.outcome.as_deref().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}
