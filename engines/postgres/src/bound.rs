//! `strategy=advisory`: an advisory lock of the session, on the name's 64-bit hash, as the server computes it. The server's
//! `idle_session_timeout` is the lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, Evict, HolderView, LockView, Page, WaiterView};
use fencelock_core::{
    ClaimId, Clock, Durability, Error, Finding, LeaseKind, LockName, Mode, Order, Promises, Result,
    Token, Tokens, Wake,
};
use fencelock_sql::bound::{Dialect, Record, SessionId, Settings, Tie};
use fencelock_sql::lease::{MOST_TOKENS, mode_from, mode_text};
use futures_util::future::try_join_all;
use tokio_postgres::{Row, Statement};

use super::connection::{Server, Session, Values, is_in_the_way, is_missing};
use super::{diagnose, limits};

/// The longest idle timeout of PostgreSQL, in ms, is the longest ttl.
const MAX_TTL: Duration = Duration::from_millis(i32::MAX as u64);
/// The class of the advisory locks of names, as the seed of their hash.
macro_rules! key {
    ($name:literal) => {
        concat!("hashtextextended(", $name, ", 7378697629483820646)")
    };
}
/// What is written down beside each hold.
const STRATEGY: &str = "advisory";

/// Locks that hang on a session.
pub(crate) struct Advisory {
    server: Server,
}

impl Advisory {
    pub(crate) const fn new(server: Server) -> Self {
        Self { server }
    }

    /// Sets the time after which the server ends this connection when it is silent, unless it is set already.
    async fn set_idle(&self, session: &mut Session, idle: Duration) -> Result<bool> {
        if session.idle == Some(idle) {
            return Ok(false);
        }
        session.idle = None;
        let millis = idle.as_millis().max(1);
        let sql = format!("SET idle_session_timeout = {millis}");
        let set = session.client.batch_execute(&sql).await;
        set.map_err(|error| self.server.error("set an idle timeout", error))?;
        session.idle = Some(idle);
        Ok(true)
    }

    async fn draw(
        &self,
        session: &mut Session,
        sql: &'static str,
        claim: &Claim,
    ) -> Result<Option<Tokens>> {
        let action = format!("take lock {}", claim.name);
        let rows = session
            .query(&self.server, &action, sql, &[&claim.name.as_str()])
            .await?;
        match rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
            Some(first) => self.drawn(session, first, claim).await.map(Some),
            None => Ok(None),
        }
    }

    /// The tokens of a draw, if they are above those that this connection has seen.
    async fn drawn(&self, session: &mut Session, first: i64, claim: &Claim) -> Result<Tokens> {
        let tokens = tokens(first, claim.reserve);
        if tokens.first < session.floor {
            // What hangs on this connection ends with it, and the next draw is above.
            self.server.lift_anew(session).await?;
            let why = "the counter of tokens went back, and was lifted anew";
            return Err(Error::unavailable(
                self,
                format!("take lock {}", claim.name),
                why,
            ));
        }
        session.floor = tokens.first;
        Ok(tokens)
    }

    async fn try_once(&self, session: &mut Session, claim: &Claim) -> Result<Option<Tokens>> {
        let sql = match claim.mode {
            Mode::Shared => TRY_SHARED,
            _ => TRY_EXCLUSIVE,
        };
        self.draw(session, sql, claim).await
    }

    /// After an error that a retry mends: the connection is as it was before it was to take a lock.
    async fn undo(&self, session: &Session, error: Error) -> Result<()> {
        if !is_in_the_way(&error) {
            return Err(error);
        }
        // What the session had before the error it would have twice.
        let undo = "SELECT pg_advisory_unlock_all()";
        let undone = session.client.batch_execute(undo).await;
        undone.map_err(|error| self.server.error("try again to take a lock", error))
    }
}

