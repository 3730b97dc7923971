//! The lease engine's requests in PostgreSQL's words: each one statement, most of them a function of `schema.sql`, so that
//! each is one round trip and one transaction. Waiters are told by NOTIFY.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, HeldClaim, HolderView, LockView, Page, WaiterView,
};
use fencelock_core::{
    ClaimId, Durability, Error, Finding, LeaseKind, LockName, Mode, Order, Promises, Result, Token,
    Tokens, Wake,
};
use fencelock_sql::bound::Tie;
use fencelock_sql::lease::{Holder, MOST_TOKENS, Rows, Waiter, mode_from, mode_text};
use fencelock_sql::server::{
    CLAIM_WINDOW, Change, DbInstant, Dialect, News, Pushed, Queued, REACH, Seen, Trouble, Write,
    Written, first_version, micros,
};
use tokio::sync::mpsc;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Notification, Row};

use super::connection::{Hear, Server, Session, Values, is_missing};
use super::{diagnose, limits};

/// A long line is cut in views.
const MOST_WAITERS_SHOWN: usize = 1000;
/// How long to wait before listening is tried again.
const DEAF: Duration = Duration::from_millis(200);

const TAKE: &str = "SELECT fencelock_take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const QUEUE: &str = "\
    SELECT version_, ahead_, left_, drawn_ FROM fencelock_queue($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const RELEASE: &str = "SELECT fencelock_let_go($1, $2, $3)";
const WRITE: &str = "SELECT fencelock_change($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";
/// One statement, so of one moment: the gate with the time, the holders, the line.
const READ: &str = "\
    SELECT 0 AS kind, version AS number, fencelock_now() AS expiry, '' AS mode, ''::bytea AS claim, 0 AS count, \
    false AS abandoned, '' AS bell, (SELECT last_value FROM fencelock_tokens) AS drawn FROM fencelock_locks \
    WHERE name = $1 UNION ALL \
    SELECT 1, first, expiry, mode, claim, count, state = 'abandoned', bell, 0 FROM fencelock_holders WHERE name = $1 UNION ALL \
    SELECT 2, ticket, expiry, mode, claim, 0, false, bell, 0 FROM fencelock_waiters WHERE name = $1 ORDER BY 1, 2";
const LOOK: &str = "\
    SELECT name, 1 AS kind, token AS number, mode, owner, claim, expiry - fencelock_now() AS left, lock_delay, \
    fencelock_now() - since AS held, label FROM fencelock_holders WHERE name = ANY($1) UNION ALL \
    SELECT name, 2, ticket, mode, owner, claim, expiry - fencelock_now(), 0, 0, label FROM fencelock_waiters WHERE name = ANY($1) \
    ORDER BY 1, 2, 3";
const LIST: &str = "\
    SELECT DISTINCT name FROM fencelock_holders WHERE name >= $1 AND name > $2 AND expiry > fencelock_now() ORDER BY name LIMIT $3";
const KEEP_PLACE: &str = "\
    UPDATE fencelock_waiters SET expiry = fencelock_now() + $4 \
    WHERE name = $1 AND ticket = $2 AND claim = $3 AND expiry > fencelock_now() RETURNING 1";
const RENEW: &str = "\
    UPDATE fencelock_holders AS h SET expiry = fencelock_now() + v.lease, lock_delay = v.delay, token = v.token, \
    owner = v.owner, label = v.label \
    FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[]) \
    AS v (name, claim, lease, delay, token, owner, label) \
    WHERE h.name = v.name AND h.claim = v.claim AND h.state <> 'abandoned' AND h.expiry > fencelock_now() \
    AND v.token >= h.first AND v.token < h.first + h.count RETURNING h.claim, h.state = 'asked'";
const PROLONG: &str = "\
    UPDATE fencelock_holders SET expiry = greatest(expiry, fencelock_now() + $4), lock_delay = greatest(lock_delay, $5) \
    WHERE name = $1 AND claim = $2 AND first = $3 AND state <> 'abandoned' AND expiry > fencelock_now() RETURNING 1";
const DEAD: &str = "\
    (SELECT name FROM fencelock_holders WHERE expiry <= fencelock_now() LIMIT 100) UNION \
    (SELECT name FROM fencelock_waiters WHERE expiry <= fencelock_now() LIMIT 100)";
const END: &str = "\
    SELECT pg_terminate_backend(pid, 500) FROM pg_stat_activity \
    WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2";

type Tried<T> = Result<T, Trouble>;

/// The tables of the lease engine in a PostgreSQL database.
pub(crate) struct Leases {
    server: Arc<Server>,
    promises: Mutex<Option<Promises>>,
    /// The channel on which this process is told.
    bell: String,
    hears: Arc<AtomicBool>,
    news: tokio::sync::Mutex<mpsc::UnboundedReceiver<News>>,
    tell: mpsc::UnboundedSender<News>,
    listener: tokio::sync::Mutex<Option<(Session, Arc<Tie>)>>,
}

impl Leases {
    pub(crate) fn new(server: Server) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        Self {
            server: Arc::new(server),
            promises: Mutex::default(),
            bell: format!("fencelock_{:032x}", fastrand::u128(..)),
            hears: Arc::default(),
            news: tokio::sync::Mutex::new(news),
            tell,
            listener: tokio::sync::Mutex::default(),
        }
    }

    async fn query(
        &self,
        session: &mut Session,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Tried<Vec<Row>> {
        // Whoever only looks makes no tables, and sees nothing where there are none.
        let failed = |error: tokio_postgres::Error| match is_missing(&error) {
            true if self.server.config.inspect_only => Ok(Vec::new()),
            _ => Err(self.trouble(action, error)),
        };
        let statement = match session.statement(sql).await {
            Ok(statement) => statement,
            Err(error) => return failed(error),
        };
        let rows = session.client.query(&statement, values).await;
        rows.or_else(failed)
    }

    fn trouble(&self, action: &str, error: tokio_postgres::Error) -> Trouble {
        let Some(code) = error.code().cloned() else {
            return Trouble::Gone(error.into());
        };
        let again = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        let gone = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::IDLE_SESSION_TIMEOUT,
        ];
        if again.contains(&code) {
            return Trouble::Again(error.into());
        }
        if gone.contains(&code) {
            return Trouble::Gone(error.into());
        }
        if code == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Trouble::Moved(error.into());
        }
        if is_missing(&error) {
            return Trouble::NoSchema(error.into());
        }
        Trouble::Told(self.server.error(action, error))
    }

    fn unreadable(&self, name: &LockName) -> Trouble {
        Trouble::Told(Error::NotALock {
            store: self.server.to_string(),
            name: name.clone(),
            why: "its rows were stored by a newer version of fencelock, or are damaged; use that version, or another name"
                .into(),
        })
    }

    /// Connects a listener, for as long as it takes.
    async fn listen(&self) -> (Session, Arc<Tie>) {
        loop {
            let tell = self.tell.clone();
            let hear: Hear = Arc::new(move |told: Notification| {
                if let Some(news) = news(told.payload()) {
                    // Nobody listens once the engine is gone.
                    let _ = tell.send(news);
                }
            });
            let (tell, hears) = (self.tell.clone(), Arc::clone(&self.hears));
            let tie = Tie::with(move || {
                hears.store(false, Ordering::SeqCst);
                let _ = tell.send(News::Gap);
            });
            let listening = async {
                let session = self.server.connect(&tie, Some(hear)).await?;
                let listen = session
                    .client
                    .batch_execute(&format!("LISTEN {}", self.bell))
                    .await;
                listen.map_err(|error| self.server.error("listen", error))?;
                Ok::<_, Error>(session)
            };
            match tokio::time::timeout(self.server.config.settings.connect_timeout, listening).await
            {
                Ok(Ok(session)) => {
                    self.hears.store(true, Ordering::SeqCst);
                    return (session, tie);
                }
                Ok(Err(error)) => {
                    tracing::debug!(store = %self.server, %error, "not listening; waiters here poll")
                }
                Err(_) => tracing::debug!(store = %self.server, "not listening; waiters here poll"),
            }
            tokio::time::sleep(DEAF).await;
        }
    }

    async fn look_at(&self, session: &mut Session, names: &[LockName]) -> Tried<Vec<LockView>> {
        let wanted: Vec<&str> = names.iter().map(LockName::as_str).collect();
        let rows = self
            .query(session, "look at locks", LOOK, &[&wanted])
            .await?;
        let mut views: Vec<LockView> = names.iter().cloned().map(LockView::free).collect();
        for row in rows {
            let left: i64 = row.get(6);
            let of: &str = row.get(0);
            let Some(view) = views.iter_mut().find(|view| view.name.as_str() == of) else {
                continue;
            };
            // What cannot be read is not shown; taking such a lock says so.
            let (Some(mode), Some(claim)) = (mode_from(row.get(3)), claim(&row, 5)) else {
                continue;
            };
            if left <= 0 {
                continue;
            }
            let owner = row.get(4);
            if row.get::<_, i32>(1) == 2 {
                if view.waiters.len() < MOST_WAITERS_SHOWN {
                    let label = row.get(9);
                    view.waiters.push(WaiterView { owner, mode, label });
                }
                continue;
            }
            let length =
                |at: usize| Duration::from_micros(row.get::<_, i64>(at).max(0).unsigned_abs());
            view.holders.push(HolderView {
                claim: Some(claim),
                owner,
                token: Some(Token(row.get::<_, i64>(2).unsigned_abs())),
                mode,
                ttl_left: Some(length(6)),
                lock_delay: length(7).min(length(6)),
                held: Some(length(8)),
                label: row.get(9),
            });
        }
        Ok(views)
    }
}

