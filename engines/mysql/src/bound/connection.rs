//! A connection of a connection-bound strategy: made, prepared, and kept usable when a call on it is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result, Token};
use fencelock_sql::bound::{CloseSignal, SessionId};
use fencelock_sql::server::Failure;
use futures_util::FutureExt;
use mysql_async::Conn;
use sha2::{Digest, Sha256};

use super::get_lock_sql::{ACQUIRE, TAKES_WRITES};
use super::section::Section;
use crate::config::Config;
use crate::connection::{Connected, connect};
use crate::error::{failure, is_missing};
use crate::options::Strategy;
use crate::request::{Answer, Request, Statements, push_hex};
use crate::server::ServerInfo;
use crate::tables::{Tables, Use};

/// How long one statement waits in the server, in seconds. The server forgets a waiter that vanished silently after that.
pub(super) const WAIT_SECONDS: u64 = 30;

/// A server with one of the two strategies.
pub(crate) struct BoundLocks {
    pub(super) config: Config,
    pub(super) tables: Tables,
    pub(super) get_lock: bool,
    /// Acquires a free lock of the server's own; see [`get_lock`](super::get_lock). It draws no token if another section counts
    /// the tokens.
    pub(super) acquire_statement: Arc<str>,
    /// Whether this section still counts the tokens. It does not if an old dump was restored since.
    pub(super) section_condition: String,
}

/// A connection. A drop closes it at once, even during a request.
struct OwnConn {
    conn: Option<Conn>,
    statements: Statements,
}

impl Drop for OwnConn {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            // It ends the connection properly if that is possible at once, and does not wait for a busy server.
            let _ = conn.disconnect().now_or_never();
        }
    }
}

type Answers = Result<Vec<Answer>, mysql_async::Error>;
type Asked = (OwnConn, Answers);
pub(crate) struct Session {
    wire: Option<OwnConn>,
    /// A request whose call was dropped. Its answer must be read before that of the next one.
    pending: Option<Pin<Box<dyn Future<Output = Asked> + Send>>>,
    store: String,
    signal: Arc<CloseSignal>,
    pub(super) id: SessionId,
    pub(super) info: ServerInfo,
    /// The user and the database as the server knows them.
    pub(super) login: String,
    database: Vec<u8>,
    /// The value to which it lifted AUTO_INCREMENT, or the last token that it has drawn from there.
    pub(super) floor: Token,
    /// When it last lifted AUTO_INCREMENT.
    pub(super) lifted: BootInstant,
    /// What the numbers of `get-lock` mean.
    pub(super) section: Section,
    /// The last idle timeout that was set, in seconds, if known; and the one that the next request sets.
    idle: Option<u64>,
    setting: Option<u64>,
}

impl Session {
    /// A request that begins by setting the connection's idle timeout, unless it is set already. It must be the next one
    /// to run.
    pub(super) fn request(&mut self, idle: Duration) -> Request {
        let seconds = idle.as_secs() + u64::from(idle.subsec_nanos() > 0);
        let mut request = Request::default();
        if self.idle != Some(seconds) {
            request.push(format!("SET SESSION wait_timeout = {}", seconds.max(1)));
            self.setting = Some(seconds);
        }
        request
    }

    /// A name for a lock of the server's own: the server has one name space for all its databases, takes 64 characters, and
    /// ignores case.
    pub(super) fn key(&self, table: &str, kind: &str, name: &[u8]) -> String {
        let mut hash = Sha256::new();
        for part in [&self.database, table.as_bytes()] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update(name);
        let mut key = format!("fencelock-{kind}");
        for byte in &hash.finalize()[..24] {
            push_hex(&mut key, *byte);
        }
        key
    }

    /// Runs a request. The call may be dropped: the next request comes after this one.
    pub(super) async fn run(&mut self, request: Request) -> Result<Vec<Answer>, Failure> {
        let answer = self.ask(request).await?;
        answer.map_err(|error| self.after_failure(error))
    }

    /// The same where a table may be missing that nothing depends on: `None` then.
    pub(super) async fn run_if_there(
        &mut self,
        request: Request,
    ) -> Result<Option<Vec<Answer>>, Failure> {
        match self.ask(request).await? {
            Err(error) if is_missing(&error) => Ok(None),
            answer => answer.map(Some).map_err(|error| self.after_failure(error)),
        }
    }

    async fn ask(&mut self, request: Request) -> Result<Answers, Failure> {
        let setting = self.setting.take();
        if setting.is_some() {
            // If the call is dropped after this, the timeout may be set or not.
            self.idle = None;
        }
        if let Some(pending) = &mut self.pending {
            let (wire, answer) = pending.as_mut().await;
            (self.wire, self.pending) = (Some(wire), None);
            if let Err(error) = answer {
                return Err(self.after_failure(error));
            }
        }
        let Some(mut wire) = self.wire.take() else {
            return Err(self.give_up("the connection has ended"));
        };
        let asked = async move {
            let OwnConn { conn, statements } = &mut wire;
            let answer = match conn {
                Some(conn) => request.run_with(conn, statements).await,
                None => Ok(Vec::new()),
            };
            (wire, answer)
        };
        let (wire, answer) = self.pending.insert(Box::pin(asked)).as_mut().await;
        (self.wire, self.pending) = (Some(wire), None);
        if setting.is_some() && answer.is_ok() {
            self.idle = setting;
        }
        Ok(answer)
    }

