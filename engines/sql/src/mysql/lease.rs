//! The lease engine's requests in the words of MySQL and MariaDB.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, HeldClaim, HolderView, LockView, Page, WaiterView};
use fencelock_core::{
    ClaimId, Error, Finding, LeaseKind, Limit, LockName, Mode, Order, Promises, Result, Token,
    Tokens, Wake,
};
use mysql_async::{Conn, Row, from_row_opt};

use super::config::Config;
use super::connect::{Facts, connect};
use super::diagnose;
use super::tables::{For, Tables};
use super::wire::{Answer, NOW, Request, bytes, told, trouble};
use crate::lease::{self, Holder, MOST_TOKENS, Rows, Waiter};
use crate::server::{
    Change, DbInstant, Dialect, Seen, Trouble, Write, Written, first_version, micros,
};

/// A grant's first token is its id times this.
const PER_ID: u64 = MOST_TOKENS as u64;
/// A long line is cut in views.
const MOST_WAITERS_SHOWN: usize = 1000;
/// How many names with dead rows are asked for at once.
const BURIED_AT_ONCE: usize = 100;

type Tried<T> = Result<T, Trouble>;

/// A MySQL or MariaDB server with the tables of the lease engine.
pub(crate) struct MySql {
    config: Config,
    tables: Tables,
    facts: Mutex<Option<Facts>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Session {
    conn: Conn,
    floor: Token,
    /// Its id, and the address and port of this client as the server sees them.
    trace: String,
    /// Whether the server takes several statements as one that is made up there.
    compounds: bool,
}

/// The statements of a release.
struct Release {
    /// All of it if the gate is at its first version: it has this live hold behind it then, and nothing else.
    alone: String,
    /// Deletes the hold if it is live.
    live: String,
    /// What goes before that, and after: the gate is locked first, so that the last one sees everything behind it.
    rest: [String; 3],
}

/// A row that [`MySql::all_rows`] selects.
struct Line {
    kind: u8,
    name: LockName,
    /// A gate's version, a holder's id, a waiter's ticket.
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
        Self {
            tables: Tables::new(&config.table),
            config,
            facts: Mutex::default(),
        }
    }

    async fn run(&self, session: &mut Session, request: &Request) -> Tried<Vec<Answer>> {
        match request.run(&mut session.conn).await {
            Ok(answers) => Ok(answers),
            Err(error) => {
                let trouble = trouble(&self.config.store, error);
                if let Trouble::Gone(_) = trouble {
                    return Err(trouble);
                }
                // A statement that failed may have left its transaction open.
                let mut undo = Request::default();
                undo.push("ROLLBACK");
                match undo.run(&mut session.conn).await {
                    Ok(_) => Err(trouble),
                    Err(error) => Err(Trouble::Gone(error.into())),
                }
            }
        }
    }

    /// Whether the tables are there, in a format that this version understands.
    async fn check_format(&self, session: &mut Session) -> Tried<()> {
        let mut request = Request::default();
        request.push(format!("SELECT format FROM {}", self.tables.store));
        let answers = self.run(session, &request).await?;
        let mut formats = answers[0].rows.iter().cloned();
        let format = formats.next().map(from_row_opt::<(u32,)>);
        match format.transpose() {
            Ok(Some((1,))) => Ok(()),
            Ok(None) => Err(Trouble::NoSchema("the tables are empty".into())),
            _ => Err(Trouble::Told(Error::config(
                &self.config.store,
                format!(
                    "the tables {}_... were made by a newer version of fencelock, or by something else; use that \
                     version, or others with ?table=NAME",
                    self.config.table
                ),
            ))),
        }
    }

