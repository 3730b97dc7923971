//! One connection: made to the host that can be written to, prepared, checked; and what its errors mean.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, Result, Token};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage, Statement};

use super::config::Config;
use super::tls;
use crate::bound::{SessionId, Tie};

/// What makes and understands the store's tables.
pub(super) const SCHEMA: &str = include_str!("schema.sql");
const FORMAT: &str = "1";
/// The oldest PostgreSQL, as `server_version_num` has it: it ends silent sessions, and notices clients that are gone.
const OLDEST: u32 = 140_000;
/// Serializes those that make the tables. Any number that others are unlikely to use.
const SETUP_KEY: i64 = 0x0066_656e_6365_6c6b;

/// Prepares a connection, and asks who is there. Nothing of the server's own limits may end a wait or a hold; but whoever
/// stops in a transaction that is no hold is in nobody's way for long. A plain scan of an index clears away the entries of
/// deleted rows that it meets; another kind would read all of a hot lock's past each time.
const PREPARE: &str = "\
    SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = '5s'; \
    SET idle_session_timeout = 0; SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_read_only = off; SET client_connection_check_interval = '1s'; \
    SET enable_bitmapscan = off; SET enable_seqscan = off; SET jit = off; \
    SELECT pg_backend_pid(), \
        (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid()), \
        pg_is_in_recovery()";
/// The second statement, of a transaction of its own.
const CHECK: &str = "SELECT pg_backend_pid()";
/// The run of the server: its timeline, its start, and when it began to count anew, as it does when one of its processes was
/// killed and it goes on without what had not reached the disk.
macro_rules! run {
    () => {
        "concat_ws('/', substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), \
         (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
         (SELECT (extract(epoch FROM stats_reset) * 1000000)::bigint FROM pg_stat_archiver))"
    };
}
const ASK: &str = concat!(
    "SELECT format, last_value, run = ",
    run!(),
    " FROM fencelock_store, fencelock_tokens WHERE id = 1"
);
/// In its own statement, so that nothing is drawn from a sequence before the row is locked. Not above the time, so that the time
/// suffices when the sequence is lost; where it is above already, by more than was drawn in the moment that a crash costs.
macro_rules! lift {
    ($rest:literal) => {
        concat!(
            "SELECT setval('fencelock_tokens', CASE WHEN last_value < now THEN now ELSE last_value + 1000000 END) \
             FROM fencelock_tokens, (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock",
            $rest
        )
    };
}
// One message is one transaction, which ends by itself: a client that stops has nothing locked.
const LIFT_ONCE: &str = concat!(
    "SELECT 1 FROM fencelock_store WHERE id = 1 FOR UPDATE; ",
    lift!(", fencelock_store WHERE id = 1 AND run <> "),
    run!(),
    "; UPDATE fencelock_store SET run = ",
    run!(),
    " WHERE id = 1 AND run <> ",
    run!(),
    "; SELECT last_value FROM fencelock_tokens"
);
const LIFT_ANEW: &str = concat!(
    "SELECT 1 FROM fencelock_store WHERE id = 1 FOR UPDATE; ",
    lift!(""),
    "; SELECT last_value FROM fencelock_tokens"
);

/// Parameters of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The servers of a store.
pub(crate) struct Server {
    pub(crate) config: Config,
    /// The host to begin with: the one that answered last.
    favourite: AtomicUsize,
    /// The connections that are open, by what names them at the server.
    open: Arc<Mutex<HashSet<String>>>,
}

/// A connection.
pub(crate) struct Session {
    pub(super) client: Client,
    pub(super) id: SessionId,
    /// Tokens were not below this when it was made.
    pub(super) floor: Token,
    /// The idle timeout that was set last.
    pub(super) idle: Option<Duration>,
    statements: HashMap<&'static str, Statement>,
    open: Arc<Mutex<HashSet<String>>>,
    task: JoinHandle<()>,
}

/// What the server says of its own accord.
pub(super) type Hear = Arc<dyn Fn(tokio_postgres::Notification) + Send + Sync>;

