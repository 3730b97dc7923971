//! The names of tables, and the text in their columns.

use std::fmt::{self, Display};

use fencelock_core::{Error, Sequencer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The longest name of a lock, in bytes.
pub(super) const LONGEST_NAME: usize = 512;

/// The name of a table. It has letters, digits, `_` and `.` only, so it cannot contain a statement.
#[derive(Clone, Debug)]
pub(super) struct TableName(String);

impl TableName {
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if name.is_empty() || !name.chars().all(plain) {
            let why = "it may only contain letters, digits, _ and .";
            return Err(Error::invalid("table name", name, why));
        }
        Ok(Self(name.to_owned()))
    }

    /// For a name that needs no check.
    pub(super) fn fixed(name: &'static str) -> Self {
        Self(name.to_owned())
    }
}

impl Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Any text, percent-encoded: letters, digits and `%` only.
pub(super) fn encoded(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// The name of the lock, percent-encoded.
pub(super) fn lock_name(sequencer: &Sequencer) -> impl Display + '_ {
    encoded(sequencer.name.as_str())
}