/// CASE decides before it evaluates what it yields.
const TRY_EXCLUSIVE: &str = concat!(
    "SELECT CASE WHEN pg_try_advisory_lock(",
    key!("$1"),
    ") THEN fencelock_draw() END"
);
const TRY_SHARED: &str = concat!(
    "SELECT CASE WHEN pg_try_advisory_lock_shared(",
    key!("$1"),
    ") THEN fencelock_draw() END"
);
const WAIT_EXCLUSIVE: &str = concat!(
    "SELECT CASE WHEN pg_advisory_lock(",
    key!("$1"),
    ")::text IS NOT NULL THEN fencelock_draw() END"
);
const WAIT_SHARED: &str = concat!(
    "SELECT CASE WHEN pg_advisory_lock_shared(",
    key!("$1"),
    ")::text IS NOT NULL THEN fencelock_draw() END"
);
const UNLOCK_EXCLUSIVE: &str = concat!("SELECT pg_advisory_unlock(", key!("$1"), ")");
const UNLOCK_SHARED: &str = concat!("SELECT pg_advisory_unlock_shared(", key!("$1"), ")");

/// Those that were written down and whose connection lives. Whoever may not see another's connections sees their pids.
macro_rules! live {
    ($what:literal, $rest:literal) => {
        concat!(
            "SELECT ", $what, " FROM fencelock_bound AS b JOIN pg_stat_activity AS a ON a.pid = b.pid \
             AND (a.backend_start IS NULL OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = b.started) ", $rest
        )
    };
}
const LOOK: &str = live!(
    "b.name, b.claim, b.owner, b.token, b.mode, b.label, \
     greatest(0, extract(epoch FROM clock_timestamp() - b.since) * 1000)::bigint, \
     greatest(0, least(b.ttl_ms, b.ttl_ms - extract(epoch FROM clock_timestamp() - a.state_change) * 1000))::bigint, \
     b.count > 0",
    "WHERE b.strategy = $1 AND b.name = $2 ORDER BY b.token, b.since"
);
/// Those that hold and of whom nothing was written down.
const UNWRITTEN: &str = concat!(
    "SELECT 1 FROM pg_locks AS l, (SELECT ",
    key!("$1"),
    " AS key) AS k \
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND l.classid::bigint = (k.key >> 32) & 4294967295 AND l.objid::bigint = k.key & 4294967295 \
     AND NOT EXISTS (SELECT 1 FROM fencelock_bound AS b WHERE b.strategy = 'advisory' AND b.name = $1 AND b.pid = l.pid AND b.count > 0)"
);
const LIST: &str = live!(
    "DISTINCT b.name",
    "WHERE b.strategy = $1 AND b.count > 0 AND b.name >= $2 AND b.name > $3 ORDER BY b.name LIMIT $4"
);
const HOLDER: &str = live!(
    "b.claim, b.pid, b.started",
    "WHERE b.strategy = $1 AND b.name = $2 AND $3 >= b.first AND $3 < b.first + b.count"
);
const RECORD: &str = "\
    INSERT INTO fencelock_bound (claim, strategy, name, mode, first, count, token, owner, label, ttl_ms, since, pid, started) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, clock_timestamp() - make_interval(secs => $11), $12, $13) \
    ON CONFLICT (claim) DO UPDATE SET mode = $4, first = $5, count = $6, token = $7, owner = $8, label = $9, ttl_ms = $10, \
    pid = $12, started = $13";
const END: &str = "\
    SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity \
    WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2";
const LIVES: &str = "\
    SELECT 1 FROM pg_stat_activity \
    WHERE pid = $1 AND (backend_start IS NULL OR (extract(epoch FROM backend_start) * 1000000)::bigint = $2)";
const FORGET_GONE: &str = "\
    DELETE FROM fencelock_bound AS b WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity AS a WHERE a.pid = b.pid \
    AND (a.backend_start IS NULL OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = b.started))";

#[async_trait]
impl Dialect for Advisory {
    type Session = Session;

    fn settings(&self) -> Settings {
        self.server.config.settings
    }

