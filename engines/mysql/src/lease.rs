//! The lease engine's requests in the words of MySQL and MariaDB.
//!
//! Who holds alone stands in the gate, who holds beside others in a table of its own. A free lock is taken by inserting its
//! gate, which draws the token as well. A token drawn by an INSERT that then waits for the row would be lower than one that
//! was drawn and granted meanwhile; so whoever is to be granted a lock takes its *turn* first: it locks a row that stands for
//! the names of one hash, for as long as its transaction takes. Held locks and waiters have no turn.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, HeldClaim, HolderView, LockView, Page, WaiterView};
use fencelock_core::{
    BootInstant, ClaimId, Clock, Error, Finding, LeaseKind, LockName, Mode, Order, Promises,
    Purpose, Result, Token, Tokens, Wake,
};
use fencelock_sql::lease::{self, Holder, MOST_TOKENS, Rows, Waiter};
use fencelock_sql::server::{
    Change, DbInstant, Dialect, Seen, Trouble, Write, Written, first_version, micros,
};
use mysql_async::{Conn, Row, Value, from_row_opt};
use sha2::{Digest, Sha256};

use super::config::Config;
use super::connect::{Facts, connect};
use super::diagnose;
use super::tables::{For, Tables};
use super::wire::{Answer, LIFT, LIFTED, NOW, Request, Statements, bytes, prepare, trouble};

/// A grant's first token is its id times this.
const PER_ID: u64 = MOST_TOKENS as u64;
/// How many rows there are for drawing.
const DRAWS: u64 = 1000;
/// All but the id, which the server draws.
const GATE_COLUMNS: &str =
    "(name, version, state, claim, tokens, current, expiry, lock_delay, since, owner, label)";
/// A long line is cut in views.
const MOST_WAITERS_SHOWN: usize = 1000;
/// How many names with dead rows are asked for at once.
const BURIED_AT_ONCE: usize = 100;

type Tried<T> = Result<T, Trouble>;

/// A MySQL or MariaDB server with the tables of the lease engine.
pub(crate) struct MySql {
    config: Config,
    tables: Tables,
    /// Takes a free lock, alone; see [`MySql::take_alone`].
    take: Arc<str>,
    /// Releases an exclusive hold, for servers that prepare compound statements; tells whether it was live if there was
    /// more to it than a gate at its first version, which has nothing else behind it.
    release: Arc<str>,
    facts: Mutex<Option<Facts>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Session {
    conn: Conn,
    statements: Statements,
    /// What the counter was lifted to over it, and the last token that it has drawn.
    floor: Token,
    /// When it lifted the counter last.
    lifted: BootInstant,
    /// Its id, and the address and port of this client as the server sees them.
    trace: String,
    /// Whether the server prepares compound statements.
    compounds: bool,
}

/// A row that [`MySql::all_rows`] selects.
struct Line {
    kind: u8,
    name: LockName,
    /// A gate's version, the id of a holder's grant, a waiter's ticket.
    number: u64,
    /// For a gate, the present time.
    expiry: DbInstant,
    /// `None` for a gate.
    mode: Option<Mode>,
    claim: ClaimId,
    tokens: u32,
    current: u32,
    lock_delay: Duration,
    since: DbInstant,
    state: Vec<u8>,
    owner: String,
    label: Option<String>,
}

const GATE: u8 = 0;
const HOLDER: u8 = 1;
const WAITER: u8 = 2;

impl MySql {
    pub(crate) fn new(config: Config) -> Self {
        let tables = Tables::new(&config.table);
        let Tables { locks, draws, .. } = &tables;
        // The values are there, and with them the turn to draw, before the server draws the id for the row.
        let take = format!(
            "INSERT INTO {locks} {GATE_COLUMNS} \
             VALUES (?, ?, 'held', ?, ?, (SELECT zero FROM {draws} WHERE id = ? FOR UPDATE), {NOW} + ?, ?, {NOW}, ?, ?)"
        );
        let [gate, live, last] = release(&tables, Mode::Exclusive, "?", "?");
        let release = format!(
            "BEGIN NOT ATOMIC \
             DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; \
             DELETE FROM {locks} WHERE name = ? AND version = ? AND claim = ? AND state = 'held' AND expiry > {NOW}; \
             IF ROW_COUNT() = 0 THEN START TRANSACTION; {gate}; {live}; SET @fencelock_live = ROW_COUNT(); {last}; COMMIT; \
             SELECT @fencelock_live; END IF; END"
        );
        Self {
            config,
            tables,
            take: take.into(),
            release: release.into(),
            facts: Mutex::default(),
        }
    }

