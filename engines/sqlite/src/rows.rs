//! The lease algorithm's reads and writes in SQLite's words. Each function runs inside one transaction.

use std::time::Duration;

use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, HolderView, Leave, LockView, Page, Place,
    Renewal, Standing, WaiterView, Withdrawn,
};
use fencelock_core::{BootInstant, ClaimId, Error, LockName, Mode, Result, Token, Tokens};
use fencelock_sql::lease::{self, Holder, Rows, Step, Waiter};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::bell::{News, Ring};
use super::thread::Visit;

/// How long a place in line stands unless its process places again.
pub(super) const CLAIM_WINDOW: Duration = RECHECK.saturating_mul(3);
/// When a process in line places again at the latest.
const RECHECK: Duration = Duration::from_secs(2);
/// A long line is cut in views.
const MOST_WAITERS_SHOWN: i64 = 1000;

type Sql<T> = rusqlite::Result<T>;

/// Take the lock, or a place in line.
pub(super) fn place(
    visit: &mut Visit<'_>,
    claim: &Claim,
    asked_at: BootInstant,
) -> Sql<Result<Standing>> {
    let now = visit.now;
    let rows = read(visit.connection, &claim.name)?;
    let expiry = lease::expiry(claim, now);
    let held = |tokens| {
        Ok(Ok(Standing::Held(Grant {
            tokens,
            counted_from: asked_at,
            lease: claim.ttl,
            recorded: true,
        })))
    };
    match rows.step(claim, now) {
        Step::Prolong(tokens) => {
            // Never sooner than it is: the claim may have been renewed since this was asked.
            let sql = "UPDATE holders SET expiry = max(expiry, ?3), lock_delay = ?4, written = ?5 \
                       WHERE name = ?1 AND claim = ?2";
            let (name, delay) = (claim.name.as_str(), length(claim.lock_delay));
            let values = params![name, id(claim), nanos(expiry), delay, nanos(now)];
            execute(visit, sql, values)?;
            visit.holds.put_up(claim.id, &claim.name);
            held(tokens)
        }
        Step::Downgrade => {
            let Some(tokens) = draw(visit, claim)? else {
                return Ok(Err(foreign(visit)));
            };
            let sql = "UPDATE holders SET mode = ?3, first = ?4, count = ?5, token = ?4, \
                       expiry = max(expiry, ?6), lock_delay = ?7, written = ?8 \
                       WHERE name = ?1 AND claim = ?2";
            let values = params![
                claim.name.as_str(),
                id(claim),
                lease::mode_text(claim.mode),
                integer(tokens.first),
                tokens.count,
                nanos(expiry),
                length(claim.lock_delay),
                nanos(now),
            ];
            execute(visit, sql, values)?;
            call_next(visit, &claim.name)?;
            held(tokens)
        }
        Step::Refuse(mode) => Ok(Err(Error::unsupported(
            visit.source,
            "a change from a weaker mode to a stronger one",
            format!("the claim holds as {}; release it first", mode.as_str()),
        ))),
        Step::Grant => {
            let Some(tokens) = draw(visit, claim)? else {
                return Ok(Err(foreign(visit)));
            };
            clear_dead(visit, &claim.name, &rows)?;
            leave_line(visit, &claim.name, claim.id, &rows)?;
            store(visit, claim, tokens, expiry)?;
            held(tokens)
        }
        Step::Wait {
            ticket,
            ahead,
            until,
        } => {
            clear_dead(visit, &claim.name, &rows)?;
            stand(visit, claim, ticket, &rows)?;
            visit.doors.put_up(claim.id);
            let recheck = asked_at + RECHECK;
            // The first in line looks as soon as the holder's row is over: nobody is left who would tell it.
            let over = until.map(|until| until + Duration::from_millis(1));
            Ok(Ok(Standing::Waiting(Place {
                ahead: Some(ahead),
                recheck: over.map_or(recheck, |over| over.min(recheck)),
            })))
        }
        Step::Busy => {
            if leave_line(visit, &claim.name, claim.id, &rows)? {
                call_next(visit, &claim.name)?;
            }
            Ok(Ok(Standing::Busy))
        }
    }
}

/// Whether placing again would now do more than keep the place. Only reads.
pub(super) fn has_changed(visit: &Visit<'_>, claim: &Claim) -> Sql<bool> {
    let step = read(visit.connection, &claim.name)?.step(claim, visit.now);
    Ok(!matches!(
        step,
        Step::Wait {
            ticket: Some(_),
            ..
        }
    ))
}