/// What a notification says.
fn news(text: &str) -> Option<News> {
    let mut parts = text.split(' ');
    let (what, claim) = (parts.next()?, parts.next()?.parse().ok()?);
    match what {
        "held" => {
            let first = Token(parts.next()?.parse().ok()?);
            let count = parts.next()?.parse().ok()?;
            let reach = Duration::from_micros(parts.next()?.parse().ok()?);
            let tokens = Tokens { first, count };
            let pushed = Pushed {
                claim,
                tokens,
                reach,
            };
            Some(News::Granted(pushed))
        }
        "turn" => Some(News::Turn(claim)),
        "lost" => Some(News::Held(Event::Lost(claim))),
        "asked" => Some(News::Held(Event::Asked(claim))),
        _ => None,
    }
}

#[async_trait]
impl Dialect for Leases {
    type Session = Session;

    async fn connect(&self) -> Result<Session> {
        let mut session = self.server.connect(&Tie::new(None), None).await?;
        // Whoever turned it off for the database did not think of locks.
        const SAFE: &str = "\
            SELECT set_config('synchronous_commit', CASE WHEN setting = 'off' THEN 'on' ELSE setting END, false) \
            FROM (SELECT current_setting('synchronous_commit') AS setting) AS now";
        let safe = session.client.batch_execute(SAFE).await;
        safe.map_err(|error| self.server.error("prepare a connection", error))?;
        let known = self
            .promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        if !known {
            self.server.rule_out_pooler(&session).await?;
            let limits =
                limits::found(&self.server, &mut session, self.server.config.strategy).await?;
            let durable = !limits
                .iter()
                .any(|limit| limit.what.contains("loss of power"));
            *self.promises.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(promises(limits, durable));
        }
        Ok(session)
    }

