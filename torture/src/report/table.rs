//! One row for each kind of store and each fault, as docs/torture.md has them.

use crate::check::{Verdict, millis};

/// The head.
pub(crate) const HEAD: &str = "\
| store | fault | grants | faults injected | violations of a promise | without a promise | longest stall after healing |
| --- | --- | --- | --- | --- | --- | --- |";

/// A row.
pub(crate) fn row(store: &str, fault: &str, verdict: &Verdict) -> String {
    format!(
        "| {store} | {fault} | {} | {} | {} | {} | {} |",
        verdict.grants,
        verdict.faults,
        verdict.broken().count(),
        verdict.excused().count(),
        millis(verdict.longest_stall)
    )
}