/// Release, leave the line, or abandon.
pub(super) fn withdraw(visit: &mut Visit<'_>, claim: &Claim, how: Leave) -> Sql<Withdrawn> {
    visit.doors.take_down(claim.id);
    visit.holds.take_down(claim.id);
    let name = &claim.name;
    let held = match how {
        Leave::Release => release(visit, name, claim.id)?,
        Leave::Abandon => abandon(visit, claim)?,
    };
    if let Some(expiry) = held {
        let released = how == Leave::Release || claim.lock_delay.is_zero();
        if released {
            call_next(visit, name)?;
        }
        let over = expiry <= nanos(visit.now);
        return Ok(if over {
            Withdrawn::Expired
        } else {
            Withdrawn::Released
        });
    }
    let rows = read(visit.connection, name)?;
    if leave_line(visit, name, claim.id, &rows)? {
        call_next(visit, name)?;
        return Ok(Withdrawn::LeftQueue);
    }
    let free = rows.holders.iter().all(|holder| holder.expiry <= visit.now);
    Ok(if free {
        Withdrawn::Expired
    } else {
        Withdrawn::NotOwner
    })
}

/// Deletes the hold and tells when it would have expired.
fn release(visit: &Visit<'_>, name: &LockName, claim: ClaimId) -> Sql<Option<i64>> {
    let expiry = stored_expiry(visit, name, claim)?;
    if expiry.is_some() {
        let sql = "DELETE FROM holders WHERE name = ?1 AND claim = ?2";
        execute(visit, sql, params![name.as_str(), claim.as_bytes()])?;
    }
    Ok(expiry)
}

/// The lock-delay still runs, but no longer than it would have.
fn abandon(visit: &Visit<'_>, claim: &Claim) -> Sql<Option<i64>> {
    let expiry = stored_expiry(visit, &claim.name, claim.id)?;
    let live = expiry.is_some_and(|expiry| expiry > nanos(visit.now));
    if claim.lock_delay.is_zero() || !live {
        return release(visit, &claim.name, claim.id);
    }
    let sql = "UPDATE holders SET state = 'abandoned', expiry = min(expiry, ?3), lock_delay = ?4 \
               WHERE name = ?1 AND claim = ?2";
    let (until, delay) = (
        nanos(visit.now + claim.lock_delay),
        length(claim.lock_delay),
    );
    execute(
        visit,
        sql,
        params![claim.name.as_str(), id(claim), until, delay],
    )?;
    Ok(expiry)
}

fn stored_expiry(visit: &Visit<'_>, name: &LockName, claim: ClaimId) -> Sql<Option<i64>> {
    // A SELECT and a change cost a fraction of a change with RETURNING, which SQLite runs through a table of its own.
    let sql = "SELECT expiry FROM holders WHERE name = ?1 AND claim = ?2";
    let mut select = visit.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    select.query_row(values, |row| row.get(0)).optional()
}

/// Prolong holds, and store the tokens and owners that they have by now. A renewal with a token that the grant does not
/// have is of a grant that is over: the claim was placed again since, late.
pub(super) fn renew(
    visit: &mut Visit<'_>,
    held: &[HeldClaim],
    asked_at: BootInstant,
) -> Sql<Vec<Renewal>> {
    let sql = "SELECT state = 'asked' FROM holders \
               WHERE name = ?1 AND claim = ?2 AND expiry > ?3 AND state <> 'abandoned' \
               AND ?4 BETWEEN first AND first + count - 1";
    let mut select = visit.connection.prepare_cached(sql)?;
    let sql = "UPDATE holders SET expiry = ?3, lock_delay = ?4, token = ?5, owner = ?6, label = ?7, written = ?8, bell = ?9 \
               WHERE name = ?1 AND claim = ?2";
    let mut update = visit.connection.prepare_cached(sql)?;
    let mut renewals = Vec::with_capacity(held.len());
    for HeldClaim { claim, token } in held {
        let (name, id, now) = (claim.name.as_str(), id(claim), nanos(visit.now));
        let values = params![name, id, now, integer(*token)];
        let live = select.query_row(values, |row| row.get(0)).optional()?;
        let Some(asked) = live else {
            visit.holds.take_down(claim.id);
            renewals.push(Renewal::Lost);
            continue;
        };
        update.execute(params![
            name,
            id,
            nanos(lease::expiry(claim, visit.now)),
            length(claim.lock_delay),
            integer(*token),
            &*claim.owner,
            claim.label.as_deref(),
            now,
            visit.me.as_bytes(),
        ])?;
        visit.holds.put_up(claim.id, &claim.name);
        renewals.push(Renewal::Kept {
            counted_from: asked_at,
            lease: claim.ttl,
            asked,
        });
    }
    Ok(renewals)
}

