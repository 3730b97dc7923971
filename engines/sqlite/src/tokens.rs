//! Drawing tokens, inside the transaction that grants: each is above all that were drawn before.
//!
//! `store.token` is not below any token that was drawn. There are two ways to draw:
//!
//! * By the counter: above `token`, which is raised to what was drawn. That writes the page of this row.
//! * By the clock, one token: the microseconds on the boot clock after an origin, which is in the file. A transaction ends in a
//!   later microsecond than those that it drew, so the next transaction draws a later one. `token` was raised before, to a
//!   *horizon* some milliseconds ahead; so most draws by the clock write nothing.
//!
//! A draw by the counter starts from the horizon and moves `token` away from it. Until the clock has passed that token, all
//! processes draw by the counter. Earlier versions of fencelock always draw by the counter, so they may share the file.

use fencelock_core::{BootInstant, Clock, Token, Tokens};
use fencelock_sql::lease;
use rusqlite::{Connection, Params, Row, params};

use crate::boot::Boot;
use crate::file::micros;
use crate::stored::{Sql, token_value};
use crate::transaction::{Drawn, Transaction};

/// How far ahead of the clock `token` is raised, in microseconds. Except in bursts, a token that is drawn by the counter is at
/// most this far ahead. So it does no harm if the file is lost.
pub(crate) const HORIZON: i64 = 10_000;

/// What one transaction may draw by the clock before the clock gets there, in microseconds. It waits for that before it ends.
const MOST_AHEAD: i64 = 100;

/// Reads the row from which tokens are drawn.
pub(crate) const SELECT_STORE: &str =
    "SELECT token, boot, horizon, origin, origin_boot FROM store WHERE id = 1";

/// Reads the row, if the lock has no holders and no waiters.
pub(crate) const SELECT_STORE_IF_FREE: &str = "SELECT token, boot, horizon, origin, origin_boot FROM store WHERE id = 1 \
     AND NOT EXISTS (SELECT 1 FROM holders WHERE name = ?1) \
     AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)";

/// The values of the row.
struct Store {
    token: i64,
    horizon: Option<i64>,
    /// The token of the boot clock's zero, if it is of this boot.
    origin: Option<i64>,
}

/// `count` tokens after all that were drawn; `select` is [`SELECT_STORE`], with or without a further condition. `None` if it
/// returns no row, or if another machine uses the file now, or another boot of this one.
pub(crate) fn draw(
    transaction: &mut Transaction<'_>,
    count: u32,
    select: &str,
    values: impl Params,
) -> Sql<Option<Tokens>> {
    let Some(store) = read(transaction, select, values)? else {
        return Ok(None);
    };
    if count == 1
        && let Some(token) = by_clock(transaction, &store)?
    {
        return Ok(Some(Tokens::one(Token(token.unsigned_abs()))));
    }
    let last = transaction.file.next_token(store.token, count);
    let sql = "UPDATE store SET token = ?1, horizon = NULL WHERE id = 1";
    transaction.execute(sql, [last])?;
    Ok(Some(lease::tokens_up_to(last, count)))
}

/// Makes all later tokens of this file higher than `floor`.
pub(crate) fn raise(transaction: &Transaction<'_>, floor: Token) -> Sql<()> {
    let sql = "UPDATE store SET token = max(token, ?1), horizon = NULL WHERE id = 1";
    transaction.execute(sql, [token_value(floor)])
}

impl Store {
    fn of(row: &Row<'_>, boot: &Boot) -> Sql<Self> {
        let origin_boot = row.get_ref(4)?.as_str_or_null()?;
        let of_this_boot = origin_boot.is_some_and(|origin_boot| boot.is(origin_boot));
        Ok(Self {
            token: row.get(0)?,
            horizon: row.get(2)?,
            origin: row.get::<_, Option<i64>>(3)?.filter(|_| of_this_boot),
        })
    }

    /// Whether all tokens drawn so far were drawn by the clock, or before the horizon was set.
    fn is_below_horizon(&self) -> bool {
        self.origin.is_some() && self.horizon == Some(self.token)
    }
}

/// The row, if `select` finds it and it is of this boot.
fn read(transaction: &Transaction<'_>, select: &str, values: impl Params) -> Sql<Option<Store>> {
    let boot = &transaction.file.boot;
    let mut select = transaction.connection.prepare_cached(select)?;
    let mut rows = select.query(values)?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    if boot.id().is_some() && !boot.is(row.get_ref(1)?.as_str()?) {
        return Ok(None);
    }
    Store::of(row, boot).map(Some)
}

/// The boot that last opened the file, and the last token drawn, or one that is not below it.
pub(crate) fn last_opened(connection: &Connection, boot: &Boot) -> Sql<(String, i64)> {
    connection.query_row(SELECT_STORE, [], |row| {
        let store = Store::of(row, boot)?;
        let by_now = store
            .origin
            .map(|origin| origin.saturating_add(clock_micros(Clock::Boot.now())));
        let last = match by_now.filter(|_| store.is_below_horizon()) {
            Some(by_now) => by_now.min(store.token),
            None => store.token,
        };
        Ok((row.get(1)?, last))
    })
}

/// A token by the clock. `None` if an equally high token may have been drawn, or if this process cannot distinguish boots.
fn by_clock(transaction: &mut Transaction<'_>, store: &Store) -> Sql<Option<i64>> {
    let file = transaction.file;
    let Some(boot) = file.boot.id() else {
        return Ok(None);
    };
    let (now, wall) = (clock_micros(transaction.now), micros());
    let after_all = store.token.saturating_add(1).max(wall);
    let mut origin = store.origin.unwrap_or(after_all.saturating_sub(now));
    if wall > origin.saturating_add(now).saturating_add(HORIZON) {
        // The wall clock was set forward, or an old copy of the file was put back.
        origin = wall.saturating_sub(now);
    }
    let by_now = origin.saturating_add(now);
    let drawn = match transaction.drawn {
        Some(last) => by_now.max(last.token.saturating_add(1)),
        None => by_now,
    };
    let below_horizon = store.is_below_horizon();
    let is_above = below_horizon || drawn > store.token;
    if !is_above || drawn <= file.highest() || drawn.saturating_sub(by_now) > MOST_AHEAD {
        return Ok(None);
    }
    if !below_horizon || drawn > store.token || Some(origin) != store.origin {
        let sql =
            "UPDATE store SET token = ?1, horizon = ?1, origin = ?2, origin_boot = ?3 WHERE id = 1";
        transaction.execute(sql, params![drawn.saturating_add(HORIZON), origin, boot])?;
    }
    file.saw_token(drawn);
    let next_micro = drawn.saturating_sub(origin).saturating_add(1);
    transaction.drawn = Some(Drawn {
        token: drawn,
        ends_from: BootInstant::from_nanos(next_micro.unsigned_abs().saturating_mul(1000)),
    });
    Ok(Some(drawn))
}

fn clock_micros(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1000).unwrap_or(i64::MAX)
}
