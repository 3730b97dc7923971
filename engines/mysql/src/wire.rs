//! Requests of several statements, their answers, and what the server's errors mean.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Error;
use fencelock_sql::server::Trouble;
use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{Conn, DriverError, IoError, Params, QueryResult, Row, Statement, Value};

use super::config::WAIT_TIMEOUT;

/// Several statements that go to the server in one request, which stops at the first that fails; or a prepared one.
#[derive(Debug, Default)]
pub(super) struct Request {
    text: String,
    count: usize,
    prepared: Option<(Arc<str>, Vec<Value>)>,
}

/// What a connection has prepared, by its text.
pub(super) type Statements = HashMap<Arc<str>, Statement>;

/// What one statement came to.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) affected: u64,
    pub(super) last_id: Option<u64>,
    pub(super) rows: Vec<Row>,
}

/// The database's time in microseconds, as a statement's beginning has it.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How long the server keeps a connection that is silent in the middle of a transaction, in seconds: a client that was stopped
/// after an error, before it could undo what it had begun, has rows locked for no longer.
pub(super) const IN_TRANSACTION: u64 = 5;

/// How long a connection draws without lifting the counter to the time. A dump is not taken and restored in less.
pub(super) const LIFT: Duration = Duration::from_millis(100);
/// What ids are lifted to: the time in steps of 1024 ids, the next one. So those of for-update who lift at once lift to the same
/// id, and none meets an id that somebody has drawn in a transaction that stays open.
pub(super) const LIFTED: &str =
    "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 10240 + 1) * 1024";

impl Request {
    /// One that begins a transaction, which [`Request::commit`] ends.
    pub(super) fn transaction() -> Self {
        let mut request = Self::of(format!("SET SESSION wait_timeout = {IN_TRANSACTION}"));
        request.push("START TRANSACTION");
        request
    }

    /// Ends what [`Request::transaction`] began.
    pub(super) fn commit(&mut self) {
        self.end("COMMIT");
    }

    /// What undoes a transaction that a request left open.
    pub(super) fn rollback() -> Self {
        let mut request = Self::default();
        request.end("ROLLBACK");
        request
    }

    /// Ends a transaction with this word.
    pub(super) fn end(&mut self, word: &str) {
        self.push(word);
        self.push(format!("SET SESSION wait_timeout = {WAIT_TIMEOUT}"));
    }

    /// One that begins with this statement.
    pub(super) fn of(statement: impl AsRef<str>) -> Self {
        let mut request = Self::default();
        request.push(statement);
        request
    }

    /// One statement with question marks, which the connection prepares the first time: the server need not read it again.
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

    /// Adds a statement; its answer's place among the answers.
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

    /// The same on a connection that has prepared these.
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
            // Goes on to the next answer, whose error it tells.
            let rows = result.collect().await?;
            answers.push(Answer {
                affected,
                last_id,
                rows,
            });
        }
        // A compound statement has another answer for its end.
        result.drop_result().await?;
        Ok(answers)
    }
}

/// Prepares a statement if the connection has not done so.
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

/// Two hex digits, without the cost of formatting.
pub(super) fn push_hex(text: &mut String, byte: u8) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from(DIGITS[usize::from(digit)]));
    }
}

/// Lock wait timeout, deadlock, record changed since it was read; a commit that lost against another server's, in a Galera
/// cluster or a replication group; a statement that took too long; the counter of a table that was waited for too long; a
/// table that was changed while it was in use.
pub(super) const fn is_in_the_way(code: u16) -> bool {
    matches!(
        code,
        1205 | 1213 | 1020 | 1180 | 3101 | 1969 | 1467 | 1412 | 1615
    )
}

/// What a failed request means. `action` is what was asked.
pub(super) fn trouble(store: &str, error: mysql_async::Error) -> Trouble {
    let code = match &error {
        mysql_async::Error::Server(server) => server.code,
        mysql_async::Error::Io(_)
        | mysql_async::Error::Driver(
            DriverError::ConnectionClosed | DriverError::PacketOutOfOrder,
        ) => return Trouble::Gone(error.into()),
        _ => {
            let (store, why) = (store.to_owned(), error.to_string());
            return Trouble::Told(Error::Internal { store, why });
        }
    };
    match code {
        code if is_in_the_way(code) => Trouble::Again(error.into()),
        // Shutdown, aborted, interrupted, killed, closed for idling; not ready for queries: Galera, a replication group, a
        // server that is offline.
        1053 | 1152 | 1184 | 1317 | 1927 | 3024 | 4031 | 1047 | 3100 | 3032 => {
            Trouble::Gone(error.into())
        }
        // read_only, super_read_only, innodb_read_only, a read-only transaction.
        1290 | 1792 | 1836 | 1874 => Trouble::Moved(error.into()),
        // No such table; no row to draw by (the value that it gives was NULL).
        1146 | 1048 => Trouble::NoSchema(error.into()),
        _ => Trouble::Told(told(store, "run a statement", error)),
    }
}

/// An error for the caller, of connecting or of a statement.
pub(super) fn told(store: &str, action: &str, error: mysql_async::Error) -> Error {
    let mysql_async::Error::Server(server) = &error else {
        return match error {
            mysql_async::Error::Io(IoError::Io(io)) => Error::unavailable(store, action, io),
            other => Error::unavailable(store, action, other),
        };
    };
    let message = &server.message;
    match server.code {
        1045 | 1698 | 1251 | 1275 | 2061 => {
            Error::refused(store, format!("{action}; check user and password"), error)
        }
        1095 => Error::refused(
            store,
            format!("{action}; the connection is another user's"),
            error,
        ),
        1044 | 1142 | 1143 | 1227 | 1370 | 1410 => Error::refused(
            store,
            format!(
                "{action}; the user needs SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE the first time \
                 unless an administrator has made them"
            ),
            error,
        ),
        1049 => Error::config(store, format!("{message}; create it, or name another")),
        1665 => Error::config(
            store,
            "binlog_format is STATEMENT, with which the server takes no writes at READ COMMITTED; set it to ROW or MIXED",
        ),
        // Too many connections, of all or of this user; a limit per hour; too many prepared statements.
        1040 | 1203 | 1226 | 1461 => Error::unavailable(store, action, error),
        code => Error::Internal {
            store: store.to_owned(),
            why: format!("{action}: error {code}: {message}"),
        },
    }
}