    fn disconnect(&self, session: Session) {
        drop(session);
    }

    fn promises(&self) -> Promises {
        let promises = self.promises.lock().unwrap_or_else(PoisonError::into_inner);
        promises.clone().unwrap_or_else(promises_unknown)
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.server).await
    }

    async fn make_schema(&self, session: &mut Session) -> Tried<()> {
        self.server.set_up(session).await.map_err(Trouble::Told)?;
        self.seed(session).await
    }

    async fn seed(&self, session: &mut Session) -> Tried<()> {
        self.server.lift_anew(session).await.map_err(Trouble::Told)
    }

    fn floor(&self, session: &Session) -> Token {
        session.floor
    }

    fn saw(&self, session: &mut Session, token: Token) {
        session.floor = session.floor.max(token);
    }

    fn inspects(&self) -> bool {
        self.server.config.inspect_only
    }

    async fn take_free(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Tokens>> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &version(first_version(claim.id)),
            &id(claim),
            &&*mode_text(claim.mode),
            &(count(claim) as i32),
            &length(claim.ttl.saturating_add(claim.lock_delay)),
            &length(claim.lock_delay),
            &&*claim.owner,
            &claim.label.as_deref(),
            &self.bell,
        ];
        let rows = self.query(session, "take a lock", TAKE, values).await?;
        let first = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
        Ok(first.map(|first| tokens(first, claim)))
    }

    async fn queue(&self, session: &mut Session, claim: &Claim) -> Tried<Option<Queued>> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &id(claim),
            &&*mode_text(claim.mode),
            &(count(claim) as i32),
            &length(REACH),
            &length(CLAIM_WINDOW),
            &&*claim.owner,
            &claim.label.as_deref(),
            &self.bell,
        ];
        let rows = self
            .query(session, "wait for a lock", QUEUE, values)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let number = |at: usize| row.get::<_, Option<i64>>(at).map(i64::unsigned_abs);
        Ok(number(0).map(|version| Queued {
            version,
            ahead: number(1).unwrap_or(0),
            left: number(2).map(Duration::from_micros),
            drawn: Token(number(3).unwrap_or(u64::MAX)),
        }))
    }

    async fn release(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &version(first_version(claim.id)),
            &id(claim),
        ];
        let rows = self
            .query(session, "release a lock", RELEASE, values)
            .await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn read(&self, session: &mut Session, name: &LockName) -> Tried<Option<Seen>> {
        let rows = self
            .query(session, "read a lock", READ, &[&name.as_str()])
            .await?;
        let mut gate = None;
        let mut found = Rows {
            holders: Vec::new(),
            line: Vec::new(),
        };
        for row in &rows {
            let number: i64 = row.get(1);
            let expiry = DbInstant(row.get::<_, i64>(2).unsigned_abs());
            if row.get::<_, i32>(0) == 0 {
                let drawn = Token(row.get::<_, i64>(8).unsigned_abs());
                gate = Some((number.unsigned_abs(), expiry, drawn));
                continue;
            }
            let (Some(mode), Some(claim)) = (mode_from(row.get(3)), claim(row, 4)) else {
                return Err(self.unreadable(name));
            };
            if row.get::<_, i32>(0) == 1 {
                let first = Token(number.unsigned_abs());
                found.holders.push(Holder {
                    claim,
                    mode,
                    tokens: Tokens {
                        first,
                        count: row.get::<_, i32>(5).unsigned_abs(),
                    },
                    expiry,
                    abandoned: row.get(6),
                });
            } else {
                found.line.push(Waiter {
                    claim,
                    ticket: number,
                    mode,
                    expiry,
                    address: Some(row.get::<_, &str>(7).into()),
                });
            }
        }
        Ok(gate.map(|(version, now, drawn)| Seen {
            now,
            version,
            drawn,
            rows: found,
        }))
    }

    async fn version(&self, session: &mut Session, name: &LockName) -> Tried<Option<u64>> {
        const VERSION: &str = "SELECT version FROM fencelock_locks WHERE name = $1";
        let rows = self
            .query(session, "wait for a lock", VERSION, &[&name.as_str()])
            .await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn write(&self, session: &mut Session, write: &Write<'_>) -> Tried<Written> {
        let (mut meant, mut place, mut delay) = (None, None, Duration::ZERO);
        let (what, claim) = match write.change {
            Change::Grant {
                claim,
                ticket,
                instead,
            } => {
                (place, meant, delay) = (ticket, instead, claim.lock_delay);
                ("grant", Some(claim))
            }
            Change::Stand { claim, ticket } => {
                (place, delay) = (Some(ticket), REACH);
                ("stand", Some(claim))
            }
            Change::LeaveLine { ticket } => {
                place = Some(ticket);
                ("leave", None)
            }
            Change::Release { holder } => {
                meant = Some(holder);
                ("release", None)
            }
            Change::Abandon { holder, lock_delay } => {
                (meant, delay) = (Some(holder), lock_delay);
                ("abandon", None)
            }
            Change::Ask { holder } => {
                meant = Some(holder);
                ("ask", None)
            }
            Change::Bury => ("bury", None),
        };
        let lease = match write.change {
            Change::Grant { claim, .. } => claim.ttl.saturating_add(claim.lock_delay),
            _ => CLAIM_WINDOW,
        };
        let first = |holder: &Holder<DbInstant>| {
            i64::try_from(holder.tokens.first.get()).unwrap_or(i64::MAX)
        };
        let dead: Vec<i64> = write.dead_holders.iter().copied().map(first).collect();
        let claims: Vec<&[u8]> = write
            .call
            .iter()
            .map(|(claim, _)| &claim.as_bytes()[..])
            .collect();
        let bells = write
            .call
            .iter()
            .map(|(_, bell)| bell.as_deref().unwrap_or_default());
        let bells: Vec<String> = bells
            .map(|bell| String::from_utf8_lossy(bell).into_owned())
            .collect();
        let values: Values<'_> = &[
            &write.name.as_str(),
            &version(write.version),
            &dead,
            &write.dead_waiters,
            &what,
            &meant.map(first),
            &place,
            &claim.map(id),
            &claim.map(|claim| mode_text(claim.mode).into_owned()),
            &claim.map(|claim| count(claim) as i32),
            &length(lease),
            &length(delay),
            &claim.map(|claim| &*claim.owner),
            &claim.and_then(|claim| claim.label.as_deref()),
            &self.bell,
            &write.last,
            &claims,
            &bells,
        ];
        let rows = self.query(session, "change a lock", WRITE, values).await?;
        let written = rows.first().map_or(-1, |row| row.get::<_, i64>(0));
        Ok(match (written, claim) {
            (-1, _) => Written::Stale,
            (0, _) | (_, None) => Written::Done(None),
            (first, Some(claim)) => Written::Done(Some(tokens(first, claim))),
        })
    }

    async fn keep_place(
        &self,
        session: &mut Session,
        claim: &Claim,
        ticket: i64,
        for_: Duration,
    ) -> Tried<bool> {
        let values: Values<'_> = &[&claim.name.as_str(), &ticket, &id(claim), &length(for_)];
        let rows = self
            .query(session, "keep a place in line", KEEP_PLACE, values)
            .await?;
        Ok(!rows.is_empty())
    }

    async fn renew(&self, session: &mut Session, held: &[HeldClaim]) -> Tried<Vec<Option<bool>>> {
        let claims = || held.iter().map(|held| &held.claim);
        let names: Vec<&str> = claims().map(|claim| claim.name.as_str()).collect();
        let ids: Vec<&[u8]> = claims().map(id).collect();
        let leases: Vec<i64> = claims()
            .map(|claim| length(claim.ttl.saturating_add(claim.lock_delay)))
            .collect();
        let delays: Vec<i64> = claims().map(|claim| length(claim.lock_delay)).collect();
        let tokens: Vec<i64> = held
            .iter()
            .map(|held| i64::try_from(held.token.get()).unwrap_or(i64::MAX))
            .collect();
        let owners: Vec<&str> = claims().map(|claim| &*claim.owner).collect();
        let labels: Vec<Option<&str>> = claims().map(|claim| claim.label.as_deref()).collect();
        let values: Values<'_> = &[&names, &ids, &leases, &delays, &tokens, &owners, &labels];
        let rows = self.query(session, "renew holds", RENEW, values).await?;
        let kept = |claim: &Claim| {
            let row = rows
                .iter()
                .find(|row| row.get::<_, &[u8]>(0) == id(claim))?;
            Some(row.get(1))
        };
        Ok(claims().map(kept).collect())
    }

    async fn prolong(&self, session: &mut Session, claim: &Claim, first: Token) -> Tried<bool> {
        let values: Values<'_> = &[
            &claim.name.as_str(),
            &id(claim),
            &i64::try_from(first.get()).unwrap_or(i64::MAX),
            &length(claim.ttl.saturating_add(claim.lock_delay)),
            &length(claim.lock_delay),
        ];
        let rows = self
            .query(session, "prolong a hold", PROLONG, values)
            .await?;
        Ok(!rows.is_empty())
    }

    async fn look(&self, session: &mut Session, name: &LockName) -> Tried<LockView> {
        let views = self.look_at(session, std::slice::from_ref(name)).await?;
        Ok(views
            .into_iter()
            .next()
            .unwrap_or_else(|| LockView::free(name.clone())))
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
        let values: Values<'_> = &[&prefix, &after, &(limit as i64)];
        let rows = self.query(session, "list locks", LIST, values).await?;
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        // In the order of their bytes, those that begin with the prefix stand together.
        let begins = names.iter().take_while(|name| name.starts_with(prefix));
        let wanted: Result<Vec<LockName>> = begins.map(|name| LockName::new(name)).collect();
        let wanted = wanted.map_err(Trouble::Told)?;
        let more = names.len() == limit && wanted.len() == limit;
        let next = names.last().filter(|_| more).cloned().map(Cursor);
        let mut items = self.look_at(session, &wanted).await?;
        items.retain(|view| !view.holders.is_empty());
        Ok(Page { items, next })
    }

    async fn dead(&self, session: &mut Session) -> Tried<Vec<LockName>> {
        let rows = self
            .query(session, "look for what has expired", DEAD, &[])
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| LockName::new(row.get(0)).ok())
            .collect())
    }

    fn trace(&self, session: &Session) -> String {
        session.id.0.clone()
    }

    async fn lay_to_rest(&self, session: &mut Session, trace: &str) -> Tried<bool> {
        let parts = trace.split_once('@').and_then(|(pid, started)| {
            Some((pid.parse::<i32>().ok()?, started.parse::<i64>().ok()?))
        });
        let Some((pid, started)) = parts else {
            return Ok(false);
        };
        let rows = self
            .query(session, "end a lost connection", END, &[&pid, &started])
            .await?;
        Ok(rows.iter().all(|row| row.get(0)))
    }

    fn rings(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    async fn hear(&self) -> News {
        let mut listener = self.listener.lock().await;
        if !matches!(&*listener, Some((_, tie)) if !tie.is_cut()) {
            drop(listener.take());
            *listener = Some(self.listen().await);
            // Something may have been said before.
            return News::Gap;
        }
        drop(listener);
        self.news.lock().await.recv().await.unwrap_or(News::Gap)
    }
}

