//! A connection of the lease engine: checked, and with its tokens lifted to the time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, LockName, Result, Token};
use fencelock_sql::server::Failure;
use mysql_async::{Conn, Row, from_row_opt};

use super::statements::{enqueue_statement, hand_over_statement, lift, release_statement};
use super::stored::{GATE_COLUMNS, id, token};
use super::wake::Ears;
use crate::config::Config;
use crate::connection::{Connected, connect};
use crate::error::failure;
use crate::request::{Answer, LIFT_EVERY, NOW, Request, Statements, bytes, prepare};
use crate::server::ServerInfo;
use crate::tables::{Tables, Use};

pub(super) type Tried<T> = Result<T, Failure>;

/// A MySQL or MariaDB server with the tables of the lease engine.
pub(crate) struct Leases {
    pub(super) config: Config,
    pub(super) tables: Arc<Tables>,
    /// Acquires a free lock in exclusive mode.
    pub(super) acquire_statement: Arc<str>,
    /// Releases an exclusive hold, for servers that prepare compound statements.
    pub(super) release_statement: Arc<str>,
    /// The statement of a release on a server where waiters can be woken.
    pub(super) hand_over_statement: Arc<str>,
    /// Puts a claim in the queue, on such a server.
    pub(super) enqueue_statement: Arc<str>,
    pub(super) ears: Ears,
    pub(super) info: Mutex<Option<ServerInfo>>,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(super) conn: Conn,
    pub(super) statements: Statements,
    /// The value to which it lifted the token counter, or the last token that it has drawn.
    pub(super) floor: Token,
    /// When it last lifted the counter.
    lifted: BootInstant,
    /// Its id, and the address and port of this client as the server sees them.
    pub(super) id: String,
    /// Whether the server prepares compound statements.
    pub(super) compounds: bool,
}

impl Session {
    pub(super) fn has_to_lift(&self) -> bool {
        Clock::Boot.now().since(self.lifted) >= LIFT_EVERY
    }

    /// Notes that a request sent at this time has lifted the counter.
    pub(super) fn has_lifted(&mut self, at: BootInstant) {
        self.lifted = at;
    }
}

impl Leases {
    pub(crate) fn new(config: Config) -> Self {
        let tables = Arc::new(Tables::new(&config.table));
        let Tables { locks, draws, .. } = &*tables;
        // The server evaluates the values, and with them locks the row for draws, before it draws the id for the row.
        let acquire = format!(
            "INSERT INTO {locks} {GATE_COLUMNS} \
             VALUES (?, ?, 'held', ?, ?, (SELECT zero FROM {draws} WHERE id = ? FOR UPDATE), {NOW} + ?, ?, {NOW}, ?, ?)"
        );
        Self {
            acquire_statement: acquire.into(),
            release_statement: release_statement(&tables).into(),
            hand_over_statement: hand_over_statement(&tables).into(),
            enqueue_statement: enqueue_statement(&tables).into(),
            ears: Ears::new(&config, &tables),
            config,
            tables,
            info: Mutex::default(),
        }
    }

    pub(super) async fn open_session(&self) -> Result<Session> {
        let Connected { conn, info, id } = connect(&self.config).await?;
        let compounds = info.prepares_compounds();
        let is_cluster = info.is_cluster();
        *self.info.lock() = Some(info);
        let mut session = Session {
            conn,
            statements: Statements::new(),
            floor: Token(0),
            lifted: Clock::Boot.now(),
            id,
            compounds,
        };
        let prepared = async {
            if !self.config.inspect_only {
                self.prepare_session(&mut session).await?;
            }
            if !is_cluster {
                self.find_ears(&mut session).await?;
            }
            self.prepare_release(&mut session).await
        };
        let prepared = prepared.await;
        prepared.map_err(|failure| self.explain(failure))?;
        Ok(session)
    }

    async fn prepare_session(&self, session: &mut Session) -> Tried<()> {
        match self.check_format(session).await {
            Err(Failure::NoTables(_)) => self.create_missing_tables(session).await?,
            checked => checked?,
        }
        self.lift_tokens_to(session, "COMMIT").await
    }

    /// Prepared now, so that a release is one request from the first: it takes effect even if its answer is lost.
    async fn prepare_release(&self, session: &mut Session) -> Tried<()> {
        if session.compounds && !self.config.inspect_only {
            let statement = match self.ears.work() {
                true => &self.hand_over_statement,
                false => &self.release_statement,
            };
            let prepared = prepare(&mut session.conn, &mut session.statements, statement);
            let prepared = prepared.await;
            prepared.map_err(|error| failure(&self.config.store, error))?;
        }
        Ok(())
    }

    fn explain(&self, failure: Failure) -> Error {
        match failure {
            Failure::Final(error) => error,
            Failure::Conflict(cause)
            | Failure::Disconnected(cause)
            | Failure::ReadOnly(cause)
            | Failure::NoTables(cause) => {
                Error::unavailable(&self.config.store, "preparing a connection", cause)
            }
            Failure::NoAnswer => Error::Closed,
        }
    }