    /// Takes the lock if it has no gate.
    async fn take_alone(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        let values = vec![
            claim.name.as_str().into(),
            first_version(claim.id).into(),
            claim.id.as_bytes().into(),
            count(claim).into(),
            draw(&claim.name).into(),
            micros(claim.ttl.saturating_add(claim.lock_delay)).into(),
            micros(claim.lock_delay).into(),
            (&*claim.owner).into(),
            claim.label.as_deref().into(),
        ];
        let request = Request::prepared(Arc::clone(&self.take), values);
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        match ran.await {
            Ok(answers) => Ok(tokens(&answers[0], claim)),
            Err(error) if is_duplicate(&error) => Ok(None),
            Err(error) => Err(self.undo(session, error).await),
        }
    }

    /// The same, beside others who may come.
    async fn take_beside(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        let mut request = Request::transaction();
        request.push(self.turn(&claim.name));
        // Not INSERT ... SELECT, which takes the counter of ids for as long as it waits for a row, and so would hold up
        // other names.
        let gate = request.push(format!(
            "INSERT IGNORE INTO {} {GATE_COLUMNS} VALUES ({})",
            self.tables.locks,
            gate_values(claim, first_version(claim.id))
        ));
        request.push(self.insert_holder(claim, "ROW_COUNT() = 1"));
        request.commit();
        let answers = self.run(session, &request).await?;
        Ok(tokens(&answers[gate], claim))
    }

    /// Lifts the counter to the time. A row with an id lifts it above that, and never lowers it, also when the row is taken back.
    /// Ten microseconds for each id and 16 tokens for each: below 2^53 until the year 2148, and no server grants so fast as to
    /// overtake time. Each connection has an id of its own to lift to, so that none waits for another's row.
    async fn lift(&self, session: &mut Session, end: &str) -> Tried<()> {
        let locks = &self.tables.locks;
        let lifted = Clock::Boot.now();
        let mut request = Request::transaction();
        // No lock's name has a control character.
        request.push(format!(
            "SET @fencelock_id = GREATEST({LIFTED} + CONNECTION_ID() % 1024, {}), @fencelock_seed = CONCAT(x'00', CONNECTION_ID())",
            id(session.floor)
        ));
        request.push(format!(
            "INSERT IGNORE INTO {locks} \
             (id, name, version, state, claim, tokens, current, expiry, lock_delay, since, owner) \
             VALUES (@fencelock_id, @fencelock_seed, 0, 'none', '', 0, 0, 0, 0, 0, '')"
        ));
        request.push(format!("DELETE FROM {locks} WHERE name = @fencelock_seed"));
        request.end(end);
        let chosen = request.push("SELECT @fencelock_id");
        let answers = self.run(session, &request).await?;
        let row = answers[chosen].rows.first();
        let id = row.and_then(|row| row.get::<u64, _>(0));
        let goal = Token(id.unwrap_or(0).saturating_mul(PER_ID));
        session.floor = session.floor.max(goal);
        session.lifted = lifted;
        Ok(())
    }

    /// Before a draw: an old dump may have been restored since. What is drawn then is below what this connection lifted to, or
    /// has seen, unless the dump is younger than that.
    async fn lift_if_due(&self, session: &mut Session) -> Tried<()> {
        match Clock::Boot.now().since(session.lifted) >= LIFT {
            // What is committed with a grant is on disk with it: nothing is to be waited for here.
            true => self.lift(session, "ROLLBACK").await,
            false => Ok(()),
        }
    }

    /// Waits until nobody else draws a token of this lock, to the end of the transaction.
    fn turn(&self, name: &LockName) -> String {
        let draws = &self.tables.draws;
        format!(
            "SELECT zero FROM {draws} WHERE id = {} FOR UPDATE",
            draw(name)
        )
    }

    /// The row of one that holds beside others, with the id that its gate drew.
    fn insert_holder(&self, claim: &Claim, condition: &str) -> String {
        format!(
            "INSERT INTO {} (id, name, claim, mode, current, expiry, lock_delay, since, state, owner, label) \
             SELECT LAST_INSERT_ID(), {}, {}, '{}', 0, {NOW} + {}, {}, {NOW}, 'held', {}, {} FROM DUAL WHERE {condition}",
            self.tables.holders,
            name(&claim.name),
            bytes(claim.id.as_bytes()),
            lease::mode_text(claim.mode),
            micros(claim.ttl.saturating_add(claim.lock_delay)),
            micros(claim.lock_delay),
            bytes(claim.owner.as_bytes()),
            label(claim),
        )
    }

    async fn run(&self, session: &mut Session, request: &Request) -> Tried<Vec<Answer>> {
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        let error = match ran.await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        Err(self.undo(session, error).await)
    }

    /// After a request that failed: it may have left its transaction open.
    async fn undo(&self, session: &mut Session, error: mysql_async::Error) -> Trouble {
        let trouble = trouble(&self.config.store, error);
        if let Trouble::Gone(_) = trouble {
            return trouble;
        }
        match Request::rollback().run(&mut session.conn).await {
            Ok(_) => trouble,
            Err(error) => Trouble::Gone(error.into()),
        }
    }

