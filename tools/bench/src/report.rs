//! The result of a measurement: a table in Markdown, and the raw numbers.

use std::fmt;

use serde_json::{Value, json};

/// One measurement.
#[derive(Clone, Debug)]
pub struct Section {
    pub(crate) title: String,
    /// What the columns mean.
    pub(crate) note: String,
    pub(crate) head: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
    /// One object for each row.
    pub(crate) raw: Vec<Value>,
}

impl Section {
    /// The raw numbers.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "measured": self.title, "note": self.note, "rows": self.raw })
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n\n{}\n", self.title, self.note)?;
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells
                .max()
                .unwrap_or(0)
                .max(self.head[column].chars().count())
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |f: &mut fmt::Formatter<'_>, cells: &mut dyn Iterator<Item = &str>| {
            for (cell, width) in cells.zip(&widths) {
                write!(f, "| {cell:>width$} ")?;
            }
            writeln!(f, "|")
        };
        line(f, &mut self.head.iter().copied())?;
        for width in &widths {
            write!(f, "| {}: ", "-".repeat(width.saturating_sub(1).max(2)))?;
        }
        writeln!(f, "|")?;
        for row in &self.rows {
            line(f, &mut row.iter().map(String::as_str))?;
        }
        writeln!(f)
    }
}