/// Force-release, or ask for release.
pub(super) fn evict(visit: &mut Visit<'_>, name: &LockName, token: Token, how: Evict) -> Sql<bool> {
    let rows = read(visit.connection, name)?;
    let meant = |holder: &&Holder| {
        let asks_nobody = how == Evict::Ask && holder.abandoned;
        holder.tokens.contains(token) && holder.expiry > visit.now && !asks_nobody
    };
    let Some(claim) = rows.holders.iter().find(meant).map(|holder| holder.claim) else {
        return Ok(false);
    };
    let (sql, event) = match how {
        Evict::Release => (
            "DELETE FROM holders WHERE name = ?1 AND claim = ?2 RETURNING bell",
            Event::Lost(claim),
        ),
        Evict::Ask => (
            "UPDATE holders SET state = 'asked' WHERE name = ?1 AND claim = ?2 RETURNING bell",
            Event::Asked(claim),
        ),
    };
    let mut change = visit.connection.prepare_cached(sql)?;
    let bell: Option<Vec<u8>> =
        change.query_row(params![name.as_str(), claim.as_bytes()], |row| row.get(0))?;
    drop(change);
    if let Some(to) = bell {
        let news = News::Held(name.clone(), event);
        visit.rings.push(Ring { to, news });
    }
    if how == Evict::Release {
        call_next(visit, name)?;
    }
    Ok(true)
}

/// What happened to a holder, if anything did.
pub(super) fn what_happened(
    visit: &Visit<'_>,
    name: &LockName,
    claim: ClaimId,
) -> Sql<Option<Event>> {
    let sql = "SELECT state FROM holders WHERE name = ?1 AND claim = ?2";
    let mut select = visit.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    let state: Option<String> = select.query_row(values, |row| row.get(0)).optional()?;
    Ok(match state.as_deref() {
        None => Some(Event::Lost(claim)),
        Some("asked") => Some(Event::Asked(claim)),
        Some(_) => None,
    })
}

/// The lock as it is.
pub(super) fn look(visit: &Visit<'_>, name: &LockName) -> Sql<LockView> {
    let now = visit.now;
    let sql = "SELECT claim, owner, token, mode, expiry, lock_delay, since, label FROM holders \
               WHERE name = ?1 AND expiry > ?2 ORDER BY token";
    let mut holders = visit.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), nanos(now)];
    let holders = holders.query_map(values, |row| {
        let left = instant(row, 4)?.since(now);
        Ok(HolderView {
            claim: Some(claim_id(row, 0)?),
            owner: row.get(1)?,
            token: Some(token(row, 2)?),
            mode: mode(row, 3)?,
            ttl_left: Some(left),
            lock_delay: Duration::from_nanos(row.get::<_, i64>(5)?.unsigned_abs()).min(left),
            held: Some(now.since(instant(row, 6)?)),
            label: row.get(7)?,
        })
    })?;
    let holders = holders.collect::<Sql<Vec<_>>>()?;
    let sql = "SELECT owner, mode, label FROM waiters WHERE name = ?1 AND expiry > ?2 ORDER BY ticket LIMIT ?3";
    let mut waiters = visit.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), nanos(now), MOST_WAITERS_SHOWN];
    let waiters = waiters.query_map(values, |row| {
        Ok(WaiterView {
            owner: row.get(0)?,
            mode: mode(row, 1)?,
            label: row.get(2)?,
        })
    })?;
    Ok(LockView {
        name: name.clone(),
        holders,
        waiters: waiters.collect::<Sql<Vec<_>>>()?,
    })
}

/// The locks that are held, by name.
pub(super) fn list(
    visit: &Visit<'_>,
    prefix: &str,
    at: Option<&Cursor>,
    limit: usize,
) -> Sql<Page<LockView>> {
    let limit = limit.clamp(1, 1000);
    let after = at.map_or("", |cursor| &cursor.0);
    let sql = "SELECT DISTINCT name FROM holders \
               WHERE name >= ?1 AND name > ?2 AND expiry > ?3 ORDER BY name LIMIT ?4";
    let mut names = visit.connection.prepare_cached(sql)?;
    let values = params![prefix, after, nanos(visit.now), limit as i64];
    let names = names.query_map(values, |row| row.get::<_, String>(0))?;
    let names = names.collect::<Sql<Vec<_>>>()?;
    let full = names.len() == limit;
    let mut items = Vec::new();
    // In the order of their bytes, those that begin with the prefix stand together.
    for name in names.iter().take_while(|name| name.starts_with(prefix)) {
        let name = LockName::new(name).map_err(|error| unreadable(0, Type::Text, error))?;
        items.push(look(visit, &name)?);
    }
    let more = full && items.len() == limit;
    let next = names.last().filter(|_| more).cloned().map(Cursor);
    Ok(Page { items, next })
}