    fn release_of(&self, claim: &Claim) -> Release {
        let Tables {
            locks,
            holders,
            waiters,
            ..
        } = &self.tables;
        let (of, id) = (name(&claim.name), bytes(claim.id.as_bytes()));
        let (mine, held) = (
            format!("name = {of} AND claim = {id}"),
            "state <> 'abandoned'",
        );
        Release {
            alone: format!(
                "DELETE l, h FROM {locks} AS l JOIN {holders} AS h ON h.name = l.name AND h.claim = {id} \
                 WHERE l.name = {of} AND l.version = {} AND h.{held} AND h.expiry > {NOW}",
                first_version(claim.id)
            ),
            live: format!("DELETE FROM {holders} WHERE {mine} AND {held} AND expiry > {NOW}"),
            rest: [
                format!("UPDATE {locks} SET version = version + 1 WHERE name = {of}"),
                format!("DELETE FROM {holders} WHERE {mine} AND {held}"),
                format!(
                    "DELETE FROM {locks} WHERE name = {of} AND NOT EXISTS (SELECT 1 FROM {holders} WHERE name = {of}) \
                     AND NOT EXISTS (SELECT 1 FROM {waiters} WHERE name = {of})"
                ),
            ],
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
             SELECT 1, name, id, expiry, mode, claim, tokens, current, lock_delay, since, state, owner, label \
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

    /// A holder's row, as the second half of `INSERT INTO holders`.
    fn insert_holder(&self, claim: &Claim, condition: &str) -> String {
        let count = match claim.mode {
            Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
            Mode::Shared | Mode::Permit { .. } => 1,
        };
        let label = claim.label.as_deref();
        let label = label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()));
        format!(
            "INSERT INTO {} (name, claim, mode, tokens, current, expiry, lock_delay, since, state, owner, label) \
             SELECT {}, {}, '{}', {count}, 0, {NOW} + {}, {}, {NOW}, 'held', {}, {label} FROM DUAL WHERE {condition}",
            self.tables.holders,
            name(&claim.name),
            bytes(claim.id.as_bytes()),
            lease::mode_text(claim.mode),
            micros(claim.ttl.saturating_add(claim.lock_delay)),
            micros(claim.lock_delay),
            bytes(claim.owner.as_bytes()),
        )
    }
}

/// The tokens of a grant, from the row's id.
fn tokens(answer: &Answer, claim: &Claim) -> Option<Tokens> {
    let id = answer.last_id.filter(|_| answer.affected > 0)?;
    let count = match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    };
    let first = Token(id.checked_mul(PER_ID)?);
    Some(Tokens { first, count })
}

fn name(name: &LockName) -> String {
    bytes(name.as_str().as_bytes())
}

/// A list of ids from first tokens.
fn ids<'a>(firsts: impl IntoIterator<Item = &'a Token>) -> String {
    let ids = firsts
        .into_iter()
        .map(|first| (first.get() / PER_ID).to_string());
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
            view.waiters.push(WaiterView { owner, mode });
        }
    }
    views
}

#[async_trait]
impl Dialect for MySql {
    type Session = Session;

