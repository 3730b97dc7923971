//! A violation of a rule.

use std::fmt;

use serde::Serialize;

use crate::history::Rule;

/// Something that went against a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// When, in nanoseconds of the boot clock.
    pub at: u64,
    /// The index in [`History::names`](crate::history::History::names); `None` for all names.
    pub name: Option<u32>,
    /// The indices in [`History::attempts`](crate::history::History::attempts) of the attempts involved.
    pub attempts: Vec<usize>,
    /// What happened.
    pub what: String,
    /// Why the store had not promised the rule; `None` if a promise is broken.
    pub excuse: Option<String>,
}

impl Violation {
    /// An incomplete run proves nothing, so it counts as a violation.
    pub(crate) fn incomplete(why: &str) -> Self {
        Self {
            rule: Rule::Progress,
            at: 0,
            name: None,
            attempts: Vec::new(),
            what: format!("the run was not complete: {why}"),
            excuse: None,
        }
    }

    /// Whether a promise is broken.
    #[must_use]
    pub fn promised(&self) -> bool {
        self.excuse.is_none()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)?;
        match &self.excuse {
            None => write!(f, " (PROMISED)"),
            Some(excuse) => write!(f, " (not promised: {excuse})"),
        }
    }
}