fn promises(limits: Vec<fencelock_core::Finding>, durable: bool) -> Promises {
    Promises {
        engine: "postgres",
        order: Order::Fifo,
        shared: true,
        permits: true,
        lock_delay: true,
        ranges: true,
        portable: true,
        lease: LeaseKind::Lease,
        wake: Wake::Push,
        durability: if durable {
            Durability::Durable
        } else {
            Durability::Process
        },
        clock: "the database's clock does not jump forward by more than is left of a lease",
        min_ttl: Duration::from_millis(100),
        max_ttl: Duration::from_secs(100 * 365 * 86_400),
        claim_window: CLAIM_WINDOW,
        limits,
    }
}

/// Before the first connection, when nobody asks.
fn promises_unknown() -> Promises {
    promises(Vec::new(), false)
}

fn tokens(first: i64, claim: &Claim) -> Tokens {
    Tokens {
        first: Token(first.unsigned_abs()),
        count: count(claim),
    }
}

fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    }
}

fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

fn length(duration: Duration) -> i64 {
    i64::try_from(micros(duration)).unwrap_or(i64::MAX)
}

fn id(claim: &Claim) -> &[u8] {
    claim.id.as_bytes()
}

fn claim(row: &Row, at: usize) -> Option<ClaimId> {
    let bytes: &[u8] = row.get(at);
    Some(ClaimId::from_bytes(bytes.try_into().ok()?))
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.server, f)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", self.server)
    }
}