/// Takes a waiter out whose process is gone, and calls the next one.
pub(super) fn bury(visit: &mut Visit<'_>, name: &LockName, claim: ClaimId) -> Sql<()> {
    let rows = read(visit.connection, name)?;
    if leave_line(visit, name, claim, &rows)? {
        call_next(visit, name)?;
    }
    Ok(())
}

/// Whether any row is past its expiry.
pub(super) fn has_dead(connection: &Connection, now: BootInstant) -> Sql<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE expiry <= ?1) \
               OR EXISTS (SELECT 1 FROM waiters WHERE expiry <= ?1)";
    connection
        .prepare_cached(sql)?
        .query_row([nanos(now)], |row| row.get(0))
}

/// Deletes every row past its expiry.
pub(super) fn sweep(visit: &mut Visit<'_>) -> Sql<()> {
    let now = nanos(visit.now);
    execute(visit, "DELETE FROM holders WHERE expiry <= ?1", [now])?;
    execute(visit, "DELETE FROM waiters WHERE expiry <= ?1", [now])
}

/// All rows of a lock.
fn read(connection: &Connection, name: &LockName) -> Sql<Rows> {
    let sql = "SELECT claim, mode, first, count, expiry, state = 'abandoned' FROM holders WHERE name = ?1";
    let mut holders = connection.prepare_cached(sql)?;
    let holders = holders.query_map([name.as_str()], |row| {
        Ok(Holder {
            claim: claim_id(row, 0)?,
            mode: mode(row, 1)?,
            tokens: Tokens {
                first: token(row, 2)?,
                count: row.get(3)?,
            },
            expiry: instant(row, 4)?,
            abandoned: row.get(5)?,
        })
    })?;
    let holders = holders.collect::<Sql<Vec<_>>>()?;
    let line = read_line(connection, name)?;
    Ok(Rows {
        holders,
        queue: line,
    })
}

fn read_line(connection: &Connection, name: &LockName) -> Sql<Vec<Waiter>> {
    let sql =
        "SELECT claim, ticket, mode, expiry, bell FROM waiters WHERE name = ?1 ORDER BY ticket";
    let mut line = connection.prepare_cached(sql)?;
    let line = line.query_map([name.as_str()], |row| {
        Ok(Waiter {
            claim: claim_id(row, 0)?,
            ticket: row.get(1)?,
            mode: mode(row, 2)?,
            expiry: instant(row, 3)?,
            address: row.get(4)?,
        })
    })?;
    line.collect()
}

/// Tells those in line who may hold now. They place again, and one whose process is gone is found out.
fn call_next(visit: &mut Visit<'_>, name: &LockName) -> Sql<()> {
    if read_line(visit.connection, name)?.is_empty() {
        return Ok(());
    }
    let rows = read(visit.connection, name)?;
    for waiter in rows.next(visit.now) {
        if let Some(to) = waiter.address.clone() {
            let news = News::Turn(name.clone(), waiter.claim);
            visit.rings.push(Ring { to, news });
        }
    }
    Ok(())
}

/// Draws the tokens of a grant; `None` if the file is in use by another machine or another run of this one.
fn draw(visit: &Visit<'_>, claim: &Claim) -> Sql<Option<Tokens>> {
    let count = match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, lease::MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    };
    let mut select = visit
        .connection
        .prepare_cached("SELECT token, boot FROM store")?;
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?));
    let (stored, boot) = select.query_row([], read)?;
    let run = &visit.source.run;
    if run.id().is_some() && !run.is(&boot) {
        return Ok(None);
    }
    let last = visit.source.next_token(stored, count);
    execute(visit, "UPDATE store SET token = ?1", [last])?;
    Ok(Some(lease::tokens_up_to(last, count)))
}

fn foreign(visit: &Visit<'_>) -> Error {
    Error::config(
        visit.source,
        "another machine uses this file now, and the two do not share their locks (or a copy from before the last start \
         of the machine was put back: then start this process anew); use a server such as redis: or etcd: for several \
         machines",
    )
}