    async fn promises(&self, control: &mut Session) -> Result<Promises> {
        self.server.rule_out_pooler(control).await?;
        Ok(Promises {
            engine: "postgres",
            order: Order::Unordered,
            shared: true,
            permits: false,
            lock_delay: false,
            ranges: true,
            portable: false,
            lease: LeaseKind::Connection,
            wake: Wake::Push,
            // A hold ends with the server; tokens are lifted to the time by the next start.
            durability: Durability::Volatile,
            clock: "the server's timers run at about the right rate; its wall clock, which tokens are lifted to after a start, is not set back by more than it was down",
            min_ttl: Duration::from_millis(50),
            max_ttl: MAX_TTL,
            claim_window: fencelock_sql::bound::CLAIM_WINDOW,
            limits: limits::found(&self.server, control, self.server.config.strategy).await?,
        })
    }

    async fn findings(&self) -> Result<Vec<Finding>> {
        diagnose::findings(&self.server).await
    }

    fn is_in_the_way(error: &Error) -> bool {
        is_in_the_way(error)
    }

    async fn connect(&self, tie: Arc<Tie>) -> Result<Session> {
        let session = self.server.connect(&tie, None).await?;
        if self.inspects() {
            return Ok(session);
        }
        // Nothing that such a connection commits must outlive the server: who holds by which connection.
        let relax = session
            .client
            .batch_execute("SET synchronous_commit = off")
            .await;
        relax.map_err(|error| self.server.error("prepare a connection", error))?;
        Ok(session)
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
        self.set_idle(session, idle).await?;
        loop {
            match self.try_once(session, claim).await {
                Ok(taken) => return Ok(taken),
                Err(error) => self.undo(session, error).await?,
            }
        }
    }

    async fn take(&self, session: &mut Session, claim: &Claim, idle: Duration) -> Result<Tokens> {
        self.set_idle(session, idle).await?;
        let sql = match claim.mode {
            Mode::Shared => WAIT_SHARED,
            _ => WAIT_EXCLUSIVE,
        };
        loop {
            match self.draw(session, sql, claim).await {
                Ok(Some(tokens)) => return Ok(tokens),
                Ok(None) => {}
                Err(error) => self.undo(session, error).await?,
            }
        }
    }

    async fn keep(&self, session: &mut Session, idle: Duration) -> Result<()> {
        if !self.set_idle(session, idle).await? {
            let alive = session.client.check_connection().await;
            alive.map_err(|error| self.server.error("renew a lock", error))?;
        }
        Ok(())
    }

    async fn downgrade(&self, session: &mut Session, claim: &Claim) -> Result<Tokens> {
        // Only exclusive locks are made weaker.
        self.set_idle(session, claim.ttl).await?;
        // Whoever holds the lock does not wait for it, also where trying would let those go first who do.
        let tokens = loop {
            let error = match self.draw(session, WAIT_SHARED, claim).await {
                Ok(tokens) => break tokens,
                Err(error) => error,
            };
            // What it may have got before the error it would have twice; a connection that is gone has nothing.
            let values: Values<'_> = &[&claim.name.as_str()];
            let action = format!("downgrade lock {}", claim.name);
            session
                .query(&self.server, &action, UNLOCK_SHARED, values)
                .await?;
            if !is_in_the_way(&error) {
                return Err(error);
            }
        };
        let tokens = tokens.ok_or_else(|| {
            self.server
                .internal("an exclusive lock does not admit its holder")
        })?;
        let action = format!("downgrade lock {}", claim.name);
        session
            .query(
                &self.server,
                &action,
                UNLOCK_EXCLUSIVE,
                &[&claim.name.as_str()],
            )
            .await?;
        Ok(tokens)
    }