    async fn connect(&self) -> Result<Session> {
        let (conn, facts, trace) = connect(&self.config).await?;
        let compounds = facts.takes_compounds();
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        let floor = Token(0);
        let mut session = Session {
            conn,
            floor,
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
        match self.check_format(&mut session).await {
            Err(Trouble::NoSchema(_)) => {
                self.make_schema(&mut session).await.map_err(explain)?;
            }
            checked => checked.map_err(explain)?,
        }
        self.seed(&mut session).await.map_err(explain)?;
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
            limits.push(Limit {
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
            lease: LeaseKind::Lease,
            wake: Wake::Poll,
            durability: facts.map_or(fencelock_core::Durability::Process, Facts::durability),
            clock: "the database's clock does not jump forward by more than is left of a lease",
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(100 * 365 * 86_400),
            limits,
        }
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.config, &self.tables).await
    }

    async fn make_schema(&self, session: &mut Session) -> Tried<()> {
        for statement in self.tables.schema(For::Leases) {
            let mut request = Request::default();
            request.push(statement);
            if let Err(error) = request.run(&mut session.conn).await {
                let action = format!("make the tables {}_...", self.config.table);
                return Err(Trouble::Told(told(&self.config.store, &action, error)));
            }
        }
        self.check_format(session).await
    }

    async fn seed(&self, session: &mut Session) -> Tried<()> {
        // A row with an id lifts the counter above it, and never lowers it. Ten microseconds for each id and 16 tokens
        // for each: below 2^53 until the year 2148, and no server grants so fast as to overtake time.
        let holders = &self.tables.holders;
        let mut request = Request::default();
        request.push(format!("SET @fencelock_id = {NOW} DIV 10"));
        request.push("START TRANSACTION");
        request.push(format!(
            "INSERT IGNORE INTO {holders} (id, name, claim, mode, tokens, current, expiry, lock_delay, since, state, owner) \
             VALUES (@fencelock_id, '', LPAD(CONNECTION_ID(), 16, '0'), 'x', 1, 0, 0, 0, 0, 'seed', '')"
        ));
        request.push(format!(
            "DELETE FROM {holders} WHERE id = @fencelock_id AND state = 'seed'"
        ));
        request.push("COMMIT");
        let chosen = request.push("SELECT @fencelock_id");
        let answers = self.run(session, &request).await?;
        let id = answers[chosen]
            .rows
            .first()
            .and_then(|row| row.get::<u64, _>(0));
        session.floor = Token(id.unwrap_or(0) * PER_ID);
        Ok(())
    }

    fn floor(&self, session: &Session) -> Token {
        session.floor
    }

    async fn take_free(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        let mut request = Request::default();
        request.push("START TRANSACTION");
        request.push(format!(
            "INSERT IGNORE INTO {} (name, version) VALUES ({}, {})",
            self.tables.locks,
            name(&claim.name),
            first_version(claim.id)
        ));
        // The token is drawn here, after the gate was won: whoever comes next waits for the end of this transaction.
        let insert = request.push(self.insert_holder(claim, "ROW_COUNT() = 1"));
        request.push("COMMIT");
        let answers = self.run(session, &request).await?;
        Ok(tokens(&answers[insert], claim))
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        let Release { alone, live, rest } = self.release_of(claim);
        let mut request = Request::default();
        if session.compounds {
            // What is not needed is not even read by the server.
            request.push(&alone);
            let told = request.push(format!(
                "EXECUTE IMMEDIATE IF(ROW_COUNT() = 2, 'DO 0', \"BEGIN NOT ATOMIC START TRANSACTION; {}; {live}; \
                 SET @fencelock_live = ROW_COUNT(); {}; COMMIT; SELECT @fencelock_live; END\")",
                rest[0],
                rest[1..].join("; "),
            ));
            let answers = self.run(session, &request).await?;
            let row = answers[told].rows.first();
            let live = row.and_then(|row| row.get::<u64, _>(0));
            return Ok(answers[0].affected == 2 || live == Some(1));
        }
        request.push("START TRANSACTION");
        request.push(&rest[0]);
        let live = request.push(live);
        for statement in &rest[1..] {
            request.push(statement);
        }
        request.push("COMMIT");
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
        let (of, go) = (name(write.name), "@fencelock_go = 1");
        let mut request = Request::default();
        request.push("START TRANSACTION");
        let gate = request.push(format!(
            "UPDATE {locks} SET version = version + 1 WHERE name = {of} AND version = {}",
            write.version
        ));
        request.push("SET @fencelock_go = ROW_COUNT()");
        let mut dead = None;
        if !write.dead_holders.is_empty() {
            let ids = ids(&write.dead_holders);
            dead = Some(request.push(format!(
                "DELETE FROM {holders} WHERE id IN ({ids}) AND expiry <= {NOW} AND {go}"
            )));
            let count = write.dead_holders.len();
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
        let release = |first: Token| {
            let id = first.get() / PER_ID;
            format!("DELETE FROM {holders} WHERE id = {id} AND {go}")
        };
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
                if let Some(first) = instead {
                    request.push(release(first));
                }
                granted = Some((claim, request.push(self.insert_holder(claim, go))));
            }
            Change::Stand { claim, ticket } => {
                request.push(format!(
                    "INSERT INTO {waiters} (name, ticket, claim, mode, expiry, owner) \
                     SELECT {of}, {ticket}, {}, '{}', {NOW} + {}, {} FROM DUAL WHERE {go}",
                    bytes(claim.id.as_bytes()),
                    lease::mode_text(claim.mode),
                    micros(crate::server::CLAIM_WINDOW),
                    bytes(claim.owner.as_bytes()),
                ));
            }
            Change::LeaveLine { ticket } => {
                request.push(leave(ticket));
            }
            Change::Release { first } => {
                request.push(release(first));
            }
            Change::Abandon { first, lock_delay } => {
                let (id, delay) = (first.get() / PER_ID, micros(lock_delay));
                request.push(format!(
                    "UPDATE {holders} SET state = 'abandoned', expiry = LEAST(expiry, {NOW} + {delay}), \
                     lock_delay = {delay} WHERE id = {id} AND {go}"
                ));
            }
            Change::Ask { first } => {
                let id = first.get() / PER_ID;
                request.push(format!(
                    "UPDATE {holders} SET state = 'asked' WHERE id = {id} AND {go}"
                ));
            }
            Change::Bury => {}
        }
        if write.last {
            request.push(format!("DELETE FROM {locks} WHERE name = {of} AND {go}"));
        }
        request.push("COMMIT");
        let answers = self.run(session, &request).await?;
        let buried = dead.map_or(0, |dead| answers[dead].affected);
        if answers[gate].affected == 0 || buried < write.dead_holders.len() as u64 {
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
        let holders = &self.tables.holders;
        let id = |held: &HeldClaim| held.token.get() / PER_ID;
        let live = "expiry > @fencelock_now AND state <> 'abandoned'";
        let mut request = Request::default();
        request.push(format!("SET @fencelock_now = {NOW}"));
        request.push("START TRANSACTION");
        // Those of one length go together; whose token moved on within its grant has more to store.
        let mut alike: std::collections::BTreeMap<(u64, u64), Vec<String>> = Default::default();
        for held in held {
            let claim = &held.claim;
            let length = micros(claim.ttl.saturating_add(claim.lock_delay));
            let delay = micros(claim.lock_delay);
            let current = held.token.get() % PER_ID;
            if current == 0 {
                let ids = alike.entry((length, delay)).or_default();
                ids.push(id(held).to_string());
                continue;
            }
            let label = claim.label.as_deref();
            let label = label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()));
            request.push(format!(
                "UPDATE {holders} SET expiry = @fencelock_now + {length}, lock_delay = {delay}, current = {current}, \
                 owner = {}, label = {label} WHERE id = {} AND {live}",
                bytes(claim.owner.as_bytes()),
                id(held),
            ));
        }
        for ((length, delay), ids) in alike {
            let ids = ids.join(",");
            request.push(format!(
                "UPDATE {holders} SET expiry = @fencelock_now + {length}, lock_delay = {delay} \
                 WHERE id IN ({ids}) AND {live}"
            ));
        }
        let ids = held.iter().map(|held| id(held).to_string());
        let ids = ids.collect::<Vec<_>>().join(",");
        let kept = request.push(format!(
            "SELECT id, claim, state = 'asked' FROM {holders} WHERE id IN ({ids}) AND {live}"
        ));
        request.push("COMMIT");
        let mut answers = self.run(session, &request).await?;
        let rows = std::mem::take(&mut answers[kept].rows).into_iter();
        let kept: std::collections::HashMap<u64, (Vec<u8>, bool)> = rows
            .filter_map(|row| from_row_opt::<(u64, Vec<u8>, bool)>(row).ok())
            .map(|(id, claim, asked)| (id, (claim, asked)))
            .collect();
        let renewed = held.iter().map(|held| {
            let (claim, asked) = kept.get(&id(held))?;
            (claim == held.claim.id.as_bytes()).then_some(*asked)
        });
        Ok(renewed.collect())
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
        let mut request = Request::default();
        request.push(format!(
            "SELECT DISTINCT name FROM {} WHERE name >= {} AND name > {} AND expiry > {NOW} ORDER BY name LIMIT {limit}",
            self.tables.holders,
            bytes(prefix.as_bytes()),
            bytes(after.as_bytes()),
        ));
        let answers = self.run(session, &request).await?;
        let found = answers[0]
            .rows
            .iter()
            .filter_map(|row| row.get::<Vec<u8>, _>(0));
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
            holders, waiters, ..
        } = &self.tables;
        let mut request = Request::default();
        request.push(format!(
            "(SELECT name FROM {holders} WHERE expiry <= {NOW} LIMIT {BURIED_AT_ONCE}) UNION \
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
    async fn look_at(&self, session: &mut Session, names: &str) -> Tried<Vec<LockView>> {
        let mut request = Request::default();
        request.push(self.all_rows(names));
        let mut answers = self.run(session, &request).await?;
        let lines = std::mem::take(&mut answers[0].rows).into_iter();
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
