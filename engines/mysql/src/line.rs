//! A connection of a connection-bound strategy: made, prepared, and kept usable when a call on it is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result, Token};
use fencelock_sql::bound::{SessionId, Settings, Tie};
use fencelock_sql::lease::MOST_TOKENS;
use fencelock_sql::server::Trouble;
use futures_util::FutureExt;
use mysql_async::Conn;
use sha2::{Digest, Sha256};

use super::bound::WAIT;
use super::config::{Config, Strategy};
use super::connect::{Facts, connect};
use super::counter::Section;
use super::tables::{For, Tables};
use super::wire::{Answer, LIFT, LIFTED, Request, Statements, push_hex, trouble};

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    /// Others were in the way, and a retry may mend it. The transaction may be open still.
    Again(Error),
    /// The tables are not there.
    NoSchema(Error),
    /// Anything else. The connection is of use unless the error says `Unavailable`.
    Told(Error),
}

/// The servers of a store.
pub(super) struct Line {
    pub(super) config: Config,
    pub(super) tables: Tables,
}

/// A connection that is closed at once when dropped, whatever is under way on it.
struct Wire {
    conn: Option<Conn>,
    statements: Statements,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            // It says goodbye if it can do so now; a server that is busy with it is not waited for.
            let _ = conn.disconnect().now_or_never();
        }
    }
}

type Asked = (Wire, Result<Vec<Answer>, mysql_async::Error>);

pub(crate) struct Session {
    wire: Option<Wire>,
    /// A request of which the call was dropped. Its answer comes before that to the next one.
    pending: Option<Pin<Box<dyn Future<Output = Asked> + Send>>>,
    store: String,
    tie: Arc<Tie>,
    pub(super) id: SessionId,
    pub(super) facts: Facts,
    /// The user and the database as the server knows them.
    pub(super) login: String,
    database: Vec<u8>,
    /// What AUTO_INCREMENT was lifted to over it, and the last token that it has drawn from there.
    pub(super) floor: Token,
    /// When it lifted that last.
    lifted: BootInstant,
    /// What its numbers mean, if its tokens come from those.
    pub(super) section: Section,
    /// The idle timeout that was set last, in seconds, if that is known; and the one that the next request sets.
    idle: Option<u64>,
    setting: Option<u64>,
}

impl Session {
    /// A request that begins with setting the time after which the server ends this connection when it is silent, unless
    /// that is set already. To be run next.
    pub(super) fn request(&mut self, idle: Duration) -> Request {
        let seconds = idle.as_secs() + u64::from(idle.subsec_nanos() > 0);
        let mut request = Request::default();
        if self.idle != Some(seconds) {
            request.push(format!("SET SESSION wait_timeout = {}", seconds.max(1)));
            self.setting = Some(seconds);
        }
        request
    }

    /// What the server shall know something by that belongs to this store: it has one name space for all its databases,
    /// takes 64 characters, and does not tell upper from lower case.
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

    /// Runs a request. May be dropped: the next one comes after it.
    pub(super) async fn run(&mut self, request: Request) -> Result<Vec<Answer>, Failed> {
        let setting = self.setting.take();
        if setting.is_some() {
            // Dropped from here on, it may be set or not.
            self.idle = None;
        }
        if let Some(pending) = &mut self.pending {
            let (wire, answer) = pending.as_mut().await;
            (self.wire, self.pending) = (Some(wire), None);
            if let Err(error) = answer {
                return Err(self.failed(error));
            }
        }
        let Some(mut wire) = self.wire.take() else {
            return Err(self.give_up("the connection has ended"));
        };
        let asked = async move {
            let Wire { conn, statements } = &mut wire;
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
        answer.map_err(|error| self.failed(error))
    }

    fn failed(&mut self, error: mysql_async::Error) -> Failed {
        // Of a request that fails nobody knows how far it came.
        self.idle = None;
        let unavailable = |cause| Error::unavailable(&self.store, "ask the server", cause);
        match trouble(&self.store, error) {
            Trouble::Again(cause) => Failed::Again(unavailable(cause)),
            Trouble::NoSchema(cause) => {
                self.tie.cut();
                Failed::NoSchema(unavailable(cause))
            }
            Trouble::Gone(cause) | Trouble::Moved(cause) => {
                self.tie.cut();
                Failed::Told(unavailable(cause))
            }
            Trouble::Told(error) => Failed::Told(error),
            Trouble::Silent => Failed::Told(unavailable("no answer".into())),
        }
    }

    /// The connection is not to be used any more.
    pub(super) fn give_up(&mut self, why: &str) -> Failed {
        self.tie.cut();
        (self.wire, self.pending) = (None, None);
        Failed::Told(Error::unavailable(&self.store, "ask the server", why))
    }
}

impl Line {
    pub(super) fn new(config: Config) -> Self {
        Self {
            tables: Tables::new(&config.table),
            config,
        }
    }