    /// So that a release is one request from the first: one whose answer is lost is done nonetheless.
    async fn prepare_release(&self, session: &mut Session) -> Tried<()> {
        if session.compounds {
            let prepared = prepare(&mut session.conn, &mut session.statements, &self.release);
            let prepared = prepared.await;
            prepared.map_err(|error| trouble(&self.config.store, error))?;
        }
        Ok(())
    }

    /// Whether the tables are there, in a format that this version understands.
    async fn check_format(&self, session: &mut Session) -> Tried<()> {
        let mut request = Request::default();
        request.push(format!("SELECT format FROM {}", self.tables.store));
        let answers = self.run(session, &request).await?;
        let mut formats = answers[0].rows.iter().cloned();
        let format = formats.next().map(from_row_opt::<(u32,)>);
        match format.transpose() {
            Ok(Some((2,))) => Ok(()),
            Ok(None) => Err(Trouble::NoSchema("the tables are empty".into())),
            _ => Err(Trouble::Told(Error::config(
                &self.config.store,
                format!(
                    "the tables {}_... were made by another version of fencelock, or by something else; use that \
                     version, or others with ?table=NAME",
                    self.config.table
                ),
            ))),
        }
    }

    /// Everything about some locks, in one statement and so of one moment.
    fn all_rows(&self, names: &str) -> String {
        let Tables {
            locks,
            holders,
            waiters,
            ..
        } = &self.tables;
        format!(
            "SELECT 0 AS kind, name, version AS number, {NOW} AS expiry, '' AS mode, '' AS claim, 0 AS tokens, \
             0 AS current, 0 AS lock_delay, 0 AS since, '' AS state, '' AS owner, NULL AS label \
             FROM {locks} WHERE name IN ({names}) UNION ALL \
             SELECT 1, name, id, expiry, 'x', claim, tokens, current, lock_delay, since, state, owner, label \
             FROM {locks} WHERE name IN ({names}) AND state <> 'none' UNION ALL \
             SELECT 1, name, id, expiry, mode, claim, 1, current, lock_delay, since, state, owner, label \
             FROM {holders} WHERE name IN ({names}) UNION ALL \
             SELECT 2, name, ticket, expiry, mode, claim, 0, 0, 0, 0, '', owner, NULL \
             FROM {waiters} WHERE name IN ({names})"
        )
    }

    fn unreadable(&self, name: &LockName) -> Trouble {
        Trouble::Told(Error::NotALock {
            store: self.config.store.clone(),
            name: name.clone(),
            why: "its rows were stored by a newer version of fencelock, or are damaged; use that version, or another name"
                .into(),
        })
    }
}

/// The tokens of a grant, from the row's id.
fn tokens(answer: &Answer, claim: &Claim) -> Option<Tokens> {
    let id = answer.last_id.filter(|_| answer.affected > 0)?;
    let first = Token(id.checked_mul(PER_ID)?);
    let count = count(claim);
    Some(Tokens { first, count })
}

/// How many tokens a grant to this claim has.
fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    }
}

/// Which of the rows for drawing is this lock's. All clients must agree.
fn draw(name: &LockName) -> u64 {
    let hash = Sha256::digest(name.as_str());
    let eight = hash.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(eight) % DRAWS
}

fn is_duplicate(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if server.code == 1062)
}

/// A gate with this grant behind it. Its row draws the id.
fn gate_values(claim: &Claim, version: u64) -> String {
    let state = match claim.mode {
        Mode::Exclusive => "held",
        Mode::Shared | Mode::Permit { .. } => "none",
    };
    format!(
        "{}, {version}, '{state}', {}, {}, 0, {NOW} + {}, {}, {NOW}, {}, {}",
        name(&claim.name),
        bytes(claim.id.as_bytes()),
        count(claim),
        micros(claim.ttl.saturating_add(claim.lock_delay)),
        micros(claim.lock_delay),
        bytes(claim.owner.as_bytes()),
        label(claim),
    )
}

/// The statements of a release: the gate is locked first, so that the last one sees everything behind it; whether the hold
/// was live is how many rows the second one changes.
fn release(tables: &Tables, mode: Mode, of: &str, id: &str) -> [String; 3] {
    let Tables {
        locks,
        holders,
        waiters,
        ..
    } = tables;
    let mine =
        format!("name = {of} AND claim = {id} AND state IN ('held', 'asked') AND expiry > {NOW}");
    [
        format!("UPDATE {locks} SET version = version + 1 WHERE name = {of}"),
        match mode {
            Mode::Exclusive => format!("UPDATE {locks} SET state = 'none' WHERE {mine}"),
            Mode::Shared | Mode::Permit { .. } => format!("DELETE FROM {holders} WHERE {mine}"),
        },
        format!(
            "DELETE FROM {locks} WHERE name = {of} AND state = 'none' \
             AND NOT EXISTS (SELECT 1 FROM {holders} AS h WHERE h.name = {locks}.name) \
             AND NOT EXISTS (SELECT 1 FROM {waiters} AS w WHERE w.name = {locks}.name)"
        ),
    ]
}