fn locked(open: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            favourite: AtomicUsize::new(0),
            open: Arc::default(),
        }
    }

    /// A connection to the host that can be written to.
    pub(crate) async fn connect(&self, tie: &Arc<Tie>, hear: Option<Hear>) -> Result<Session> {
        let hosts = &self.config.hosts;
        let begin = self.favourite.load(Ordering::Relaxed);
        let mut why = Vec::new();
        let settings = &self.config.settings;
        let share = match u32::try_from(hosts.len()).unwrap_or(u32::MAX) {
            0 | 1 => settings.connect_timeout,
            // They share the time that there is for one, also for a later connection.
            several => settings.connect_timeout.min(settings.response_timeout) / several,
        };
        for step in 0..hosts.len() {
            let at = (begin + step) % hosts.len();
            let connect = self.connect_to(at, tie, hear.clone());
            let connected = tokio::time::timeout(share, connect).await;
            let connected = connected.unwrap_or_else(|_| {
                // Whoever comes next does not wait for this one first.
                self.favourite
                    .store((at + 1) % hosts.len(), Ordering::Relaxed);
                let why = format!("no answer within {share:?}");
                Err(Error::unavailable(self, "connect", why))
            });
            match connected {
                Ok(session) => {
                    self.favourite.store(at, Ordering::Relaxed);
                    return Ok(session);
                }
                Err(error @ Error::Unavailable { .. }) if hosts.len() > 1 => why.push(error),
                Err(error) => return Err(error),
            }
        }
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        let action = "find a host that can be written to";
        Err(Error::unavailable(self, action, why.join("; ")))
    }

    async fn connect_to(&self, at: usize, tie: &Arc<Tie>, hear: Option<Hear>) -> Result<Session> {
        let (config, host) = (&self.config.hosts[at], &self.config.names[at]);
        let connected = config.connect(tls::connector(&self.config.tls, host)).await;
        let (client, mut connection) =
            connected.map_err(|error| tls::refused(self, host, error))?;
        let cut = Arc::clone(tie);
        let task = tokio::spawn(async move {
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(told))) => {
                        if let Some(hear) = &hear {
                            hear(told);
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => break,
                }
            }
            cut.cut();
        });
        let mut session = Session {
            client,
            id: SessionId(String::new()),
            floor: Token(0),
            idle: None,
            statements: HashMap::new(),
            open: Arc::clone(&self.open),
            task,
        };
        self.prepare(&mut session).await?;
        Ok(session)
    }

    async fn prepare(&self, session: &mut Session) -> Result<()> {
        let told = session.client.simple_query(PREPARE).await;
        let told = told.map_err(|error| self.error("prepare a connection", error))?;
        let row = columns(&told).ok_or_else(|| self.internal("no answer to a SELECT"))?;
        let [pid, started, recovering] = row.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        if recovering == "t" {
            let why = "this host is a replica in recovery and cannot be written to; name the primary as well";
            return Err(Error::unavailable(self, "connect", why));
        }
        let id = format!("{pid}@{started}");
        if !self.is_at(session, pid).await? || !locked(&self.open).insert(id.clone()) {
            return Err(self.shared());
        }
        session.id = SessionId(id);
        self.lift(session).await
    }

    /// Refuses a pooler that shares connections. With another client there, and nobody in a transaction, it gives one of
    /// its connections after the other to whoever asks next, or the one that was given back last.
    pub(super) async fn rule_out_pooler(&self, session: &Session) -> Result<()> {
        let _other = self.connect(&Tie::new(None), None).await?;
        let pid = session.id.0.split('@').next().unwrap_or_default();
        for _ in 0..2 {
            if !self.is_at(session, pid).await? {
                return Err(self.shared());
            }
        }
        Ok(())
    }

    /// Whether the next transaction of a connection comes to this process of the server.
    async fn is_at(&self, session: &Session, pid: &str) -> Result<bool> {
        let told = session.client.simple_query(CHECK).await;
        let told = told.map_err(|error| self.error("prepare a connection", error))?;
        let told = columns(&told).ok_or_else(|| self.internal("no answer to a SELECT"))?;
        Ok(told.first().is_some_and(|told| told == pid))
    }

    fn shared(&self) -> Error {
        Error::config(
            self,
            "between here and PostgreSQL stands a pooler that shares connections between transactions (PgBouncer with \
             pool_mode = transaction or statement). Locks and notifications belong to a connection: connect to \
             PostgreSQL itself, or to a pool with pool_mode = session",
        )
    }

    /// The tables are there and understood, and tokens are above all that this store gave before: what was lost with an
    /// old server is made up for by the time.
    async fn lift(&self, session: &mut Session) -> Result<()> {
        let action = "read the table fencelock_store";
        let told = match session.client.simple_query(ASK).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
            told => columns(&told.map_err(|error| self.error(action, error))?),
        };
        let told = match told {
            Some(told) => told,
            None => {
                self.set_up(session).await?;
                let told = session.client.simple_query(ASK).await;
                let told = told.map_err(|error| self.error(action, error))?;
                columns(&told)
                    .ok_or_else(|| self.internal("the table fencelock_store stays empty"))?
            }
        };
        let [format, last, lifted] = told.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        if format != FORMAT {
            let why = format!(
                "its tables have format {format}, and this version of fencelock knows format {FORMAT}; use a newer one"
            );
            return Err(Error::config(self, why));
        }
        session.floor = Token(last.parse().unwrap_or(0));
        if lifted == "t" {
            return Ok(());
        }
        // Once per run: whoever is second finds it done.
        self.lift_to_time(session, LIFT_ONCE).await
    }

    /// Lifts tokens to the time although this run has seen that done: what was drawn shows that they were lost.
    pub(super) async fn lift_anew(&self, session: &mut Session) -> Result<()> {
        self.lift_to_time(session, LIFT_ANEW).await
    }

    async fn lift_to_time(&self, session: &mut Session, sql: &str) -> Result<()> {
        let action =
            "lift tokens to the time (needs UPDATE on fencelock_store and fencelock_tokens)";
        let told = session.client.simple_query(sql).await;
        let told = columns(&told.map_err(|error| self.error(action, error))?);
        let last = told.as_ref().and_then(|row| row.first()?.parse().ok());
        let last = last.ok_or_else(|| self.internal("no answer to a SELECT"))?;
        session.floor = Token(last);
        Ok(())
    }

    pub(super) async fn set_up(&self, session: &Session) -> Result<()> {
        // One message is one transaction.
        let sql = format!("SELECT pg_advisory_xact_lock({SETUP_KEY}); {SCHEMA}");
        let action = "create its tables (needs CREATE on the schema; or let somebody who may run what `fencelock schema postgres` prints)";
        session
            .client
            .batch_execute(&sql)
            .await
            .map_err(|error| self.error(action, error))
    }

    /// What an error of the driver means.
    pub(super) fn error(&self, action: &str, error: tokio_postgres::Error) -> Error {
        let Some(told) = error.as_db_error() else {
            let told = error.to_string();
            // Of a wrong password the driver knows before the server does if there is none.
            return match std::error::Error::source(&error) {
                Some(cause) => Error::unavailable(self, action, format!("{told}: {cause}")),
                None => Error::unavailable(self, action, told),
            };
        };
        let code = told.code().clone();
        let said = match told.hint() {
            Some(hint) => format!("{} ({hint})", told.message()),
            None => told.message().to_owned(),
        };
        if [
            SqlState::INVALID_PASSWORD,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        ]
        .contains(&code)
        {
            return Error::refused(self, action, said);
        }
        if code == SqlState::INSUFFICIENT_PRIVILEGE {
            let said = format!("{said}; GRANT that right to this user");
            return Error::refused(self, action, said);
        }
        if code == SqlState::INVALID_CATALOG_NAME {
            return Error::config(self, said);
        }
        if code == SqlState::UNDEFINED_OBJECT {
            let oldest = OLDEST / 10_000;
            return Error::config(
                self,
                format!("{said}; this engine needs PostgreSQL {oldest} or later"),
            );
        }
        if said.contains("unsupported startup parameter") {
            return Error::config(
                self,
                format!("{said}: a pooler such as PgBouncer answers; connect to PostgreSQL itself"),
            );
        }
        Error::unavailable(self, action, Said { code, said })
    }

    pub(super) fn internal(&self, why: impl Into<String>) -> Error {
        Error::Internal {
            store: self.to_string(),
            why: why.into(),
        }
    }
}

/// An error of the server, in a form that keeps its code.
#[derive(Debug)]
struct Said {
    code: SqlState,
    said: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Said {}

/// Whether the server ended a transaction only because others were in its way.
pub(super) fn is_in_the_way(error: &Error) -> bool {
    let Error::Unavailable { cause, .. } = error else {
        return false;
    };
    let mended = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    cause
        .downcast_ref::<Said>()
        .is_some_and(|said| mended.contains(&said.code))
}

impl Session {
    /// Runs a statement, prepared the first time.
    pub(super) async fn query(
        &mut self,
        server: &Server,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>> {
        let statement = self
            .statement(sql)
            .await
            .map_err(|error| server.error(action, error))?;
        let rows = self.client.query(&statement, values).await;
        rows.map_err(|error| server.error(action, error))
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
        locked(&self.open).remove(&self.id.0);
    }
}

/// The columns of the last row of an answer, as text; NULL is empty.
fn columns(told: &[SimpleQueryMessage]) -> Option<Vec<String>> {
    let row = told.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })?;
    Some(
        (0..row.len())
            .map(|at| row.get(at).unwrap_or_default().to_owned())
            .collect(),
    )
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.config.store)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}
