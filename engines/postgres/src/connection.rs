//! One connection: made to the host that can be written to, prepared, checked; and what its errors mean.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, Result, Token};
use fencelock_sql::bound::{SessionId, Tie};
use fencelock_sql::server::{Lookout, two_take_writes};
use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage, Statement};

use super::config::Config;
use super::tls;

/// What makes and understands the store's tables.
pub(super) const SCHEMA: &str = include_str!("schema.sql");
const FORMAT: &str = "1";
/// Which functions the schema has; see there.
pub(super) const REVISION: u16 = 2;
/// The oldest PostgreSQL, as `server_version_num` has it: it ends silent sessions, and notices clients that are gone.
const OLDEST: u32 = 140_000;
/// Serializes those that make the tables. Any number that others are unlikely to use.
const SETUP_KEY: i64 = 0x0066_656e_6365_6c6b;

/// Prepares a connection, and asks who is there. Nothing of the server's own limits may end a wait or a hold; but whoever
/// stops in a transaction that is no hold is in nobody's way for long. A plain scan of an index clears away the entries of
/// deleted rows that it meets; another kind would read all of a hot lock's past each time.
const PREPARE: &str = "SET default_transaction_read_only = off; ";
/// The same to look only: nothing is written over such a connection.
const PREPARE_TO_LOOK: &str = "SET default_transaction_read_only = on; ";
const PREPARE_ALL: &str = "\
    SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = '5s'; \
    SET idle_session_timeout = 0; SET default_transaction_isolation = 'read committed'; \
    SET client_connection_check_interval = '1s'; \
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
    "SELECT format, fencelock_revision(), run = ",
    run!(),
    " FROM fencelock_store, fencelock_tokens WHERE id = 1"
);
/// Once per run. In its own statement, so that nothing is drawn from a sequence before the row is locked. Where the counter is
/// above the time already, it is lifted by more than was drawn in the moment that a crash costs; but not that of new tables, which no
/// crash has seen: a counter that is far ahead of the time would go back with the next loss of the tables. One message is one
/// transaction, which ends by itself: a client that stops has nothing locked.
const LIFT_ONCE: &str = concat!(
    "SELECT 1 FROM fencelock_store WHERE id = 1 FOR UPDATE; \
     SELECT setval('fencelock_tokens', \
        CASE WHEN last_value < now THEN now WHEN run = '' THEN last_value ELSE last_value + 1000000 END) \
     FROM fencelock_tokens, (SELECT fencelock_now() AS now) AS clock, fencelock_store WHERE id = 1 AND run <> ",
    run!(),
    "; UPDATE fencelock_store SET run = ",
    run!(),
    " WHERE id = 1 AND run <> ",
    run!()
);

const LIFT: &str = "lift tokens to the time (needs UPDATE on fencelock_store and fencelock_tokens)";

/// Parameters of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The servers of a store.
pub(crate) struct Server {
    pub(crate) config: Config,
    /// The host to begin with: the one that answered last.
    favourite: AtomicUsize,
    lookout: Lookout,
    /// The connections that are open, by what names them at the server.
    open: Arc<Mutex<HashSet<String>>>,
}