    pub(super) fn settings(&self) -> Settings {
        let settings = self.config.settings;
        Settings {
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            max_connections: settings.connections.get(),
        }
    }

    pub(super) fn error(&self, action: impl Into<String>, failed: Failed) -> Error {
        let store = &self.config.store;
        match failed {
            Failed::Again(Error::Unavailable { cause, .. })
            | Failed::NoSchema(Error::Unavailable { cause, .. })
            | Failed::Told(Error::Unavailable { cause, .. }) => {
                Error::unavailable(store, action.into(), cause)
            }
            Failed::Again(error) | Failed::NoSchema(error) | Failed::Told(error) => error,
        }
    }

    pub(super) async fn connect(&self, tie: Arc<Tie>) -> Result<Session> {
        let (conn, facts, trace) = connect(&self.config).await?;
        let mut session = Session {
            wire: Some(Wire {
                conn: Some(conn),
                statements: Statements::new(),
            }),
            pending: None,
            store: self.config.store.clone(),
            tie,
            id: SessionId(trace),
            facts,
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
            .map_err(|failed| self.error("prepare a connection", failed))?;
        Ok(session)
    }

    async fn prepare(&self, session: &mut Session) -> Result<(), Failed> {
        // Nothing of the server's own limits may end a wait or a hold.
        let mut request = Request::of(format!(
            "SET SESSION innodb_lock_wait_timeout = {WAIT}, lock_wait_timeout = {WAIT}, {}",
            match session.facts.is_mariadb() {
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
            Some(Ok(told)) => told,
            _ => return Err(session.give_up("no answer to a SELECT")),
        };
        (session.login, session.database) = (login, database);
        if self.config.inspect_only {
            return Ok(());
        }
        match self.find_tables(session).await {
            Err(Failed::NoSchema(_)) => {
                self.make_tables(session).await?;
                self.find_tables(session).await?;
            }
            found => found?,
        }
        match self.config.strategy {
            Strategy::GetLock => self.join(session).await,
            // So that a server that is killed goes on above.
            _ => self.lift(session, "COMMIT").await,
        }
    }

    /// Whether all tables are there.
    async fn find_tables(&self, session: &mut Session) -> Result<(), Failed> {
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

    async fn make_tables(&self, session: &mut Session) -> Result<(), Failed> {
        let wire = session.wire.as_mut();
        let Some(conn) = wire.and_then(|wire| wire.conn.as_mut()) else {
            return Err(session.give_up("the connection has ended"));
        };
        let made = self.tables.make(conn, For::Connections, &self.config).await;
        made.map_err(Failed::Told)
    }

    /// Lifts tokens to the time, and above all that this connection has seen, if they are below: sixteen for each ten
    /// microseconds. The counter is lifted also if the row is taken back.
    async fn lift(&self, session: &mut Session, end: &str) -> Result<(), Failed> {
        // Those who lift to the same id may deadlock; the server has undone it for one of them.
        while let Err(failed) = self.lift_once(session, end).await {
            let Failed::Again(_) = failed else {
                return Err(failed);
            };
            session.run(Request::of("ROLLBACK")).await?;
        }
        Ok(())
    }

    async fn lift_once(&self, session: &mut Session, end: &str) -> Result<(), Failed> {
        let tokens = &self.tables.tokens;
        let lifted = Clock::Boot.now();
        let least = session.floor.get() / u64::from(MOST_TOKENS);
        let mut request = Request::of(format!("SET @fencelock_id = GREATEST({LIFTED}, {least})"));
        request.push("START TRANSACTION");
        request.push(format!(
            "INSERT IGNORE INTO {tokens} (id) VALUES (@fencelock_id)"
        ));
        request.push(format!("DELETE FROM {tokens} WHERE id = @fencelock_id"));
        request.push(end);
        let chosen = request.push("SELECT @fencelock_id");
        let answers = session.run(request).await?;
        let row = answers[chosen].rows.first();
        let id = row.and_then(|row| row.get::<u64, _>(0)).unwrap_or(0);
        let goal = Token(id.saturating_mul(u64::from(MOST_TOKENS)));
        session.floor = session.floor.max(goal);
        session.lifted = lifted;
        Ok(())
    }

    /// Before a draw: an old dump may have been restored since.
    pub(super) async fn lift_if_due(&self, session: &mut Session) -> Result<(), Failed> {
        match Clock::Boot.now().since(session.lifted) >= LIFT {
            true => self.lift(session, "ROLLBACK").await,
            false => Ok(()),
        }
    }
}
