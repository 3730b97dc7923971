//! The connections to the hosts of a store: made, prepared and checked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{ConfigPart, Error, Result, Token};
use fencelock_sql::bound::{CloseSignal, SessionId};
use fencelock_sql::server::SecondServer;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage, Statement};

use super::config::Config;
use super::error::{caller_error, is_missing, is_of_another_protocol, text_of};
use super::tls;

/// Prepares a connection. No limit of the server may end a wait or a hold. But if a client stops inside a transaction, it may
/// block others only briefly. The connection uses plain index scans, which remove the entries of deleted rows that they meet.
/// Any other kind of scan would read all past rows of a contended lock each time.
const PREPARE: &str = "SET default_transaction_read_only = off; ";
/// The setting for inspection: such a connection writes nothing.
const PREPARE_TO_LOOK: &str = "SET default_transaction_read_only = on; ";
const PREPARE_ALL: &str = "\
    SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = '5s'; \
    SET idle_session_timeout = 0; SET default_transaction_isolation = 'read committed'; \
    SET client_connection_check_interval = '1s'; \
    SET enable_bitmapscan = off; SET enable_seqscan = off; SET jit = off; \
    SELECT pg_backend_pid(), pg_is_in_recovery()";
/// Gives a connection its mark: the last word of its application name. Behind a pooler that gives each session a connection, the
/// server's process goes on for another client, and the pooler's `DISCARD ALL` removes the mark. So nobody takes the other
/// client's connection for this one, and ends it.
fn set_mark(mark: u64) -> String {
    format!(
        "SELECT set_config('application_name', concat_ws(' ', \
         nullif(nullif(left(current_setting('application_name'), 36), ''), 'fencelock'), 'fencelock-{mark:x}'), false); "
    )
}

/// The SQL condition that a connection with this application name has this mark.
macro_rules! has_mark {
    ($application_name:literal, $mark:literal) => {
        concat!(
            $application_name,
            " LIKE '%fencelock-' || to_hex(",
            $mark,
            ")"
        )
    };
}
pub(super) use has_mark;

/// A second statement, in a transaction of its own.
const CHECK: &str = "SELECT pg_backend_pid()";

/// Parameters of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The hosts of a store, and the connections to them.
pub(crate) struct Hosts {
    pub(crate) config: Config,
    /// The first host to try: the one that answered last.
    pub(super) first: AtomicUsize,
    pub(super) second_server: SecondServer,
    open: Open,
}

/// The tasks of the open connections, by the ids of the server's processes.
type Open = Arc<Mutex<HashMap<String, AbortHandle>>>;

pub(crate) struct Session {
    pub(super) client: Client,
    /// The id of the server's process, and the mark of this connection.
    pub(super) id: SessionId,
    pid: String,
    /// The time to which tokens were lifted when the connection was made, or the last token that it has drawn. Its next token
    /// is above this.
    pub(super) floor: Token,
    /// Whether the server is a replica in recovery.
    pub(super) recovering: bool,
    /// The last idle timeout that was set.
    pub(super) idle: Option<Duration>,
    statements: HashMap<&'static str, Statement>,
    open: Open,
    task: JoinHandle<()>,
}

/// Receives notifications.
pub(super) type Listener = Arc<dyn Fn(tokio_postgres::Notification) + Send + Sync>;