/// A connection.
pub(crate) struct Session {
    pub(super) client: Client,
    pub(super) id: SessionId,
    /// No token that it draws is below this: what tokens were lifted to when it was made, and the last that it has drawn.
    pub(super) floor: Token,
    /// Whether the server is a replica in recovery.
    pub(super) recovering: bool,
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
            lookout: Lookout::default(),
            open: Arc::default(),
        }
    }

    /// A connection to the host that can be written to; to look only, to any host if there is none.
    pub(crate) async fn connect(&self, tie: &Arc<Tie>, hear: Option<Hear>) -> Result<Session> {
        if self.config.inspect_only {
            return self.connect_to_look(tie).await;
        }
        if self.config.hosts.len() == 1 {
            let mut session = self.connect_in_time(0, tie, hear).await?;
            self.lift(&mut session).await?;
            return Ok(session);
        }
        // Both at once: a host that is silent is waited for once.
        let (first, alone) = match self.lookout.is_due() {
            true => tokio::join!(self.first_of(tie, hear), self.rule_out_second()),
            false => (self.first_of(tie, hear).await, Ok(false)),
        };
        let ((mut session, at), looked) = (first?, alone?);
        if !looked && self.lookout.is_another(at) {
            self.rule_out_second().await?;
        }
        if looked || self.lookout.is_another(at) {
            self.lookout.looked(at);
        }
        self.lift(&mut session).await?;
        Ok(session)
    }

    /// How long one host may take to answer.
    fn share(&self) -> Duration {
        let settings = &self.config.settings;
        match u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX) {
            // Less than whoever opens the store waits, to say where it hangs.
            0 | 1 => settings.connect_timeout.mul_f32(0.875),
            // They share the time that there is for one, also for a later connection.
            several => settings.connect_timeout.min(settings.response_timeout) / several,
        }
    }

    /// The first host that can be written to, beginning with the one that was the last time.
    async fn first_of(&self, tie: &Arc<Tie>, hear: Option<Hear>) -> Result<(Session, usize)> {
        let hosts = self.config.hosts.len();
        let begin = self.favourite.load(Ordering::Relaxed);
        let mut why = Vec::new();
        for step in 0..hosts {
            let at = (begin + step) % hosts;
            let connected = self.connect_in_time(at, tie, hear.clone()).await;
            match connected {
                Ok(session) if !session.recovering => {
                    self.favourite.store(at, Ordering::Relaxed);
                    return Ok((session, at));
                }
                Ok(_) => why.push(self.recovering()),
                Err(error @ Error::Unavailable { .. }) => {
                    // Whoever comes next does not wait for this one first.
                    self.favourite.store((at + 1) % hosts, Ordering::Relaxed);
                    why.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        let action = "find a host that can be written to";
        Err(Error::unavailable(self, action, why.join("; ")))
    }

    async fn connect_in_time(
        &self,
        at: usize,
        tie: &Arc<Tie>,
        hear: Option<Hear>,
    ) -> Result<Session> {
        let share = self.share();
        let connected = tokio::time::timeout(share, self.connect_to(at, tie, hear)).await;
        connected.unwrap_or_else(|_| {
            let why = format!("no answer within {share:?}; is it a PostgreSQL server?");
            Err(Error::unavailable(self, "connect", why))
        })
    }

    /// All hosts at once, for as long as one may take. One that does not answer is away.
    async fn all(&self) -> Vec<(usize, Result<Session>)> {
        let connects = (0..self.config.hosts.len()).map(|at| async move {
            let tie = Tie::new(None);
            (at, self.connect_in_time(at, &tie, None).await)
        });
        join_all(connects).await
    }

    /// Refuses a second server that takes writes. True: all were looked at.
    async fn rule_out_second(&self) -> Result<bool> {
        let writable = |(at, session): (usize, Result<Session>)| {
            let session = session.ok().filter(|session| !session.recovering)?;
            Some((at, session))
        };
        let mut writable = self.all().await.into_iter().filter_map(writable);
        let Some((first, one)) = writable.next() else {
            return Ok(true);
        };
        // An advisory lock tells two names of one server from two servers: all of its connections know it.
        let key = fastrand::i64(..);
        let lock = format!("SELECT pg_try_advisory_lock({key})");
        let had = async |session: &Session| {
            let told = session.client.simple_query(&lock).await.ok()?;
            Some(columns(&told)?.first()? == "t")
        };
        if had(&one).await != Some(true) {
            return Ok(true);
        }
        for (at, session) in writable {
            if had(&session).await == Some(true) {
                let host = |at: usize| self.config.address(at);
                let way_out = "Name one of them, or make one a standby of the other";
                let (one, other) = (host(first), host(at));
                return Err(two_take_writes(&self.config.store, &one, &other, way_out));
            }
        }
        Ok(true)
    }

    async fn connect_to_look(&self, tie: &Arc<Tie>) -> Result<Session> {
        if self.config.hosts.len() == 1 {
            return self.connect_in_time(0, tie, None).await;
        }
        let (mut found, mut failed) = (None, None);
        for (at, session) in self.all().await {
            match session {
                Ok(session) if found.is_none() || !session.recovering => {
                    let is_best = !session.recovering;
                    found = Some((at, session));
                    if is_best {
                        break;
                    }
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        match (found, failed) {
            // With the tie of the caller.
            (Some((at, _)), _) => self.connect_to(at, tie, None).await,
            (None, Some(error)) => Err(error),
            (None, None) => Err(self.internal("a store without a host")),
        }
    }

    fn recovering(&self) -> Error {
        let why =
            "this host is a replica in recovery and cannot be written to; name the primary as well";
        Error::unavailable(self, "connect", why)
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
            recovering: false,
            idle: None,
            statements: HashMap::new(),
            open: Arc::clone(&self.open),
            task,
        };
        self.prepare(&mut session).await?;
        if session.recovering && self.config.hosts.len() == 1 && !self.config.inspect_only {
            return Err(self.recovering());
        }
        Ok(session)
    }

    async fn prepare(&self, session: &mut Session) -> Result<()> {
        let access = match self.config.inspect_only {
            true => PREPARE_TO_LOOK,
            false => PREPARE,
        };
        let prepare = format!("{access}{PREPARE_ALL}");
        let told = session.client.simple_query(&prepare).await;
        let told = told.map_err(|error| self.error("prepare a connection", error))?;
        let row = columns(&told).ok_or_else(|| self.internal("no answer to a SELECT"))?;
        let [pid, started, recovering] = row.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        session.recovering = recovering == "t";
        let id = format!("{pid}@{started}");
        if !self.is_at(session, pid).await? || !locked(&self.open).insert(id.clone()) {
            return Err(self.shared());
        }
        session.id = SessionId(id);
        Ok(())
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

    /// The tables and functions are there and understood, and tokens are above all that this store gave before: what was
    /// lost with an old server, or undone by an old dump, is made up for by the time.
    async fn lift(&self, session: &mut Session) -> Result<()> {
        let mut told = self.ask(session).await?;
        if told.is_none() {
            self.set_up(session).await?;
            told = self.ask(session).await?;
        }
        let told = told.ok_or_else(|| self.internal("the table fencelock_store stays empty"))?;
        let [format, _, lifted] = told.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        if format != FORMAT {
            let why = format!(
                "its tables have format {format}, and this version of fencelock knows format {FORMAT}; use a newer one"
            );
            return Err(Error::config(self, why));
        }
        if lifted != "t" {
            // Once per run: whoever is second finds it done.
            let once = session.client.simple_query(LIFT_ONCE).await;
            once.map_err(|error| self.error(LIFT, error))?;
        }
        self.lift_anew(session).await
    }

    /// The format of the tables, the revision of the functions, and whether tokens were lifted in this run of the server;
    /// `None` if something of it is missing, or older than this version.
    async fn ask(&self, session: &Session) -> Result<Option<Vec<String>>> {
        let told = match session.client.simple_query(ASK).await {
            Err(error) if is_missing(&error) => return Ok(None),
            told => told.map_err(|error| self.error("read the table fencelock_store", error))?,
        };
        let known = |told: &Vec<String>| {
            let revision = told.get(1).and_then(|text| text.parse::<u16>().ok());
            revision.is_some_and(|revision| revision >= REVISION)
        };
        Ok(columns(&told).filter(known))
    }

    /// Lifts tokens to the time, and above all that this connection has seen.
    pub(super) async fn lift_anew(&self, session: &mut Session) -> Result<()> {
        // No standby is waited for: whoever draws a token waits for it, and with that for what came before.
        let sql = format!(
            "SET LOCAL synchronous_commit = local; SELECT fencelock_lift({})",
            session.floor
        );
        let told = session.client.simple_query(&sql).await;
        let told = columns(&told.map_err(|error| self.error(LIFT, error))?);
        let last = told.as_ref().and_then(|row| row.first()?.parse().ok());
        let last = last.ok_or_else(|| self.internal("no answer to a SELECT"))?;
        session.floor = Token(last);
        Ok(())
    }

    pub(super) async fn set_up(&self, session: &Session) -> Result<()> {
        // One message is one transaction.
        let sql = format!("SELECT pg_advisory_xact_lock({SETUP_KEY}); {SCHEMA}");
        let action = "create its tables and functions, or those that this version has anew (needs CREATE on the schema, and to own them; \
                      or let somebody who may run what `fencelock schema postgres` prints)";
        session
            .client
            .batch_execute(&sql)
            .await
            .map_err(|error| self.error(action, error))
    }

    /// What an error of the driver means.
    pub(super) fn error(&self, action: &str, error: tokio_postgres::Error) -> Error {
        let Some(told) = error.as_db_error() else {
            return self.error_of_driver(action, &error);
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
            let action = format!("{action}; check user and password");
            return Error::refused(self, action, said);
        }
        if code == SqlState::INSUFFICIENT_PRIVILEGE {
            let said = format!("{said}; GRANT that right to this user");
            return Error::refused(self, action, said);
        }
        if code == SqlState::INVALID_CATALOG_NAME {
            return Error::config(self, format!("{said}; create it, or name another"));
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

    /// What it means that the server did not come to say what is wrong.
    fn error_of_driver(&self, action: &str, error: &tokio_postgres::Error) -> Error {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let told = error.to_string();
        let said = cause.map_or_else(|| told.clone(), |cause| format!("{told}: {cause}"));
        // The driver knows that there is no password before the server does.
        if said.contains("password missing") {
            let why = "the server asks for a password, and the URL has none: name a file with ?password-file=PATH or a \
                       variable with ?password-env=NAME";
            return Error::refused(self, action, why);
        }
        let strange = ["parsing response", "unexpected message"];
        if action == "connect" && strange.iter().any(|what| told.contains(what)) {
            let why = format!(
                "what answers at that port is no PostgreSQL server ({said}); check host and port"
            );
            return Error::config(self, why);
        }
        Error::unavailable(self, action, said)
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

/// Whether a table or a function is not there.
pub(super) fn is_missing(error: &tokio_postgres::Error) -> bool {
    let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION];
    error.code().is_some_and(|code| missing.contains(code))
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
