//! Requests of several statements, and their answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::LockName;
use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{Conn, Params, QueryResult, Row, Statement, Value};

use super::config::WAIT_TIMEOUT;

/// Several statements in one request, which stops at the first one that fails; or one prepared statement.
#[derive(Debug, Default)]
pub(super) struct Request {
    text: String,
    count: usize,
    prepared: Option<(Arc<str>, Vec<Value>)>,
}

/// What a connection has prepared, by text.
pub(super) type Statements = HashMap<Arc<str>, Statement>;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) affected: u64,
    pub(super) last_id: Option<u64>,
    pub(super) rows: Vec<Row>,
}

/// The database's time in microseconds, at the start of the statement.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How long the server keeps a connection that is silent inside a transaction, in seconds. A client that is stopped after an
/// error, before it could roll back, keeps its rows locked no longer than this.
pub(super) const IN_TRANSACTION: u64 = 5;

/// How long a connection draws tokens without lifting the counter. Taking and restoring a dump takes longer.
pub(super) const LIFT_EVERY: Duration = Duration::from_millis(100);
/// The id to which the counter is lifted: the next step of the time, in steps of 1024 ids. So if for-update clients lift at the
/// same time, they lift to the same id, and no transaction that stays open has drawn that id.
pub(super) const LIFTED_ID: &str =
    "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 10240 + 1) * 1024";

impl Request {
    /// A request that begins a transaction, which [`Request::commit`] ends.
    pub(super) fn transaction() -> Self {
        let mut request = Self::of(format!("SET SESSION wait_timeout = {IN_TRANSACTION}"));
        request.push("START TRANSACTION");
        request
    }

    /// Ends what [`Request::transaction`] began.
    pub(super) fn commit(&mut self) {
        self.end("COMMIT");
    }

    /// Rolls back a transaction that a request left open.
    pub(super) fn rollback() -> Self {
        let mut request = Self::default();
        request.end("ROLLBACK");
        request
    }

    /// Ends a transaction with this statement.
    pub(super) fn end(&mut self, word: &str) {
        self.push(word);
        self.push(format!("SET SESSION wait_timeout = {WAIT_TIMEOUT}"));
    }

    /// A request of this statement.
    pub(super) fn of(statement: impl AsRef<str>) -> Self {
        let mut request = Self::default();
        request.push(statement);
        request
    }

    /// One statement with parameters, which the connection prepares the first time.
    pub(super) fn prepared(statement: impl Into<Arc<str>>, values: Vec<Value>) -> Self {
        Self {
            text: String::new(),
            count: 1,
            prepared: Some((statement.into(), values)),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a statement. Returns the index of its answer.
    pub(super) fn push(&mut self, statement: impl AsRef<str>) -> usize {
        if self.count > 0 {
            self.text.push(';');
        }
        self.text.push_str(statement.as_ref());
        self.count += 1;
        self.count - 1
    }

    /// Sends it and reads all answers.
    pub(super) async fn run(&self, conn: &mut Conn) -> Result<Vec<Answer>, mysql_async::Error> {
        self.run_with(conn, &mut Statements::new()).await
    }

    /// Runs the request on a connection that has prepared these statements.
    pub(super) async fn run_with(
        &self,
        conn: &mut Conn,
        statements: &mut Statements,
    ) -> Result<Vec<Answer>, mysql_async::Error> {
        let Some((text, values)) = &self.prepared else {
            let result = conn.query_iter(self.text.as_str()).await?;
            return self.read(result).await;
        };
        prepare(conn, statements, text).await?;
        let values = Params::Positional(values.clone());
        let result = conn.exec_iter(&statements[text], values).await?;
        self.read(result).await
    }

    async fn read<P: Protocol>(
        &self,
        mut result: QueryResult<'_, '_, P>,
    ) -> Result<Vec<Answer>, mysql_async::Error> {
        let mut answers = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            let (affected, last_id) = (result.affected_rows(), result.last_insert_id());
            // Goes on to the next answer, and reports its error.
            let rows = result.collect().await?;
            answers.push(Answer {
                affected,
                last_id,
                rows,
            });
        }
        // A compound statement has one more answer for its end.
        result.drop_result().await?;
        Ok(answers)
    }
}

/// Prepares a statement unless the connection has done so.
pub(super) async fn prepare(
    conn: &mut Conn,
    statements: &mut Statements,
    text: &Arc<str>,
) -> Result<(), mysql_async::Error> {
    if !statements.contains_key(text) {
        statements.insert(Arc::clone(text), conn.prep(&**text).await?);
    }
    Ok(())
}

/// Bytes as a literal that means the same under every character set and `sql_mode`.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        push_hex(&mut text, *byte);
    }
    text.push('\'');
    text
}

/// A list of names as literals.
pub(super) fn quoted(names: &[LockName]) -> String {
    let literals = names.iter().map(|name| bytes(name.as_str().as_bytes()));
    literals.collect::<Vec<_>>().join(",")
}

/// Two hex digits, without the cost of formatting.
pub(super) fn push_hex(text: &mut String, byte: u8) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from(DIGITS[usize::from(digit)]));
    }
}