/// What is written of a hold of which the lock-delay alone goes on.
fn abandoned(lock_delay: Duration) -> String {
    let delay = micros(lock_delay);
    format!("expiry = LEAST(expiry, {NOW} + {delay}), lock_delay = {delay}, state = 'abandoned'")
}

fn label(claim: &Claim) -> String {
    let label = claim.label.as_deref();
    label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()))
}

fn name(name: &LockName) -> String {
    bytes(name.as_str().as_bytes())
}

/// The id of a grant, from any of its tokens.
fn id(token: Token) -> u64 {
    token.get() / PER_ID
}

fn list(ids: impl IntoIterator<Item = u64>) -> String {
    let ids = ids.into_iter().map(|id| id.to_string());
    ids.collect::<Vec<_>>().join(",")
}

impl Line {
    /// `None` if it is not what this version writes.
    fn read(mut row: Row) -> Option<Self> {
        fn take<T: mysql_async::prelude::FromValue>(row: &mut Row, at: usize) -> Option<T> {
            row.take_opt(at)?.ok()
        }
        let text = |bytes| String::from_utf8(bytes).ok();
        let row = &mut row;
        let kind = take(row, 0)?;
        let name = LockName::new(&text(take(row, 1)?)?).ok()?;
        let mode = match kind {
            GATE => None,
            _ => Some(lease::mode_from(&text(take(row, 4)?)?)?),
        };
        let claim: Vec<u8> = take(row, 5)?;
        let claim = match kind {
            GATE => [0; 16],
            _ => claim.try_into().ok()?,
        };
        let label: Option<Vec<u8>> = take(row, 12)?;
        Some(Self {
            kind,
            name,
            number: take(row, 2)?,
            expiry: DbInstant(take(row, 3)?),
            mode,
            claim: ClaimId::from_bytes(claim),
            tokens: take(row, 6)?,
            current: take(row, 7)?,
            lock_delay: Duration::from_micros(take(row, 8)?),
            since: DbInstant(take(row, 9)?),
            state: take(row, 10)?,
            owner: text(take(row, 11)?)?,
            label: match label {
                Some(label) => Some(text(label)?),
                None => None,
            },
        })
    }

    fn first(&self) -> Token {
        Token(self.number * PER_ID)
    }

    fn holder(&self, mode: Mode) -> Holder<DbInstant> {
        Holder {
            claim: self.claim,
            mode,
            tokens: Tokens {
                first: self.first(),
                count: self.tokens,
            },
            expiry: self.expiry,
            abandoned: self.state == b"abandoned",
        }
    }

    fn waiter(&self, mode: Mode) -> Waiter<DbInstant> {
        Waiter {
            claim: self.claim,
            ticket: i64::try_from(self.number).unwrap_or(i64::MAX),
            mode,
            expiry: self.expiry,
            address: None,
        }
    }

    fn holder_view(self, mode: Mode, now: DbInstant) -> HolderView {
        let left = self.expiry.since(now);
        HolderView {
            claim: Some(self.claim),
            token: Some(Token(self.first().get() + u64::from(self.current))),
            owner: self.owner,
            mode,
            ttl_left: Some(left),
            lock_delay: self.lock_delay.min(left),
            held: Some(now.since(self.since)),
            label: self.label,
        }
    }
}

/// Locks as people see them, from all their rows.
fn views(mut lines: Vec<Line>) -> Vec<LockView> {
    lines.sort_by(|a, b| {
        (a.name.as_str(), a.kind, a.number).cmp(&(b.name.as_str(), b.kind, b.number))
    });
    let mut views: Vec<LockView> = Vec::new();
    let mut now = DbInstant(0);
    for line in lines {
        let Some(mode) = line.mode else {
            now = line.expiry;
            views.push(LockView::free(line.name));
            continue;
        };
        let Some(view) = views.last_mut().filter(|view| view.name == line.name) else {
            continue;
        };
        if line.expiry <= now {
            continue;
        }
        if line.kind == HOLDER {
            view.holders.push(line.holder_view(mode, now));
        } else if view.waiters.len() < MOST_WAITERS_SHOWN {
            let owner = line.owner;
            view.waiters.push(WaiterView {
                owner,
                mode,
                label: None,
            });
        }
    }
    views
}

#[async_trait]
impl Dialect for MySql {
    type Session = Session;

    async fn connect(&self) -> Result<Session> {
        let (conn, facts, trace) = connect(&self.config).await?;
        let compounds = facts.prepares_compounds();
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        let mut session = Session {
            conn,
            statements: Statements::new(),
            floor: Token(0),
            lifted: Clock::Boot.now(),
            trace,
            compounds,
        };
        let explain = |trouble| match trouble {
            Trouble::Told(error) => error,
            Trouble::Again(cause)
            | Trouble::Gone(cause)
            | Trouble::Moved(cause)
            | Trouble::NoSchema(cause) => {
                Error::unavailable(&self.config.store, "prepare a connection", cause)
            }
            Trouble::Silent => Error::Closed,
        };
        if self.config.inspect_only {
            return Ok(session);
        }
        match self.check_format(&mut session).await {
            Err(Trouble::NoSchema(_)) => {
                self.make_schema(&mut session).await.map_err(explain)?;
            }
            checked => checked.map_err(explain)?,
        }
        self.seed(&mut session).await.map_err(explain)?;
        self.prepare_release(&mut session).await.map_err(explain)?;
        Ok(session)
    }

