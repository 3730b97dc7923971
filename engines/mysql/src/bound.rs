//! The connection-bound strategies: `get-lock` keeps a lock of the server's own for a name, `for-update` a row locked in a
//! transaction.
//!
//! * `get-lock` hashes the name together with those of the database and the tables: the server has one name space for all
//!   its databases, takes 64 characters, and does not tell upper from lower case.
//! * `for-update` locks an existing row, which is made first, and deleted by whoever clears up when nobody locks it. Rows
//!   are found by the primary key and locked at READ COMMITTED, so nothing but the row is locked: no gap, no table.
//! * The server's idle timeout is the lease. It counts in seconds.
//! * The tokens of `get-lock` come from a counter in the server's memory: see [`counter`](super::counter). Those of
//!   `for-update` come from AUTO_INCREMENT, which no transaction takes back: its rows are rolled back, which is cheaper than
//!   to commit them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, Evict, HolderView, LockView, Page, WaiterView};
use fencelock_core::{
    ClaimId, Clock, Durability, Error, Finding, LeaseKind, LockName, Mode, Order, Promises,
    Purpose, Result, Token, Tokens, Wake,
};
use fencelock_sql::bound::{Dialect, Record, SessionId, Settings, Tie};
use fencelock_sql::lease::MOST_TOKENS;
use fencelock_sql::server::micros;
use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::config::{Config, Strategy};
use super::diagnose;
use super::line::{Failed, Line, Session};
use super::tables::Tables;
use super::wire::{self, Answer, NOW, Request, bytes};

/// The longest idle timeout of the servers is the longest ttl.
const MAX_TTL: Duration = Duration::from_secs(31_536_000);
/// How long one statement waits in the server, in seconds. A waiter that vanished without a word is gone after that.
pub(super) const WAIT: u64 = 30;
/// How many rows that nobody uses are deleted at once.
const SWEPT_AT_ONCE: usize = 250;
/// For how long whoever clears up may have rows locked, in seconds.
const SWEEP: u64 = 2;
/// What the control connection is allowed else.
const LONG: &str = "SET SESSION wait_timeout = 28800";
/// How often the connections that hold are looked for.
const WATCH: Duration = Duration::from_millis(250);
/// A long line is cut in views.
const MOST_SHOWN: usize = 1000;

/// One of the two.
pub(crate) struct Ways {
    line: Line,
    get_lock: bool,
    /// Takes a lock of the server's own that is free. It draws nothing if tokens are counted by another section.
    take: Arc<str>,
    /// Whether tokens are counted by this section still: an old dump may have been restored since.
    section: String,
}

/// Takes a lock of the server's own, waiting for so many seconds. The condition is evaluated first, and a number is drawn when
/// the lock was had by then: 0 from a server that takes no writes any more, since another one grants by now.
const TAKE: &str = "SELECT IF(GET_LOCK(?, ?) = 1, IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), UUID_SHORT(), CAST(0 AS UNSIGNED)), NULL) AS number";
/// The same question, for when it was long ago that the statement began.
const TAKES_WRITES: &str = "CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')";
const RELEASE: &str = "SELECT RELEASE_LOCK(?) AS released";

impl Ways {
    pub(crate) fn new(config: Config) -> Self {
        let get_lock = config.strategy == Strategy::GetLock;
        let line = Line::new(config);
        let counter = &line.tables.counter;
        let section =
            format!("EXISTS (SELECT 1 FROM {counter} WHERE id = 1 AND origin = ? AND base = ?)");
        let draws = format!("{TAKES_WRITES} AND {section}");
        let take = TAKE.replacen(TAKES_WRITES, &draws, 1);
        Self {
            take: take.into(),
            section,
            line,
            get_lock,
        }
    }