    fn after_failure(&mut self, error: mysql_async::Error) -> Failure {
        // It is unknown how far a failed request came.
        self.idle = None;
        let failed = failure(&self.store, error);
        if !matches!(failed, Failure::Conflict(_) | Failure::Final(_)) {
            self.signal.close();
        }
        failed
    }

    /// Closes the connection. Returns the error.
    pub(super) fn give_up(&mut self, why: &str) -> Failure {
        self.signal.close();
        (self.wire, self.pending) = (None, None);
        Failure::Disconnected(why.into())
    }
}

impl BoundLocks {
    pub(crate) fn new(config: Config) -> Self {
        let tables = Tables::new(&config.table);
        let counter = &tables.counter;
        let section_condition =
            format!("EXISTS (SELECT 1 FROM {counter} WHERE id = 1 AND origin = ? AND base = ?)");
        let draws = format!("{TAKES_WRITES} AND {section_condition}");
        Self {
            acquire_statement: ACQUIRE.replacen(TAKES_WRITES, &draws, 1).into(),
            section_condition,
            get_lock: config.strategy == Strategy::GetLock,
            tables,
            config,
        }
    }

    pub(super) const fn strategy(&self) -> &'static str {
        match self.get_lock {
            true => "get-lock",
            false => "for-update",
        }
    }

    pub(super) fn error(&self, action: impl Into<String>, failed: Failure) -> Error {
        let cause = match failed {
            Failure::Conflict(cause)
            | Failure::NoTables(cause)
            | Failure::Disconnected(cause)
            | Failure::ReadOnly(cause)
            | Failure::Final(Error::Unavailable { cause, .. }) => cause,
            Failure::NoAnswer => "no answer".into(),
            Failure::Final(error) => return error,
        };
        Error::unavailable(&self.config.store, action, cause)
    }

    pub(super) async fn open_session(&self, signal: Arc<CloseSignal>) -> Result<Session> {
        let Connected { conn, info, id } = connect(&self.config).await?;
        let mut session = Session {
            wire: Some(OwnConn {
                conn: Some(conn),
                statements: Statements::new(),
            }),
            pending: None,
            store: self.config.store.clone(),
            signal,
            id: SessionId(id),
            info,
            login: String::new(),
            database: Vec::new(),
            floor: Token(0),
            lifted: Clock::Boot.now(),
            section: Section::default(),
            idle: None,
            setting: None,
        };
        self.prepare(&mut session)
            .await
            .map_err(|failed| self.error("preparing a connection", failed))?;
        Ok(session)
    }

    async fn prepare(&self, session: &mut Session) -> Result<(), Failure> {
        // No limit of the server may end a wait or a hold.
        let mut request = Request::of(format!(
            "SET SESSION innodb_lock_wait_timeout = {WAIT_SECONDS}, lock_wait_timeout = {WAIT_SECONDS}, {}",
            match session.info.is_mariadb() {
                true => {
                    "max_statement_time = 0, idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, \
                     idle_readonly_transaction_timeout = 0"
                }
                false => "max_execution_time = 0",
            }
        ));
        let who =
            request.push("SELECT SUBSTRING_INDEX(USER(), '@', 1), CAST(DATABASE() AS BINARY)");
        let answers = session.run(request).await?;
        let mut row = answers[who].rows.iter().cloned();
        let row = row
            .next()
            .map(mysql_async::from_row_opt::<(String, Vec<u8>)>);
        let (login, database) = match row {
            Some(Ok(row)) => row,
            _ => return Err(session.give_up("no answer to a SELECT")),
        };
        (session.login, session.database) = (login, database);
        if self.config.inspect_only {
            return Ok(());
        }
        match self.check_tables(session).await {
            Err(Failure::NoTables(_)) => {
                self.create_tables(session, Use::Connections).await?;
                self.check_tables(session).await?;
            }
            found => found?,
        }
        match self.config.strategy {
            Strategy::GetLock => self.join(session).await,
            // Committed, so that tokens keep increasing after the server was killed.
            _ => self.lift_tokens_to(session, "COMMIT").await,
        }
    }

    /// Checks that all tables exist.
    async fn check_tables(&self, session: &mut Session) -> Result<(), Failure> {
        let Tables {
            names,
            bound,
            tokens,
            counter,
            ..
        } = &self.tables;
        let mut request = Request::default();
        for table in [names, bound, tokens, counter] {
            request.push(format!("SELECT 1 FROM {table} LIMIT 0"));
        }
        session.run(request).await.map(drop)
    }

    pub(super) async fn create_tables(
        &self,
        session: &mut Session,
        what: Use,
    ) -> Result<(), Failure> {
        let wire = session.wire.as_mut();
        let Some(conn) = wire.and_then(|wire| wire.conn.as_mut()) else {
            return Err(session.give_up("the connection has ended"));
        };
        let created = self.tables.create(conn, what, &self.config).await;
        created.map_err(Failure::Final)
    }
}