impl Hosts {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            first: AtomicUsize::new(0),
            second_server: SecondServer::default(),
            open: Arc::default(),
        }
    }

    /// How long one host may take to answer.
    fn share(&self) -> Duration {
        let settings = &self.config.settings;
        match u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX) {
            // Less than the timeout of opening the store, so that the error names the host.
            0 | 1 => settings.connect_timeout.mul_f32(0.875),
            // The hosts share the time of one host, even for a later connection.
            several => settings.connect_timeout.min(settings.response_timeout) / several,
        }
    }

    pub(super) async fn connect_in_time(
        &self,
        host: usize,
        signal: &Arc<CloseSignal>,
        listener: Option<Listener>,
    ) -> Result<Session> {
        let share = self.share();
        let connected = tokio::time::timeout(share, self.connect_to(host, signal, listener)).await;
        connected.unwrap_or_else(|_| {
            let why = format!("no answer within {share:?}; is it a PostgreSQL server?");
            Err(Error::unavailable(self, self.connecting(host), why))
        })
    }

    fn connecting(&self, host: usize) -> String {
        format!("connecting to {}", self.config.address(host))
    }

    pub(super) fn recovering(&self, host: usize) -> Error {
        let why =
            "this host is a replica in recovery and cannot be written to; name the primary as well";
        Error::unavailable(self, self.connecting(host), why)
    }

    pub(super) async fn connect_to(
        &self,
        host: usize,
        signal: &Arc<CloseSignal>,
        listener: Option<Listener>,
    ) -> Result<Session> {
        let config = &self.config;
        let own = config.connector.clone();
        let connector = own.unwrap_or_else(|| tls::connector(&config.tls, &config.hosts[host]));
        let connected = config.options[host].connect(connector).await;
        let (client, mut connection) =
            connected.map_err(|error| self.not_connected(host, error))?;
        let signal = Arc::clone(signal);
        let task = tokio::spawn(async move {
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if let Some(listener) = &listener {
                            listener(notification);
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => break,
                }
            }
            signal.close();
        });
        let mut session = Session {
            client,
            id: SessionId(String::new()),
            pid: String::new(),
            floor: Token(0),
            recovering: false,
            idle: None,
            statements: HashMap::new(),
            open: Arc::clone(&self.open),
            task,
        };
        self.prepare(&mut session).await?;
        if session.recovering && self.config.hosts.len() == 1 && !self.config.inspect_only {
            return Err(self.recovering(host));
        }
        Ok(session)
    }

    /// What a failure to connect means.
    fn not_connected(&self, host: usize, error: tokio_postgres::Error) -> Error {
        let config = &self.config;
        if is_of_another_protocol(&error) {
            let (address, said) = (config.address(host), text_of(&error));
            let why = format!(
                "the server at {address} is not a PostgreSQL server ({said}); check host and port"
            );
            return Error::config(self, ConfigPart::Server, why);
        }
        let (of_host, action) = (&config.hosts[host], self.connecting(host));
        tls::refused(&config.store, &config.tls, of_host, &action, error)
    }

    async fn prepare(&self, session: &mut Session) -> Result<()> {
        let access = match self.config.inspect_only {
            true => PREPARE_TO_LOOK,
            false => PREPARE,
        };
        // Not the largest numbers: the tables have signed ones.
        let mark = fastrand::u64(..) >> 1;
        let prepare = format!("{access}{}{PREPARE_ALL}", set_mark(mark));
        let answer = session.client.simple_query(&prepare).await;
        let answer = answer.map_err(|error| self.error("preparing a connection", error))?;
        let row = columns(&answer).ok_or_else(|| self.internal("no answer to a SELECT"))?;
        let [pid, recovering] = row.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        session.recovering = recovering == "t";
        if !self.is_at(session, pid).await? || !session.is_alone_at(pid) {
            return Err(self.pooled());
        }
        session.id = SessionId(format!("{pid}@{mark}"));
        Ok(())
    }

    /// Whether the next transaction of a connection runs in this process of the server.
    pub(super) async fn is_at(&self, session: &Session, pid: &str) -> Result<bool> {
        let answer = session.client.simple_query(CHECK).await;
        let answer = answer.map_err(|error| self.error("preparing a connection", error))?;
        let answer = columns(&answer).ok_or_else(|| self.internal("no answer to a SELECT"))?;
        Ok(answer.first().is_some_and(|answer| answer == pid))
    }

    pub(super) fn pooled(&self) -> Error {
        Error::config(
            self,
            ConfigPart::Server,
            "a pooler between this client and PostgreSQL shares connections between transactions (PgBouncer with \
             pool_mode = transaction or statement). Locks and notifications belong to a connection: connect to \
             PostgreSQL itself, or to a pool with pool_mode = session",
        )
    }

    /// The rows of an inspection. An inspecting client creates no tables, and sees nothing where there are none.
    pub(super) async fn inspected(
        &self,
        session: &mut Session,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>> {
        match session.try_query(sql, values).await {
            Err(error) if self.config.inspect_only && is_missing(&error) => Ok(Vec::new()),
            rows => rows.map_err(|error| self.error(action, error)),
        }
    }

    pub(super) fn error(&self, action: &str, error: tokio_postgres::Error) -> Error {
        caller_error(&self.config.store, action, error)
    }

    pub(super) fn internal(&self, why: impl Into<String>) -> Error {
        Error::internal(self, why.into())
    }
}

impl Session {
    /// Whether no other open connection of this client has the server's process with this id. One that is closed may have had it.
    fn is_alone_at(&mut self, pid: &str) -> bool {
        let mut open = self.open.lock();
        let other = open.insert(pid.to_owned(), self.task.abort_handle());
        pid.clone_into(&mut self.pid);
        other.is_none_or(|other| other.is_finished())
    }

    /// Runs a statement, which is prepared the first time.
    pub(super) async fn query(
        &mut self,
        hosts: &Hosts,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>> {
        let rows = self.try_query(sql, values).await;
        rows.map_err(|error| hosts.error(action, error))
    }

    pub(super) async fn try_query(
        &mut self,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.statement(sql).await?;
        self.client.query(&statement, values).await
    }

    pub(super) async fn statement(
        &mut self,
        sql: &'static str,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Ends the connection at once, whatever is under way on it.
        self.task.abort();
        let mut open = self.open.lock();
        if open
            .get(&self.pid)
            .is_some_and(|task| task.id() == self.task.id())
        {
            open.remove(&self.pid);
        }
    }
}

/// The columns of the last row of an answer, as text; NULL is empty.
pub(super) fn columns(answer: &[SimpleQueryMessage]) -> Option<Vec<String>> {
    let row = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })?;
    Some(
        (0..row.len())
            .map(|at| row.get(at).unwrap_or_default().to_owned())
            .collect(),
    )
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.config.store)
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hosts({self})")
    }
}
