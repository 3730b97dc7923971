//! The store's record: a row of a table of its own. The strategies are different stores in one database, so each has its own.

use fencelock_core::engine::{Record, RecordChange};

use super::request::{Answer, Request, bytes};

/// Where the record of a scope is.
pub(crate) struct Row<'a> {
    pub(crate) table: &'a str,
    /// Of those who share the table.
    pub(crate) strategy: Option<&'static str>,
    pub(crate) scope: &'a str,
}

impl Row<'_> {
    /// The request that makes the change, if there is one, and reads the record. Its last answer is for [`read`].
    pub(crate) fn request(&self, change: Option<&RecordChange>) -> Request {
        let (table, scope) = (self.table, bytes(self.scope.as_bytes()));
        let (columns, values, row) = match self.strategy {
            None => ("scope", scope.clone(), format!("scope = {scope}")),
            Some(strategy) => (
                "strategy, scope",
                format!("'{strategy}', {scope}"),
                format!("strategy = '{strategy}' AND scope = {scope}"),
            ),
        };
        let mut request = Request::default();
        if let Some(RecordChange { from, text, .. }) = change {
            let text = bytes(text.as_bytes());
            request.push(match from {
                0 => format!("INSERT IGNORE INTO {table} ({columns}, version, text) VALUES ({values}, 1, {text})"),
                from => format!(
                    "UPDATE {table} SET version = version + 1, text = {text} WHERE {row} AND version = {from}"
                ),
            });
        }
        request.push(format!("SELECT version, text FROM {table} WHERE {row}"));
        request
    }
}

/// The record, from the answers to [`Row::request`].
pub(crate) fn read(answers: &[Answer]) -> Record {
    let row = answers.last().and_then(|answer| answer.rows.first());
    let found = row.and_then(|row| {
        let text: Vec<u8> = row.get(1)?;
        Some(Record::new(row.get(0)?, String::from_utf8(text).ok()?))
    });
    found.unwrap_or_default()
}