    const fn strategy(&self) -> &'static str {
        match self.get_lock {
            true => "get-lock",
            false => "for-update",
        }
    }

    fn tables(&self) -> &Tables {
        &self.line.tables
    }

    /// The server's name of a lock.
    fn lock_key(&self, session: &Session, name: &LockName) -> String {
        session.key(&self.line.config.table, "", name.as_str().as_bytes())
    }

    /// Held by whoever deletes unused rows, for a moment, and by whoever must know whether a row is in use.
    fn sweep_key(&self, session: &Session) -> String {
        session.key(&self.line.config.table, "s", b"")
    }

    /// Runs a request, and draws a token if there is a row in `from`: that the lock was had.
    async fn draw(
        &self,
        session: &mut Session,
        mut request: Request,
        from: &str,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failed> {
        let tokens = &self.tables().tokens;
        let at = request.push(format!("INSERT INTO {tokens} (id) SELECT NULL FROM {from}"));
        let answers = session.run(request).await?;
        let id = answers[at].last_id.filter(|_| answers[at].affected > 0);
        let drawn = id.and_then(|id| id.checked_mul(u64::from(MOST_TOKENS)));
        let Some(first) = drawn.map(Token) else {
            return Ok(None);
        };
        if first < session.floor {
            // The counter was lost, and what it gives is worth nothing. The next connection lifts it.
            return Err(session.give_up("the counter of tokens went back; it is lifted anew"));
        }
        session.floor = first;
        Ok(Some(tokens_from(first, claim)))
    }

    /// Takes a lock of the server's own, waiting for so many seconds, and draws a token after that.
    async fn get_lock(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
        seconds: u64,
    ) -> Result<Option<Tokens>, Failed> {
        let key = self.lock_key(session, &claim.name);
        let mut request = session.request(idle);
        let mut taken = 0;
        if request.is_empty() && seconds == 0 {
            let mut values = vec![key.into(), seconds.into()];
            values.extend(session.section.values());
            request = Request::prepared(Arc::clone(&self.take), values);
        } else {
            let take = TAKE.replacen('?', &format!("'{key}'"), 1);
            taken = request.push(take.replacen('?', &seconds.to_string(), 1));
            let [origin, base] = session.section.numbers();
            let section = self.section.replacen('?', &origin.to_string(), 1);
            let section = section.replacen('?', &base.to_string(), 1);
            request.push(format!("SELECT {TAKES_WRITES} AND {section}"));
        }
        let answers = session.run(request).await?;
        let number = |answer: &Answer| answer.rows.first()?.get::<Option<u64>, _>(0)?;
        let Some(drawn) = number(&answers[taken]) else {
            return Ok(None);
        };
        if drawn == 0 || answers.last().and_then(number) == Some(0) {
            let why = "the server takes no writes any more, or tokens are counted anew";
            return Err(session.give_up(why));
        }
        let first = self.line.token_of(session, drawn).await?;
        Ok(Some(tokens_from(first, claim)))
    }

    /// A row that nobody locks is locked in a transaction, which stays open if that was to be had.
    async fn lock_free_row(
        &self,
        session: &mut Session,
        idle: Duration,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failed> {
        self.line.lift_if_due(session).await?;
        let mut request = session.request(idle);
        request.push("START TRANSACTION");
        let free = format!(
            "{} WHERE name = {} FOR UPDATE SKIP LOCKED",
            self.tables().names,
            bytes(claim.name.as_str().as_bytes())
        );
        let drawn = self.draw(session, request, &free, claim).await?;
        if drawn.is_none() {
            session.run(Request::of("ROLLBACK")).await?;
        }
        Ok(drawn)
    }

    /// The same, waiting for whoever locks it.
    async fn lock_row(
        &self,
        session: &mut Session,
        idle: Duration,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failed> {
        // While it waits for whoever locks the row, nobody can put an old table in the place of this one.
        self.line.lift_if_due(session).await?;
        let mut request = session.request(idle);
        request.push("SET @fencelock_got = 0");
        request.push("START TRANSACTION");
        request.push(format!(
            "SELECT 1 INTO @fencelock_got FROM {} WHERE name = {} FOR UPDATE",
            self.tables().names,
            bytes(claim.name.as_str().as_bytes())
        ));
        // No table is open for writing while it waits, which would be in the way of backups.
        let got = "DUAL WHERE @fencelock_got = 1";
        let drawn = self.draw(session, request, got, claim).await?;
        if drawn.is_none() {
            session.run(Request::of("ROLLBACK")).await?;
        }
        Ok(drawn)
    }

    /// Makes the row if it is not there. Asked first, since an insertion waits for whoever has it.
    async fn make_row(&self, session: &mut Session, claim: &Claim) -> Result<(), Failed> {
        let (names, name) = (&self.tables().names, claim.name.as_str().as_bytes());
        let name = bytes(name);
        let ask = Request::of(format!("SELECT 1 FROM {names} WHERE name = {name}"));
        if !session.run(ask).await?[0].rows.is_empty() {
            return Ok(());
        }
        let make = format!("INSERT IGNORE INTO {names} (name) VALUES ({name})");
        session.run(Request::of(make)).await.map(drop)
    }

    async fn try_row(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>, Failed> {
        if let Some(tokens) = self.lock_free_row(session, idle, claim).await? {
            return Ok(Some(tokens));
        }
        // Whoever makes the same row at this moment, and takes it, is in the way for no longer than this.
        session
            .run(Request::of("SET SESSION innodb_lock_wait_timeout = 1"))
            .await?;
        match self.make_row(session, claim).await {
            Ok(()) => {}
            Err(Failed::Again(_)) => {
                session.run(Request::of(patience())).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        // Whoever clears up locks rows for a moment. That is no hold: wait until it is over, and let nobody begin.
        let sweep = self.sweep_key(session);
        let mut wait = Request::of(patience());
        wait.push(format!("DO GET_LOCK('{sweep}', {})", SWEEP + 1));
        session.run(wait).await?;
        let tokens = self.lock_free_row(session, idle, claim).await?;
        let go_on = format!("DO RELEASE_LOCK('{sweep}')");
        session.run(Request::of(go_on)).await?;
        Ok(tokens)
    }

    async fn try_any(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>, Failed> {
        if !self.get_lock {
            return self.try_row(session, claim, idle).await;
        }
        self.get_lock(session, claim, idle, 0).await
    }

    async fn take_any(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>, Failed> {
        if !self.get_lock {
            self.make_row(session, claim).await?;
            // None if the row was deleted while this waited for it.
            return self.lock_row(session, idle, claim).await;
        }
        self.get_lock(session, claim, idle, WAIT).await
    }

    /// What is written down, of connections that live.
    fn live(&self, what: &str, rest: &str) -> String {
        format!(
            "SELECT {what} FROM {} AS b JOIN information_schema.processlist AS p ON p.id = b.conn AND p.host = b.host \
             WHERE b.strategy = '{}' AND {rest}",
            self.tables().bound,
            self.strategy()
        )
    }

    /// The rows that there are to look at. Whoever only looks makes no tables, and sees nothing where there are none.
    async fn seen(&self, control: &mut Session, ask: String) -> Result<Vec<Row>, Failed> {
        match control.run(Request::of(ask)).await {
            Ok(mut answers) => Ok(std::mem::take(&mut answers[0].rows)),
            Err(Failed::NoSchema(_)) if self.line.config.inspect_only => Ok(Vec::new()),
            Err(failed) => Err(failed),
        }
    }

    async fn look_at(&self, control: &mut Session, names: &str) -> Result<Vec<LockView>, Failed> {
        // Idle since the last sign of life. Signed, since the clock may be behind what was written, and the server refuses a
        // statement in which an unsigned number would be below zero.
        let what = format!(
            "b.name, b.count, b.claim, b.owner, b.token, b.label, {NOW} - CAST(b.since AS SIGNED), \
             IF(b.ttl < p.time * 1000000, 0, b.ttl - p.time * 1000000)"
        );
        let rest = format!("b.name IN ({names}) ORDER BY b.name, b.count = 0, b.since, b.token");
        let rows = self.seen(control, self.live(&what, &rest)).await?;
        let mut views: Vec<LockView> = Vec::new();
        for mut row in rows {
            // What another program wrote is not shown.
            let Some(name) = name_of(&mut row, 0) else {
                continue;
            };
            if views.last().is_none_or(|view| view.name != name) {
                views.push(LockView::free(name));
            }
            let Some(view) = views.last_mut() else {
                continue;
            };
            let (Some(count), Some(holder)) = (take::<u64>(&mut row, 1), holder(&mut row)) else {
                continue;
            };
            if count > 0 {
                view.holders.push(holder);
            } else if view.waiters.len() < MOST_SHOWN {
                let HolderView {
                    owner, mode, label, ..
                } = holder;
                view.waiters.push(WaiterView { owner, mode, label });
            }
        }
        Ok(views)
    }

    async fn list_names(
        &self,
        control: &mut Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>, Failed> {
        let rest = format!(
            "b.count > 0 AND b.name >= {} AND b.name > {} ORDER BY b.name LIMIT {limit}",
            bytes(prefix.as_bytes()),
            bytes(after.as_bytes())
        );
        let mut rows = self
            .seen(control, self.live("DISTINCT b.name", &rest))
            .await?;
        let found: Vec<Vec<u8>> = rows.iter_mut().filter_map(|row| take(row, 0)).collect();
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
            items = self.look_at(control, &names.join(",")).await?;
            items.retain(|view| !view.holders.is_empty());
        }
        Ok(Page { items, next })
    }

    /// Deletes the rows that nobody locks; whether there may be more.
    async fn sweep_rows(&self, control: &mut Session) -> Result<bool, Failed> {
        let names = &self.tables().names;
        let sweep = self.sweep_key(control);
        // Between the two requests this process may be stopped.
        let mut lock = Request::of(format!("SET SESSION wait_timeout = {SWEEP}"));
        let had = lock.push(format!("SELECT GET_LOCK('{sweep}', 0)"));
        let answers = control.run(lock).await?;
        let had: Option<u64> = answers[had]
            .rows
            .first()
            .and_then(|row| row.get(0))
            .flatten();
        if had != Some(1) {
            control.run(Request::of(LONG)).await?;
            return Ok(false);
        }
        let mut lock = Request::of("START TRANSACTION");
        let free = lock.push(format!(
            "SELECT name FROM {names} LIMIT {SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED"
        ));
        let mut answers = control.run(lock).await?;
        let free = answers[free]
            .rows
            .iter_mut()
            .filter_map(|row| take::<Vec<u8>>(row, 0));
        let free: Vec<String> = free.map(|name| bytes(&name)).collect();
        let mut delete = Request::default();
        // Each by itself. Asked for many, the server would rather read a small table from end to end, whatever the index that it
        // is told to use, and wait for whoever holds one of the others.
        for name in &free {
            delete.push(format!("DELETE FROM {names} WHERE name = {name}"));
        }
        delete.push("COMMIT");
        delete.push(format!("DO RELEASE_LOCK('{sweep}')"));
        delete.push(LONG);
        control.run(delete).await?;
        Ok(free.len() == SWEPT_AT_ONCE)
    }

    /// Deletes what was written down of connections that are gone. Those of other users cannot be seen by everybody, and
    /// are left to them.
    async fn forget_gone(&self, control: &mut Session) -> Result<(), Failed> {
        let bound = &self.tables().bound;
        let ask = Request::of(format!(
            "SELECT b.claim, b.conn FROM {bound} AS b LEFT JOIN information_schema.processlist AS p \
             ON p.id = b.conn AND p.host = b.host WHERE p.id IS NULL AND b.login = {}",
            bytes(control.login.as_bytes())
        ));
        let mut answers = control.run(ask).await?;
        let mut forget = Request::default();
        for row in &mut answers[0].rows {
            if let (Some(claim), Some(conn)) = (take::<Vec<u8>>(row, 0), take::<u64>(row, 1)) {
                let claim = bytes(&claim);
                forget.push(format!(
                    "DELETE FROM {bound} WHERE claim = {claim} AND conn = {conn}"
                ));
            }
        }
        match forget.is_empty() {
            true => Ok(()),
            false => control.run(forget).await.map(drop),
        }
    }

    async fn end_one(&self, control: &mut Session, session: &SessionId) -> Result<bool, Failed> {
        let Some((id, host)) = session.0.split_once(' ') else {
            return Ok(true);
        };
        let host = bytes(host.as_bytes());
        let there = format!(
            "SELECT 1 FROM information_schema.processlist WHERE id = {id} AND host = {host}"
        );
        for _ in 0..100 {
            if control.run(Request::of(&there)).await?[0].rows.is_empty() {
                let bound = &self.tables().bound;
                let forget = format!("DELETE FROM {bound} WHERE conn = {id} AND host = {host}");
                control.run(Request::of(forget)).await?;
                return Ok(true);
            }
            match control
                .run(Request::of(format!("KILL CONNECTION {id}")))
                .await
            {
                // It has just ended by itself.
                Err(Failed::Told(Error::Internal { .. })) | Ok(_) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(false)
    }

    fn record_one(&self, record: &Record, login: &str) -> String {
        let (conn, host) = record.session.0.split_once(' ').unwrap_or(("0", ""));
        let held = micros(Clock::Boot.now().since(record.since));
        let label = record.label.as_deref();
        let label = label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()));
        let (first, count) = (record.tokens.first, record.tokens.count);
        let values = format!(
            "first = {first}, count = {count}, token = {}, owner = {}, label = {label}, ttl = {}, conn = {conn}, \
             host = {}, login = {}",
            record.token,
            bytes(record.owner.as_bytes()),
            micros(record.ttl),
            bytes(host.as_bytes()),
            bytes(login.as_bytes()),
        );
        format!(
            "INSERT INTO {} SET claim = {}, strategy = '{}', name = {}, since = {NOW} - {held}, {values} \
             ON DUPLICATE KEY UPDATE {values}",
            self.tables().bound,
            bytes(record.claim.as_bytes()),
            self.strategy(),
            bytes(record.name.as_str().as_bytes()),
        )
    }

    async fn record_all(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>, Failed> {
        let mut request = Request::default();
        for record in records {
            request.push(self.record_one(record, &control.login));
        }
        if asked.is_empty() {
            if !request.is_empty() {
                control.run(request).await?;
            }
            return Ok(Vec::new());
        }
        let of: Vec<String> = asked.iter().map(|claim| bytes(claim.as_bytes())).collect();
        let told = request.push(format!(
            "SELECT claim FROM {} WHERE asked = 1 AND claim IN ({})",
            self.tables().bound,
            of.join(",")
        ));
        let mut answers = control.run(request).await?;
        let told = answers[told]
            .rows
            .iter_mut()
            .filter_map(|row| claim_of(row, 0));
        Ok(told.collect())
    }

    async fn written(&self, control: &mut Session, of: &LockName) -> Result<bool, Failed> {
        let name = bytes(of.as_str().as_bytes());
        let says_one = |answer: &Answer| -> bool {
            let row = answer.rows.first();
            row.and_then(|row| row.get::<u64, _>(0)) == Some(1)
        };
        if self.get_lock {
            let ask = format!(
                "SELECT used.id IS NULL OR EXISTS (SELECT 1 FROM {} AS b WHERE b.strategy = 'get-lock' AND b.name = {name} \
                 AND b.conn = used.id AND b.count > 0) FROM (SELECT IS_USED_LOCK('{}') AS id) AS used",
                self.tables().bound,
                self.lock_key(control, of)
            );
            return Ok(says_one(&control.run(Request::of(ask)).await?[0]));
        }
        let rest = format!("b.name = {name} AND b.count > 0");
        let live = control.run(Request::of(self.live("1", &rest))).await?;
        if !live[0].rows.is_empty() {
            return Ok(true);
        }
        // Locked by nobody, or not there. Who takes meanwhile waits for the end of this, as for that of clearing up.
        let (names, sweep) = (&self.tables().names, self.sweep_key(control));
        let mut ask = Request::of(format!("DO GET_LOCK('{sweep}', {})", SWEEP + 1));
        ask.push("START TRANSACTION");
        ask.push("SET @fencelock_free = 0");
        ask.push(format!(
            "SELECT COUNT(*) INTO @fencelock_free FROM {names} WHERE name = {name} FOR UPDATE SKIP LOCKED"
        ));
        ask.push("ROLLBACK");
        ask.push(format!("DO RELEASE_LOCK('{sweep}')"));
        let free = ask.push(format!(
            "SELECT (SELECT COUNT(*) FROM {names} WHERE name = {name}) <= @fencelock_free"
        ));
        Ok(says_one(&control.run(ask).await?[free]))
    }
}

fn tokens_from(first: Token, claim: &Claim) -> Tokens {
    let count = claim.reserve.clamp(1, MOST_TOKENS);
    Tokens { first, count }
}

/// What is waited for in the server while a lock is, and no longer than this.
fn patience() -> String {
    format!("SET SESSION innodb_lock_wait_timeout = {WAIT}")
}

fn take<T: FromValue>(row: &mut Row, at: usize) -> Option<T> {
    row.take_opt(at)?.ok()
}

fn text_of(row: &mut Row, at: usize) -> Option<String> {
    String::from_utf8(take(row, at)?).ok()
}

fn name_of(row: &mut Row, at: usize) -> Option<LockName> {
    LockName::new(&text_of(row, at)?).ok()
}

fn claim_of(row: &mut Row, at: usize) -> Option<ClaimId> {
    let bytes: Vec<u8> = take(row, at)?;
    Some(ClaimId::from_bytes(bytes.try_into().ok()?))
}

/// From the columns of [`Ways::look_at`].
fn holder(row: &mut Row) -> Option<HolderView> {
    let label: Option<Vec<u8>> = take(row, 5)?;
    let held: i64 = take(row, 6)?;
    Some(HolderView {
        claim: Some(claim_of(row, 2)?),
        owner: text_of(row, 3)?,
        token: Some(Token(take(row, 4)?)),
        mode: Mode::Exclusive,
        ttl_left: Some(Duration::from_micros(take(row, 7)?)),
        lock_delay: Duration::ZERO,
        held: Some(Duration::from_micros(held.max(0).unsigned_abs())),
        label: match label {
            Some(label) => Some(String::from_utf8(label).ok()?),
            None => None,
        },
    })
}

#[async_trait]
impl Dialect for Ways {
    type Session = Session;

    fn settings(&self) -> Settings {
        self.line.settings()
    }

    fn inspects(&self) -> bool {
        self.line.config.inspect_only
    }

    async fn promises(&self, control: &mut Session) -> Result<Promises> {
        let facts = control.facts.clone();
        if !self.inspects() {
            facts.check_bound(&self.line.config.store, self.strategy())?;
        }
        let mut limits = Vec::new();
        if self.line.config.hosts.len() > 1 {
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: "after a switch-over to another host nobody there knows who held: a holder that is still cut off from the \
                       new host believes until its ttl is over"
                    .into(),
                change: "use the default strategy, lease, with semi-synchronous replication, or one host".into(),
            });
        }
        Ok(Promises {
            engine: "mysql",
            order: Order::Unordered,
            shared: false,
            permits: false,
            lock_delay: false,
            ranges: true,
            portable: false,
            lease: LeaseKind::Connection,
            wake: Wake::Push,
            // A hold ends with the server.
            durability: Durability::Volatile,
            clock: match self.get_lock {
                true => "the server's timers run at about the right rate",
                // Tokens are lifted to the time by the next connection.
                false => {
                    "the server's timers run at about the right rate; its wall clock, which tokens are lifted to after a start, is not set back by more than it was down"
                }
            },
            min_ttl: Duration::from_secs(1),
            max_ttl: MAX_TTL,
            claim_window: fencelock_sql::bound::CLAIM_WINDOW,
            limits,
        })
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.line.config, &self.line.tables).await
    }

    fn is_in_the_way(error: &Error) -> bool {
        let Error::Unavailable { cause, .. } = error else {
            return false;
        };
        match cause.downcast_ref() {
            Some(mysql_async::Error::Server(said)) => wire::is_in_the_way(said.code),
            _ => false,
        }
    }

    async fn connect(&self, tie: Arc<Tie>) -> Result<Session> {
        self.line.connect(tie).await
    }

    fn id(&self, session: &Session) -> SessionId {
        session.id.clone()
    }

    async fn try_take(
        &self,
        session: &mut Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>> {
        let taken = self.try_any(session, claim, idle).await;
        let action = || format!("take lock {}", claim.name);
        taken.map_err(|failed| self.line.error(action(), failed))
    }

    async fn take(&self, session: &mut Session, claim: &Claim, idle: Duration) -> Result<Tokens> {
        let failed = |failed| self.line.error(format!("take lock {}", claim.name), failed);
        loop {
            match self.take_any(session, claim, idle).await {
                Ok(Some(tokens)) => return Ok(tokens),
                Ok(None) => {}
                // A deadlock, or the end of one statement's patience: with nothing, also if the lock was had by then.
                Err(Failed::Again(_)) => {
                    let mut undo = Request::of("ROLLBACK");
                    if self.get_lock {
                        let key = self.lock_key(session, &claim.name);
                        undo.push(format!("DO RELEASE_LOCK('{key}')"));
                    }
                    session.run(undo).await.map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn keep(&self, session: &mut Session, idle: Duration) -> Result<()> {
        let mut request = session.request(idle);
        if request.is_empty() {
            request.push("DO 0");
        }
        let kept = session.run(request).await;
        kept.map(drop)
            .map_err(|failed| self.line.error("renew a lock", failed))
    }

    async fn downgrade(&self, _session: &mut Session, _claim: &Claim) -> Result<Tokens> {
        let why = format!("strategy={} has exclusive locks only", self.strategy());
        Err(Error::unsupported(self, "shared mode", why))
    }

    async fn give_back(&self, session: &mut Session, claim: &Claim) -> Result<bool> {
        let release = match self.get_lock {
            true => {
                let key = self.lock_key(session, &claim.name);
                Request::prepared(RELEASE, vec![key.into()])
            }
            false => Request::of("ROLLBACK"),
        };
        let released = session.run(release).await;
        let action = || format!("release lock {}", claim.name);
        let answers = released.map_err(|failed| self.line.error(action(), failed))?;
        let one = |row: &Row| row.get::<Option<u64>, _>(0).flatten() == Some(1);
        Ok(!self.get_lock || answers[0].rows.first().is_some_and(one))
    }

    async fn record(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        let told = self.record_all(control, records, asked).await;
        told.map_err(|failed| self.line.error("write down who holds", failed))
    }

    async fn forget(&self, control: &mut Session, claim: ClaimId) -> Result<()> {
        let bound = &self.tables().bound;
        let claim = bytes(claim.as_bytes());
        let forget = Request::of(format!("DELETE FROM {bound} WHERE claim = {claim}"));
        let done = control.run(forget).await;
        done.map(drop)
            .map_err(|failed| self.line.error("release a lock", failed))
    }

    async fn look(&self, control: &mut Session, name: &LockName) -> Result<LockView> {
        let views = self
            .look_at(control, &bytes(name.as_str().as_bytes()))
            .await;
        let action = || format!("look at lock {name}");
        let mut views = views.map_err(|failed| self.line.error(action(), failed))?;
        Ok(views.pop().unwrap_or_else(|| LockView::free(name.clone())))
    }

    async fn is_written(&self, control: &mut Session, name: &LockName) -> Result<bool> {
        let written = self.written(control, name).await;
        written.map_err(|failed| self.line.error(format!("look at lock {name}"), failed))
    }

    async fn list(
        &self,
        control: &mut Session,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let after = at.map_or("", |cursor| &cursor.0);
        let page = self
            .list_names(control, prefix, after, limit.clamp(1, 1000))
            .await;
        page.map_err(|failed| self.line.error("list locks", failed))
    }

    async fn evict(
        &self,
        control: &mut Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool> {
        let action = format!("take lock {name} from its holder");
        let rest = format!(
            "b.name = {} AND {token} >= b.first AND {token} < b.first + b.count",
            bytes(name.as_str().as_bytes())
        );
        let ask = Request::of(self.live("b.claim, CONCAT(b.conn, ' ', b.host)", &rest));
        let answers = control.run(ask).await;
        let mut answers = answers.map_err(|failed| self.line.error(&action, failed))?;
        let Some(row) = answers[0].rows.first_mut() else {
            return Ok(false);
        };
        let (claim, session) = (claim_of(row, 0), text_of(row, 1));
        match (how, claim, session) {
            (Evict::Release, _, Some(session)) => self.end(control, &SessionId(session)).await?,
            (Evict::Ask, Some(claim), _) => {
                let bound = &self.tables().bound;
                let claim = bytes(claim.as_bytes());
                let ask = Request::of(format!(
                    "UPDATE {bound} SET asked = 1 WHERE claim = {claim}"
                ));
                let asked = control.run(ask).await;
                asked.map_err(|failed| self.line.error(&action, failed))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    async fn lives(&self, control: &mut Session, session: &SessionId) -> Result<bool> {
        let gone = self.gone(control, std::slice::from_ref(session)).await?;
        Ok(gone.is_empty())
    }

    async fn end(&self, control: &mut Session, session: &SessionId) -> Result<()> {
        let action = "end a connection that was given up (needs the same user, or the right to end others' connections)";
        let ended = self.end_one(control, session).await;
        match ended.map_err(|failed| self.line.error(action, failed))? {
            true => Ok(()),
            false => {
                let why = "the connection has not ended yet";
                Err(Error::unavailable(self, action, why))
            }
        }
    }

    async fn sweep(&self, control: &mut Session) -> Result<()> {
        let failed = |failed| self.line.error("clear up", failed);
        self.forget_gone(control).await.map_err(failed)?;
        while !self.get_lock && self.sweep_rows(control).await.map_err(failed)? {}
        Ok(())
    }

    /// Nothing tells that an idle connection of this driver has ended.
    fn watch(&self) -> Option<Duration> {
        Some(WATCH)
    }

    async fn gone(&self, control: &mut Session, sessions: &[SessionId]) -> Result<Vec<SessionId>> {
        let ids = sessions.iter().filter_map(|id| id.0.split_once(' '));
        let ids: Vec<&str> = ids.map(|(id, _)| id).collect();
        let ask = Request::of(format!(
            "SELECT CONCAT(id, ' ', host) FROM information_schema.processlist WHERE id IN ({})",
            ids.join(",")
        ));
        let answers = control.run(ask).await;
        let mut answers =
            answers.map_err(|failed| self.line.error("look for connections", failed))?;
        let alive = answers[0].rows.iter_mut().filter_map(|row| text_of(row, 0));
        let alive: std::collections::HashSet<String> = alive.collect();
        Ok(sessions
            .iter()
            .filter(|id| !alive.contains(&id.0))
            .cloned()
            .collect())
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line.config.store)
    }
}

impl fmt::Debug for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ways({self})")
    }
}