fn store(visit: &mut Visit<'_>, claim: &Claim, tokens: Tokens, expiry: BootInstant) -> Sql<()> {
    let sql = "INSERT INTO holders (name, claim, mode, first, count, token, expiry, lock_delay, since, state, owner, label, bell, run, written) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7, ?8, 'held', ?9, ?10, ?11, ?12, ?8)";
    let values = params![
        claim.name.as_str(),
        id(claim),
        lease::mode_text(claim.mode),
        integer(tokens.first),
        tokens.count,
        nanos(expiry),
        length(claim.lock_delay),
        nanos(visit.now),
        &*claim.owner,
        claim.label.as_deref(),
        visit.me.as_bytes(),
        visit.source.run.id(),
    ];
    visit.holds.put_up(claim.id, &claim.name);
    execute(visit, sql, values)
}

/// Puts the claim in line, or keeps its place for another window.
fn stand(visit: &Visit<'_>, claim: &Claim, ticket: Option<i64>, rows: &Rows) -> Sql<()> {
    let expiry = nanos(visit.now + CLAIM_WINDOW);
    let name = claim.name.as_str();
    if let Some(ticket) = ticket {
        let sql =
            "UPDATE waiters SET expiry = ?3, mode = ?4, bell = ?5 WHERE name = ?1 AND ticket = ?2";
        let mode = lease::mode_text(claim.mode);
        // A row past its expiry was cleared just now, and stands again where it stood.
        let kept = visit.connection.prepare_cached(sql)?.execute(params![
            name,
            ticket,
            expiry,
            mode,
            visit.me.as_bytes()
        ])?;
        if kept > 0 {
            return Ok(());
        }
    }
    let last = rows.queue.last().map_or(0, |last| last.ticket);
    let sql = "INSERT INTO waiters (name, ticket, claim, mode, expiry, owner, bell, label) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let values = params![
        name,
        ticket.unwrap_or(last + 1),
        id(claim),
        lease::mode_text(claim.mode),
        expiry,
        &*claim.owner,
        visit.me.as_bytes(),
        claim.label.as_deref(),
    ];
    execute(visit, sql, values)
}

/// Whether the claim stood in line.
fn leave_line(visit: &Visit<'_>, name: &LockName, claim: ClaimId, rows: &Rows) -> Sql<bool> {
    let Some(mine) = rows.queue.iter().find(|waiter| waiter.claim == claim) else {
        return Ok(false);
    };
    visit.doors.take_down(claim);
    let sql = "DELETE FROM waiters WHERE name = ?1 AND ticket = ?2";
    execute(visit, sql, params![name.as_str(), mine.ticket])?;
    Ok(true)
}

fn clear_dead(visit: &Visit<'_>, name: &LockName, rows: &Rows) -> Sql<()> {
    if !rows.has_expired(visit.now) {
        return Ok(());
    }
    let values = params![name.as_str(), nanos(visit.now)];
    execute(
        visit,
        "DELETE FROM holders WHERE name = ?1 AND expiry <= ?2",
        values,
    )?;
    execute(
        visit,
        "DELETE FROM waiters WHERE name = ?1 AND expiry <= ?2",
        values,
    )
}

fn execute(visit: &Visit<'_>, sql: &str, values: impl rusqlite::Params) -> Sql<()> {
    visit.connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn id(claim: &Claim) -> &[u8; 16] {
    claim.id.as_bytes()
}

/// As stored. An instant beyond SQLite's integers is as good as never.
fn nanos(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn integer(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn claim_id(row: &Row<'_>, at: usize) -> Sql<ClaimId> {
    row.get(at).map(ClaimId::from_bytes)
}

fn instant(row: &Row<'_>, at: usize) -> Sql<BootInstant> {
    let nanos: i64 = row.get(at)?;
    Ok(BootInstant::from_nanos(nanos.unsigned_abs()))
}

fn token(row: &Row<'_>, at: usize) -> Sql<Token> {
    let token: i64 = row.get(at)?;
    Ok(Token(token.unsigned_abs()))
}

fn mode(row: &Row<'_>, at: usize) -> Sql<Mode> {
    let text = row.get_ref(at)?.as_str()?;
    lease::mode_from(text).ok_or_else(|| unreadable(at, Type::Text, FromSqlError::InvalidType))
}

fn unreadable(
    at: usize,
    kind: Type,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, kind, Box::new(error))
}
