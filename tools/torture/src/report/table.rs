//! The table of docs/torture-results.md: one row for each kind of store and each fault.

use std::fmt;

use crate::check::{Verdict, millis};

/// The head of the table.
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

/// The table of a page is between these marks.
const MARKS: [&str; 2] = ["<!-- table -->\n", "<!-- end of the table -->\n"];

/// The page with `table` instead of its own.
pub(crate) fn place(page: &str, table: &str) -> Option<String> {
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}{table}{end}{after}"))
}

/// The sum of all rows.
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

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_table_takes_the_place_of_the_one_before() {
        let page =
            |table: &str| format!("a\n<!-- table -->\n{table}<!-- end of the table -->\nb\n");
        let placed = place(&page("old\nold\n"), "new\n");
        assert_eq!(placed, Some(page("new\n")));
        assert_eq!(place("a\nb\n", "new\n"), None);
        assert_eq!(
            place("<!-- end of the table -->\n<!-- table -->\n", "new\n"),
            None
        );
    }

    #[test]
    fn the_documented_page_has_a_place_for_it() {
        let page = include_str!("../../../../docs/torture-results.md");
        assert!(place(page, "new\n").is_some());
    }
}
