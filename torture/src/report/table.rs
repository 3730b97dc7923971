//! One row for each kind of store and each fault, as docs/torture.md has them.

use std::fmt;

use crate::check::{Verdict, millis};

/// The head.
pub(crate) const HEAD: &str = "\
| store | fault | runs | grants | faults injected | violations of a promise | without a promise | longest stall after healing |
| --- | --- | --- | --- | --- | --- | --- | --- |";

/// A row.
pub(crate) fn row(store: &str, fault: &str, verdict: &Verdict) -> String {
    format!(
        "| {store} | {fault} | 1 | {} | {} | {} | {} | {} |",
        verdict.grants,
        verdict.faults,
        verdict.broken().count(),
        verdict.excused().count(),
        millis(verdict.longest_stall)
    )
}

/// All rows together.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    runs: usize,
    grants: usize,
    faults: usize,
    broken: usize,
    excused: usize,
}

impl Sum {
    pub(crate) fn add(&mut self, verdict: &Verdict) {
        self.runs += 1;
        self.grants += verdict.grants;
        self.faults += verdict.faults;
        self.broken += verdict.broken().count();
        self.excused += verdict.excused().count();
    }

    pub(crate) fn holds(&self) -> bool {
        self.broken == 0
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs: {} grants checked, {} faults injected, {} violations of a promise, {} without a promise",
            self.runs, self.grants, self.faults, self.broken, self.excused
        )
    }
}