    pub(super) async fn create_missing_tables(&self, session: &mut Session) -> Tried<()> {
        let created = (self.tables).create(&mut session.conn, Use::Leases, &self.config);
        let created = created.await.map_err(Failure::Final);
        // If only the table of ears is missing, the client continues without ears.
        if self.ears.lose() {
            self.find_ears(session).await?;
            if !self.ears.work() && self.check_format(session).await.is_ok() {
                return Ok(());
            }
        }
        created?;
        self.check_format(session).await
    }

    /// Checks that the tables exist, in a format that this version understands.
    async fn check_format(&self, session: &mut Session) -> Tried<()> {
        let mut request = Request::default();
        request.push(format!("SELECT format FROM {}", self.tables.store));
        let answers = self.run(session, &request).await?;
        let mut formats = answers[0].rows.iter().cloned();
        let format = formats.next().map(from_row_opt::<(u32,)>);
        match format.transpose() {
            Ok(Some((2,))) => Ok(()),
            Ok(None) => Err(Failure::NoTables("the tables are empty".into())),
            _ => Err(Failure::Final(Error::config(
                &self.config.store,
                ConfigPart::Server,
                format!(
                    "another version of fencelock, or another program, made the tables {}_...; use that version, or other tables with ?table=NAME",
                    self.config.table
                ),
            ))),
        }
    }

    /// Lifts the token counter to the time. An id stands for ten microseconds and 16 tokens: tokens stay below 2^53 until the
    /// year 2148, and no server grants fast enough to overtake time.
    pub(super) async fn lift_tokens_to(&self, session: &mut Session, end: &str) -> Tried<()> {
        let lifted = Clock::Boot.now();
        let mut request = Request::transaction();
        for statement in lift(&self.tables.locks, &id(session.floor).to_string()) {
            request.push(statement);
        }
        request.end(end);
        let chosen = request.push("SELECT @fencelock_id");
        let answers = self.run(session, &request).await?;
        let row = answers[chosen].rows.first();
        let id = row.and_then(|row| row.get::<u64, _>(0));
        let goal = token(id.unwrap_or(0));
        session.floor = session.floor.max(goal);
        session.lifted = lifted;
        Ok(())
    }

    /// Before a draw: an old dump may have been restored. A token drawn after that is below this connection's floor, unless
    /// the dump is younger than the last lift.
    pub(super) async fn lift_tokens_if_due(&self, session: &mut Session) -> Tried<()> {
        match session.has_to_lift() {
            // No wait for the disk here: the commit of the grant writes it.
            true => self.lift_tokens_to(session, "ROLLBACK").await,
            false => Ok(()),
        }
    }

    pub(super) async fn run(&self, session: &mut Session, request: &Request) -> Tried<Vec<Answer>> {
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        let error = match ran.await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        Err(self.undo(session, error).await)
    }

    /// Rolls back after a failed request, which may have left its transaction open.
    pub(super) async fn undo(&self, session: &mut Session, error: mysql_async::Error) -> Failure {
        let failure = failure(&self.config.store, error);
        if let Failure::Disconnected(_) = failure {
            return failure;
        }
        match Request::rollback().run(&mut session.conn).await {
            Ok(_) => failure,
            Err(error) => Failure::Disconnected(error.into()),
        }
    }

    /// The rows of an inspection. An inspecting client creates no tables, and sees nothing where there are none.
    pub(super) async fn inspected(
        &self,
        session: &mut Session,
        request: &Request,
    ) -> Tried<Vec<Row>> {
        match self.run(session, request).await {
            Ok(mut answers) => Ok(std::mem::take(&mut answers[0].rows)),
            Err(Failure::NoTables(_)) if self.config.inspect_only => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    pub(super) fn unreadable(&self, name: &LockName) -> Failure {
        let why = "its rows were stored by a newer version of fencelock, or are damaged; use that version, or another name";
        Failure::Final(Error::not_a_lock(&self.config.store, name, why))
    }

    /// Ends a connection at the server. The id and the client's address and port name it. The id alone is not enough, because a
    /// server that was restarted uses its connection numbers again.
    pub(super) async fn end(&self, session: &mut Session, id: &str) -> Tried<bool> {
        let Some((id, host)) = id.split_once(' ') else {
            return Ok(false);
        };
        let look = Request::of(format!(
            "SELECT 1 FROM information_schema.processlist WHERE id = {id} AND host = {}",
            bytes(host.as_bytes())
        ));
        for _ in 0..20 {
            if self.run(session, &look).await?[0].rows.is_empty() {
                return Ok(true);
            }
            // It fails if the connection has just ended.
            let kill = Request::of(format!("KILL CONNECTION {id}"));
            let _ = self.run(session, &kill).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(false)
    }
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.config.store)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.config.store)
    }
}