    fn disconnect(&self, session: Session) {
        super::hang_up(session.conn);
    }

    fn promises(&self) -> Promises {
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = facts.as_ref();
        let mut limits = facts.map(Facts::limits).unwrap_or_default();
        if self.config.hosts.len() > 1 {
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: "a replica that is promoted may not have heard of the last grants: it may grant a lock that is held \
                 (with a higher token)"
                    .into(),
                change: "use semi-synchronous replication, or protect what the lock guards by its token".into(),
            });
        }
        Promises {
            engine: "mysql",
            order: Order::Fifo,
            shared: true,
            permits: true,
            lock_delay: true,
            ranges: true,
            portable: true,
            lease: LeaseKind::Lease,
            wake: Wake::Poll,
            durability: facts.map_or(fencelock_core::Durability::Process, Facts::durability),
            clock: "the database's clock does not jump forward by more than is left of a lease",
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(100 * 365 * 86_400),
            claim_window: fencelock_sql::server::CLAIM_WINDOW,
            limits,
        }
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.config, &self.tables).await
    }

    async fn make_schema(&self, session: &mut Session) -> Tried<()> {
        let made = (self.tables).make(&mut session.conn, For::Leases, &self.config);
        made.await.map_err(Trouble::Told)?;
        self.check_format(session).await
    }

    async fn seed(&self, session: &mut Session) -> Tried<()> {
        self.lift(session, "COMMIT").await
    }

    fn floor(&self, session: &Session) -> Token {
        session.floor
    }

    fn saw(&self, session: &mut Session, token: Token) {
        session.floor = session.floor.max(token);
    }

    fn inspects(&self) -> bool {
        self.config.inspect_only
    }

    async fn take_free(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        self.lift_if_due(session).await?;
        match claim.mode {
            Mode::Exclusive => self.take_alone(session, claim).await,
            Mode::Shared | Mode::Permit { .. } => self.take_beside(session, claim).await,
        }
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        if session.compounds && claim.mode == Mode::Exclusive {
            let (of, id) = (claim.name.as_str(), claim.id.as_bytes());
            let mut values: Vec<Value> = vec![of.into(), first_version(claim.id).into(), id.into()];
            // As the three statements have them.
            values.extend([of.into(), of.into(), id.into(), of.into()]);
            let request = Request::prepared(Arc::clone(&self.release), values);
            let answers = self.run(session, &request).await?;
            let live = answers[0].rows.first().map(|row| row.get::<u64, _>(0));
            return Ok(live.is_none_or(|live| live == Some(1)));
        }
        let (of, id) = (name(&claim.name), bytes(claim.id.as_bytes()));
        let [gate, live, last] = release(&self.tables, claim.mode, &of, &id);
        let mut request = Request::transaction();
        request.push(gate);
        let live = request.push(live);
        request.push(last);
        request.commit();
        let answers = self.run(session, &request).await?;
        Ok(answers[live].affected > 0)
    }

    async fn read(&self, session: &mut Session, of: &LockName) -> Tried<Option<Seen>> {
        let mut request = Request::default();
        request.push(self.all_rows(&name(of)));
        let mut answers = self.run(session, &request).await?;
        let lines = std::mem::take(&mut answers[0].rows).into_iter();
        let lines = lines.map(Line::read).collect::<Option<Vec<_>>>();
        let lines = lines.ok_or_else(|| self.unreadable(of))?;
        let mut gate = None;
        let (mut holders, mut line) = (Vec::new(), Vec::new());
        for row in &lines {
            match (row.kind, row.mode) {
                (HOLDER, Some(mode)) => holders.push(row.holder(mode)),
                (WAITER, Some(mode)) => line.push(row.waiter(mode)),
                _ => gate = Some((row.number, row.expiry)),
            }
        }
        line.sort_by_key(|waiter| waiter.ticket);
        Ok(gate.map(|(version, now)| Seen {
            now,
            version,
            drawn: Token(0),
            rows: Rows { holders, line },
        }))
    }

    async fn version(&self, session: &mut Session, of: &LockName) -> Tried<Option<u64>> {
        let mut request = Request::default();
        let locks = &self.tables.locks;
        request.push(format!(
            "SELECT version FROM {locks} WHERE name = {}",
            name(of)
        ));
        let answers = self.run(session, &request).await?;
        Ok(answers[0].rows.first().and_then(|row| row.get(0)))
    }

    async fn write(&self, session: &mut Session, write: &Write<'_>) -> Tried<Written> {
        let Tables {
            locks,
            holders,
            waiters,
            ..
        } = &self.tables;
        if let Change::Grant { .. } = write.change {
            self.lift_if_due(session).await?;
        }
        let (of, go) = (name(write.name), "@fencelock_go = 1");
        let dead = write.dead_holders.iter().copied();
        let (dead_alone, dead_beside): (Vec<&Holder<DbInstant>>, Vec<_>) =
            dead.partition(|holder| holder.mode == Mode::Exclusive);
        let mut request = Request::transaction();
        if let Change::Grant { .. } = write.change {
            request.push(self.turn(write.name));
        }
        let mut set = "version = version + 1".to_owned();
        let mut if_ = format!("name = {of} AND version = {}", write.version);
        // There is one at most.
        if let Some(holder) = dead_alone.first() {
            set.push_str(", state = 'none'");
            let id = id(holder.tokens.first);
            // Writing to a String never fails.
            let _ = write!(if_, " AND id = {id} AND expiry <= {NOW}");
        }
        let of_holder = match write.change {
            Change::Release { holder } => Some((holder, "state = 'none'".to_owned())),
            Change::Abandon { holder, lock_delay } => Some((holder, abandoned(lock_delay))),
            Change::Ask { holder } => Some((holder, "state = 'asked'".to_owned())),
            _ => None,
        };
        let (alone, beside) = match of_holder {
            Some((holder, change)) if holder.mode == Mode::Exclusive => {
                (Some((holder, change)), None)
            }
            beside => (None, beside),
        };
        if let Some((holder, change)) = alone {
            let _ = write!(set, ", {change}");
            let _ = write!(if_, " AND id = {}", id(holder.tokens.first));
        }
        let gate = request.push(format!("UPDATE {locks} SET {set} WHERE {if_}"));
        request.push("SET @fencelock_go = ROW_COUNT()");

        let mut dead = None;
        if !dead_beside.is_empty() {
            let ids = list(dead_beside.iter().map(|holder| id(holder.tokens.first)));
            dead = Some(request.push(format!(
                "DELETE FROM {holders} WHERE id IN ({ids}) AND expiry <= {NOW} AND {go}"
            )));
            let count = dead_beside.len();
            request.push(format!(
                "SET @fencelock_go = @fencelock_go AND ROW_COUNT() = {count}"
            ));
        }
        if !write.dead_waiters.is_empty() {
            let tickets = write.dead_waiters.iter().map(i64::to_string);
            let tickets = tickets.collect::<Vec<_>>().join(",");
            request.push(format!(
                "DELETE FROM {waiters} WHERE name = {of} AND ticket IN ({tickets}) AND {go}"
            ));
        }
        let leave = |ticket: i64| {
            format!("DELETE FROM {waiters} WHERE name = {of} AND ticket = {ticket} AND {go}")
        };
        if let Some((holder, change)) = beside {
            let if_ = format!("id = {} AND {go}", id(holder.tokens.first));
            request.push(match write.change {
                Change::Release { .. } => format!("DELETE FROM {holders} WHERE {if_}"),
                _ => format!("UPDATE {holders} SET {change} WHERE {if_}"),
            });
        }
        let mut granted = None;
        match write.change {
            Change::Grant {
                claim,
                ticket,
                instead,
            } => {
                if let Some(ticket) = ticket {
                    request.push(leave(ticket));
                }
                // Made anew, it draws an id.
                request.push(format!("DELETE FROM {locks} WHERE name = {of} AND {go}"));
                // A claim that is alone has its own version, by which its release is sure to find nothing else. A gate
                // that was another before must have another version, for those who have read that.
                let version = match instead.is_none() && write.alone {
                    true => first_version(claim.id),
                    false => write.version + 1,
                };
                let values = gate_values(claim, version);
                let insert = request.push(format!(
                    "INSERT INTO {locks} {GATE_COLUMNS} SELECT {values} FROM DUAL WHERE {go}"
                ));
                if claim.mode != Mode::Exclusive {
                    request.push(self.insert_holder(claim, go));
                }
                granted = Some((claim, insert));
            }
            Change::Stand { claim, ticket } => {
                request.push(format!(
                    "INSERT INTO {waiters} (name, ticket, claim, mode, expiry, owner) \
                     SELECT {of}, {ticket}, {}, '{}', {NOW} + {}, {} FROM DUAL WHERE {go}",
                    bytes(claim.id.as_bytes()),
                    lease::mode_text(claim.mode),
                    micros(fencelock_sql::server::CLAIM_WINDOW),
                    bytes(claim.owner.as_bytes()),
                ));
            }
            Change::LeaveLine { ticket } => {
                request.push(leave(ticket));
            }
            Change::Release { .. } | Change::Abandon { .. } | Change::Ask { .. } | Change::Bury => {
            }
        }
        if write.last {
            request.push(format!("DELETE FROM {locks} WHERE name = {of} AND {go}"));
        }
        request.commit();
        let ran = request.run_with(&mut session.conn, &mut session.statements);
        let answers = match ran.await {
            Ok(answers) => answers,
            Err(error) => {
                // Its own place stands there, by then past its time: the next look tells.
                let stood = matches!(write.change, Change::Stand { .. }) && is_duplicate(&error);
                return match self.undo(session, error).await {
                    Trouble::Told(_) if stood => Ok(Written::Stale),
                    trouble => Err(trouble),
                };
            }
        };
        let buried = dead.map_or(0, |dead| answers[dead].affected);
        if answers[gate].affected == 0 || buried < dead_beside.len() as u64 {
            return Ok(Written::Stale);
        }
        Ok(Written::Done(granted.and_then(|(claim, insert)| {
            tokens(&answers[insert], claim)
        })))
    }

    async fn keep_place(
        &self,
        session: &mut Session,
        claim: &Claim,
        ticket: i64,
        for_: Duration,
    ) -> Tried<bool> {
        let mut request = Request::default();
        request.push(format!(
            "UPDATE {} SET expiry = {NOW} + {}, mode = '{}' WHERE name = {} AND ticket = {ticket} AND claim = {} \
             AND expiry > {NOW}",
            self.tables.waiters,
            micros(for_),
            lease::mode_text(claim.mode),
            name(&claim.name),
            bytes(claim.id.as_bytes()),
        ));
        let answers = self.run(session, &request).await?;
        Ok(answers[0].affected > 0)
    }

    async fn renew(&self, session: &mut Session, held: &[HeldClaim]) -> Tried<Vec<Option<bool>>> {
        let Tables { locks, holders, .. } = &self.tables;
        let (alone, beside): (Vec<_>, Vec<_>) =
            (held.iter()).partition(|held| held.claim.mode == Mode::Exclusive);
        let live = "expiry > @fencelock_now AND state IN ('held', 'asked')";
        let mut request = Request::transaction();
        request.push(format!("SET @fencelock_now = {NOW}"));
        let mut selects = Vec::new();
        for (table, held) in [(locks, alone), (holders, beside)] {
            if held.is_empty() {
                continue;
            }
            let ids = list(held.iter().map(|held| id(held.token)));
            let tokens = match table == locks {
                true => "tokens",
                false => "1",
            };
            selects.push(format!(
                "SELECT id, claim, state = 'asked', {tokens} FROM {table} WHERE id IN ({ids}) AND {live}"
            ));
            // Those of one length go together; whose token moved on within its grant has more to store.
            let mut alike: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            for held in held {
                let claim = &held.claim;
                let lease = format!(
                    "expiry = @fencelock_now + {}, lock_delay = {}",
                    micros(claim.ttl.saturating_add(claim.lock_delay)),
                    micros(claim.lock_delay),
                );
                let current = held.token.get() % PER_ID;
                if current == 0 {
                    alike.entry(lease).or_default().push(id(held.token));
                    continue;
                }
                let live = match claim.mode {
                    Mode::Exclusive => format!("{live} AND tokens > {current}"),
                    Mode::Shared | Mode::Permit { .. } => "FALSE".to_owned(),
                };
                request.push(format!(
                    "UPDATE {table} SET {lease}, current = {current}, owner = {}, label = {} WHERE id = {} AND {live}",
                    bytes(claim.owner.as_bytes()),
                    label(claim),
                    id(held.token),
                ));
            }
            for (lease, ids) in alike {
                let ids = list(ids);
                request.push(format!(
                    "UPDATE {table} SET {lease} WHERE id IN ({ids}) AND {live}"
                ));
            }
        }
        let kept = request.push(selects.join(" UNION ALL "));
        request.commit();
        let mut answers = self.run(session, &request).await?;
        let rows = std::mem::take(&mut answers[kept].rows).into_iter();
        let kept: HashMap<u64, (Vec<u8>, bool, u64)> = rows
            .filter_map(|row| from_row_opt::<(u64, Vec<u8>, bool, u64)>(row).ok())
            .map(|(id, claim, asked, tokens)| (id, (claim, asked, tokens)))
            .collect();
        let renewed = held.iter().map(|held| {
            let (claim, asked, tokens) = kept.get(&id(held.token))?;
            let has_token = held.token.get() % PER_ID < *tokens;
            (has_token && claim == held.claim.id.as_bytes()).then_some(*asked)
        });
        Ok(renewed.collect())
    }

    async fn prolong(&self, session: &mut Session, claim: &Claim, first: Token) -> Tried<bool> {
        let table = match claim.mode {
            Mode::Exclusive => &self.tables.locks,
            Mode::Shared | Mode::Permit { .. } => &self.tables.holders,
        };
        let mine = format!(
            "id = {} AND claim = {} AND state IN ('held', 'asked') AND expiry > {NOW}",
            id(first),
            bytes(claim.id.as_bytes())
        );
        let mut request = Request::of(format!(
            "UPDATE {table} SET expiry = GREATEST(expiry, {NOW} + {}), lock_delay = GREATEST(lock_delay, {}) WHERE {mine}",
            micros(claim.ttl.saturating_add(claim.lock_delay)),
            micros(claim.lock_delay),
        ));
        // A row that stays as it is does not count as changed.
        let held = request.push(format!("SELECT 1 FROM {table} WHERE {mine}"));
        let answers = self.run(session, &request).await?;
        Ok(!answers[held].rows.is_empty())
    }

    async fn look(&self, session: &mut Session, of: &LockName) -> Tried<LockView> {
        let mut views = self.look_at(session, &name(of)).await?;
        Ok(views.pop().unwrap_or_else(|| LockView::free(of.clone())))
    }

    async fn list(
        &self,
        session: &mut Session,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Tried<Page<LockView>> {
        let limit = limit.clamp(1, 1000);
        let after = at.map_or("", |cursor| &cursor.0);
        let Tables { locks, holders, .. } = &self.tables;
        let mut request = Request::default();
        request.push(format!(
            "SELECT name FROM {locks} WHERE name >= {} AND name > {} AND (state <> 'none' AND expiry > {NOW} OR EXISTS \
             (SELECT 1 FROM {holders} AS h WHERE h.name = {locks}.name AND h.expiry > {NOW})) ORDER BY name LIMIT {limit}",
            bytes(prefix.as_bytes()),
            bytes(after.as_bytes()),
        ));
        let rows = self.seen(session, &request).await?;
        let found = rows.iter().filter_map(|row| row.get::<Vec<u8>, _>(0));
        let found: Vec<Vec<u8>> = found.collect();
        // In the order of their bytes, those that begin with the prefix stand together.
        let begins = |name: &&Vec<u8>| name.starts_with(prefix.as_bytes());
        let names: Vec<String> = found
            .iter()
            .take_while(begins)
            .map(|name| bytes(name))
            .collect();
        let full = found.len() == limit && names.len() == limit;
        let last = found.last().filter(|_| full);
        let next = last.map(|last| Cursor(String::from_utf8_lossy(last).into_owned()));
        let mut items = Vec::new();
        if !names.is_empty() {
            items = self.look_at(session, &names.join(",")).await?;
            items.retain(|view| !view.holders.is_empty());
        }
        Ok(Page { items, next })
    }

    fn trace(&self, session: &Session) -> String {
        session.trace.clone()
    }

    async fn lay_to_rest(&self, session: &mut Session, trace: &str) -> Tried<bool> {
        // By id and by the client's address and port: after a restart the server counts its connections anew.
        let Some((id, host)) = trace.split_once(' ') else {
            return Ok(false);
        };
        let mut look = Request::default();
        look.push(format!(
            "SELECT 1 FROM information_schema.processlist WHERE id = {id} AND host = {}",
            bytes(host.as_bytes())
        ));
        for _ in 0..20 {
            if self.run(session, &look).await?[0].rows.is_empty() {
                return Ok(true);
            }
            let mut kill = Request::default();
            kill.push(format!("KILL CONNECTION {id}"));
            // It fails if the connection has just ended.
            let _ = self.run(session, &kill).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(false)
    }

    async fn dead(&self, session: &mut Session) -> Tried<Vec<LockName>> {
        let Tables {
            locks,
            holders,
            waiters,
            ..
        } = &self.tables;
        let mut request = Request::default();
        request.push(format!(
            "(SELECT name FROM {locks} WHERE state <> 'none' AND expiry <= {NOW} LIMIT {BURIED_AT_ONCE}) UNION \
             (SELECT name FROM {holders} WHERE expiry <= {NOW} LIMIT {BURIED_AT_ONCE}) UNION \
             (SELECT name FROM {waiters} WHERE expiry <= {NOW} LIMIT {BURIED_AT_ONCE})"
        ));
        let answers = self.run(session, &request).await?;
        let names = answers[0].rows.iter().filter_map(|row| {
            let name = String::from_utf8(row.get(0)?).ok()?;
            LockName::new(&name).ok()
        });
        Ok(names.collect())
    }
}

impl MySql {
    /// The rows that there are to look at. Whoever only looks makes no tables, and sees nothing where there are none.
    async fn seen(&self, session: &mut Session, request: &Request) -> Tried<Vec<Row>> {
        match self.run(session, request).await {
            Ok(mut answers) => Ok(std::mem::take(&mut answers[0].rows)),
            Err(Trouble::NoSchema(_)) if self.config.inspect_only => Ok(Vec::new()),
            Err(trouble) => Err(trouble),
        }
    }

    async fn look_at(&self, session: &mut Session, names: &str) -> Tried<Vec<LockView>> {
        let mut request = Request::default();
        request.push(self.all_rows(names));
        let lines = self.seen(session, &request).await?.into_iter();
        // What cannot be read is not shown; taking such a lock says so.
        Ok(views(lines.filter_map(Line::read).collect()))
    }
}

impl fmt::Display for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.config.store)
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MySql({})", self.config.store)
    }
}