    async fn give_back(&self, session: &mut Session, claim: &Claim) -> Result<bool> {
        let action = format!("release lock {}", claim.name);
        let sql = match claim.mode {
            Mode::Shared => UNLOCK_SHARED,
            _ => UNLOCK_EXCLUSIVE,
        };
        let rows = session
            .query(&self.server, &action, sql, &[&claim.name.as_str()])
            .await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn record(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        const ASKED: &str = "SELECT claim FROM fencelock_bound WHERE asked AND claim = ANY($1)";
        let failed = |error| self.server.error("write down who holds", error);
        let write = control.statement(RECORD).await.map_err(failed)?;
        let ask = control.statement(ASKED).await.map_err(failed)?;
        // Sent together: one round trip.
        let written = records
            .iter()
            .map(|record| self.record_one(control, &write, record));
        let asked: Vec<&[u8]> = asked.iter().map(|claim| &claim.as_bytes()[..]).collect();
        let values: Values<'_> = &[&asked];
        let (written, told) = tokio::join!(try_join_all(written), async {
            match asked.is_empty() {
                true => Ok(Vec::new()),
                false => control.client.query(&ask, values).await,
            }
        });
        written.map_err(failed)?;
        let told = told.map_err(failed)?;
        told.iter().map(|row| self.claim(row, 0)).collect()
    }

    async fn forget(&self, control: &mut Session, claim: ClaimId) -> Result<()> {
        const FORGET: &str = "DELETE FROM fencelock_bound WHERE claim = $1";
        let claim = &claim.as_bytes()[..];
        control
            .query(&self.server, "release a lock", FORGET, &[&claim])
            .await
            .map(drop)
    }

    fn inspects(&self) -> bool {
        self.server.config.inspect_only
    }

    async fn look(&self, control: &mut Session, name: &LockName) -> Result<LockView> {
        let action = format!("look at lock {name}");
        let values: Values<'_> = &[&STRATEGY, &name.as_str()];
        let rows = self.seen(control, &action, LOOK, values).await?;
        let mut view = LockView::free(name.clone());
        for row in &rows {
            let holder = self.holder(row)?;
            if row.get(8) {
                view.holders.push(holder);
            } else {
                let HolderView {
                    owner, mode, label, ..
                } = holder;
                view.waiters.push(WaiterView { owner, mode, label });
            }
        }
        Ok(view)
    }

    async fn is_written(&self, control: &mut Session, name: &LockName) -> Result<bool> {
        let action = format!("look at lock {name}");
        let values: Values<'_> = &[&name.as_str()];
        let rows = control
            .query(&self.server, &action, UNWRITTEN, values)
            .await?;
        Ok(rows.is_empty())
    }

    async fn list(
        &self,
        control: &mut Session,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let limit = limit.clamp(1, 1000);
        let after = at.map_or("", |cursor| &cursor.0);
        let values: Values<'_> = &[&STRATEGY, &prefix, &after, &(limit as i64)];
        let rows = self.seen(control, "list locks", LIST, values).await?;
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let mut items = Vec::new();
        // In the order of their bytes, those that begin with the prefix stand together.
        for name in names.iter().take_while(|name| name.starts_with(prefix)) {
            items.push(self.look(control, &LockName::new(name)?).await?);
        }
        let more = names.len() == limit && items.len() == limit;
        let next = names.last().filter(|_| more).cloned().map(Cursor);
        Ok(Page { items, next })
    }

    async fn evict(
        &self,
        control: &mut Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool> {
        let action = format!("take lock {name} from its holder");
        let values: Values<'_> = &[&STRATEGY, &name.as_str(), &integer(token)];
        let rows = control.query(&self.server, &action, HOLDER, values).await?;
        let Some(holder) = rows.first() else {
            return Ok(false);
        };
        match how {
            Evict::Release => {
                let session = SessionId(format!(
                    "{}@{}",
                    holder.get::<_, i32>(1),
                    holder.get::<_, i64>(2)
                ));
                self.end(control, &session).await?;
            }
            Evict::Ask => {
                const ASK: &str = "UPDATE fencelock_bound SET asked = true WHERE claim = $1";
                control
                    .query(&self.server, &action, ASK, &[&holder.get::<_, &[u8]>(0)])
                    .await?;
            }
        }
        Ok(true)
    }

    async fn lives(&self, control: &mut Session, session: &SessionId) -> Result<bool> {
        let (pid, started) = numbers(session);
        let rows = control
            .query(&self.server, "wait for a lock", LIVES, &[&pid, &started])
            .await?;
        Ok(!rows.is_empty())
    }

    async fn end(&self, control: &mut Session, session: &SessionId) -> Result<()> {
        let action = "end a connection that was given up (needs the same user, or membership in pg_signal_backend)";
        let (pid, started) = numbers(session);
        let rows = control
            .query(&self.server, action, END, &[&pid, &started])
            .await?;
        if rows.first().is_some_and(|row| !row.get::<_, bool>(0)) {
            let why = "the connection has not ended yet";
            return Err(Error::unavailable(&self.server, action, why));
        }
        const FORGET: &str = "DELETE FROM fencelock_bound WHERE pid = $1 AND started = $2";
        control
            .query(&self.server, action, FORGET, &[&pid, &started])
            .await
            .map(drop)
    }

    async fn sweep(&self, control: &mut Session) -> Result<()> {
        control
            .query(&self.server, "clear up", FORGET_GONE, &[])
            .await
            .map(drop)
    }
}

impl Advisory {
    /// The rows that there are to look at. Whoever only looks makes no tables, and sees nothing where there are none.
    async fn seen(
        &self,
        control: &mut Session,
        action: &str,
        sql: &'static str,
        values: Values<'_>,
    ) -> Result<Vec<Row>> {
        let failed = |error: tokio_postgres::Error| match is_missing(&error) {
            true if self.inspects() => Ok(Vec::new()),
            _ => Err(self.server.error(action, error)),
        };
        let statement = match control.statement(sql).await {
            Ok(statement) => statement,
            Err(error) => return failed(error),
        };
        let rows = control.client.query(&statement, values).await;
        rows.or_else(failed)
    }

    async fn record_one(
        &self,
        control: &Session,
        write: &Statement,
        record: &Record,
    ) -> Result<u64, tokio_postgres::Error> {
        let (pid, started) = numbers(&record.session);
        let held = Clock::Boot.now().since(record.since).as_secs_f64();
        let ttl = i64::try_from(record.ttl.as_millis()).unwrap_or(i64::MAX);
        let values: Values<'_> = &[
            &&record.claim.as_bytes()[..],
            &STRATEGY,
            &record.name.as_str(),
            &&*mode_text(record.mode),
            &integer(record.tokens.first),
            &(record.tokens.count as i32),
            &integer(record.token),
            &&*record.owner,
            &record.label.as_deref(),
            &ttl,
            &held,
            &pid,
            &started,
        ];
        control.client.execute(write, values).await
    }

    fn holder(&self, row: &Row) -> Result<HolderView> {
        let millis = |at: usize| Duration::from_millis(row.get::<_, i64>(at).unsigned_abs());
        let mode = mode_from(row.get(4));
        Ok(HolderView {
            claim: Some(self.claim(row, 1)?),
            owner: row.get(2),
            token: Some(Token(row.get::<_, i64>(3).unsigned_abs())),
            mode: mode
                .ok_or_else(|| self.server.internal("fencelock_bound has an unknown mode"))?,
            ttl_left: Some(millis(7)),
            lock_delay: Duration::ZERO,
            held: Some(millis(6)),
            label: row.get(5),
        })
    }

    fn claim(&self, row: &Row, at: usize) -> Result<ClaimId> {
        let bytes: &[u8] = row.get(at);
        let bytes = bytes
            .try_into()
            .map_err(|_| self.server.internal("a claim has not 16 bytes"))?;
        Ok(ClaimId::from_bytes(bytes))
    }
}

/// Tokens are drawn sixteen at a time; these are the first of them, as many as were wished for.
fn tokens(first: i64, reserve: u32) -> Tokens {
    Tokens {
        first: Token(first.unsigned_abs()),
        count: reserve.clamp(1, MOST_TOKENS),
    }
}

fn integer(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The pid and the start of a connection.
fn numbers(session: &SessionId) -> (i32, i64) {
    let parts = session.0.split_once('@');
    let number = |text: &str| text.parse::<i64>().ok();
    let (pid, started) = parts.map_or((None, None), |(pid, started)| {
        (number(pid), number(started))
    });
    // No connection has these.
    (
        pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
        started.unwrap_or(0),
    )
}

impl fmt::Display for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.server, f)
    }
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Advisory({})", self.server)
    }
}
