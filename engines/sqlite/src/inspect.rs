use async_trait::async_trait;
use fencelock_core::engine::{
    Cursor, Event, Evict, HolderView, Inspect, LockView, Page, WaiterView,
};
use fencelock_core::{LockName, Result, Token};
use fencelock_sql::lease::Holder;
use rusqlite::params;

use crate::engine::Sqlite;
use crate::handle::How;
use crate::job::Action;
use crate::rows::{read, wake_next};
use crate::stored::{Sql, claim_id, duration, instant, instant_value, mode, token, unreadable};
use crate::transaction::Transaction;
use crate::wake_up::{Message, WakeUp};

#[async_trait]
impl Inspect for Sqlite {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let (action, name) = (Action::on("looking at", name), name.clone());
        self.worker
            .run(How::Read, action, move |transaction| {
                view(transaction, &name)
            })
            .await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let after = at.map(|at| at.name(prefix)).transpose()?;
        let (prefix, after) = (prefix.to_owned(), after.unwrap_or_default());
        self.worker
            .run(
                How::Read,
                Action::Other("listing locks"),
                move |transaction| page(transaction, &prefix, &after, limit),
            )
            .await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let what = match how {
            Evict::Release => "evicting the holder of",
            Evict::Ask => "asking the holder of",
        };
        let (action, name) = (Action::on(what, name), name.clone());
        self.worker
            .run(How::Write, action, move |transaction| {
                evict(transaction, &name, token, how)
            })
            .await
    }
}

fn view(transaction: &Transaction<'_>, name: &LockName) -> Sql<LockView> {
    Ok(LockView::new(
        name.clone(),
        holders(transaction, name)?,
        waiters(transaction, name)?,
    ))
}

fn holders(transaction: &Transaction<'_>, name: &LockName) -> Sql<Vec<HolderView>> {
    let now = transaction.now;
    let sql = "SELECT claim, owner, token, mode, expiry, lock_delay, since, label FROM holders \
               WHERE name = ?1 AND expiry > ?2 ORDER BY token";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), instant_value(now)];
    let holders = select.query_map(values, |row| {
        let left = instant(row, 4)?.since(now);
        Ok(HolderView::new(row.get(1)?, mode(row, 3)?)
            .claim(claim_id(row, 0)?)
            .token(token(row, 2)?)
            .ttl_left(left)
            .lock_delay(duration(row, 5)?.min(left))
            .held(now.since(instant(row, 6)?))
            .label(row.get(7)?))
    })?;
    holders.collect()
}

fn waiters(transaction: &Transaction<'_>, name: &LockName) -> Sql<Vec<WaiterView>> {
    let sql = "SELECT owner, mode, label FROM waiters WHERE name = ?1 AND expiry > ?2 ORDER BY ticket LIMIT ?3";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let values = params![
        name.as_str(),
        instant_value(transaction.now),
        LockView::MOST_WAITERS as i64
    ];
    let waiters = select.query_map(values, |row| {
        Ok(WaiterView::new(row.get(0)?, mode(row, 1)?).label(row.get(2)?))
    })?;
    waiters.collect()
}

/// Locks that are held, by name.
fn page(
    transaction: &Transaction<'_>,
    prefix: &str,
    after: &str,
    limit: usize,
) -> Sql<Page<LockView>> {
    let limit = limit.clamp(1, 1000);
    let sql = "SELECT DISTINCT name FROM holders \
               WHERE name >= ?1 AND name > ?2 AND expiry > ?3 ORDER BY name LIMIT ?4";
    let mut names = transaction.connection.prepare_cached(sql)?;
    let values = params![prefix, after, instant_value(transaction.now), limit as i64];
    let names = names.query_map(values, |row| row.get::<_, String>(0))?;
    let names = names.collect::<Sql<Vec<_>>>()?;
    let full = names.len() == limit;
    let mut items = Vec::new();
    // Names are sorted by their bytes, so those with the prefix come first.
    for name in names.iter().take_while(|name| name.starts_with(prefix)) {
        let name = LockName::new(name).map_err(|error| unreadable(0, error))?;
        items.push(view(transaction, &name)?);
    }
    let more = full && items.len() == limit;
    let next = names.last().filter(|_| more).cloned().map(Cursor);
    Ok(Page::new(items, next))
}

fn evict(
    transaction: &mut Transaction<'_>,
    name: &LockName,
    token: Token,
    how: Evict,
) -> Sql<bool> {
    let rows = read(transaction.connection, name)?;
    let is_meant = |holder: &&Holder| {
        let nobody_to_ask = how == Evict::Ask && holder.abandoned;
        holder.tokens.contains(token) && holder.expiry > transaction.now && !nobody_to_ask
    };
    let Some(holder) = rows.holders.iter().find(is_meant) else {
        return Ok(false);
    };
    let claim = holder.claim;
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
    let mut change = transaction.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    let address: Option<Vec<u8>> = change.query_row(values, |row| row.get(0))?;
    drop(change);
    if let Some(to) = address {
        let message = Message::Held(name.clone(), event);
        transaction.wake_ups.push(WakeUp { to, message });
    }
    if how == Evict::Release {
        wake_next(transaction, name)?;
    }
    Ok(true)
}
