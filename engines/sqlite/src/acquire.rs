use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Mode, Result, Token, Tokens};
use fencelock_sql::lease::{self, CLAIM_WINDOW, RECHECK, Rows, Step};
use rusqlite::params;

use crate::handle::Handle;
use crate::rows::{delete_expired, leave_queue, read, wake_next};
use crate::stored::{Sql, duration_value, instant_value, token_value};
use crate::tokens::{self, SELECT_STORE, SELECT_STORE_IF_FREE};
use crate::transaction::Transaction;

pub(crate) async fn place(worker: &Handle, claim: &Claim) -> Result<Standing> {
    let asked_at = Clock::Boot.now();
    worker
        .write_small("taking", claim, move |transaction, claim| {
            take_step(transaction, claim, asked_at)
        })
        .await?
}

fn take_step(
    transaction: &mut Transaction<'_>,
    claim: &Claim,
    asked_at: BootInstant,
) -> Sql<Result<Standing>> {
    if claim.floor > Token(0) {
        tokens::raise(transaction, claim.floor)?;
    }
    if let Some(tokens) = grant_alone(transaction, claim)? {
        return Ok(Ok(Standing::Held(Grant::new(tokens, asked_at, claim.ttl))));
    }
    let rows = read(transaction.connection, &claim.name)?;
    let tokens = match rows.step(claim, transaction.now) {
        Step::Prolong(tokens) => {
            prolong(transaction, claim)?;
            Some(tokens)
        }
        Step::Downgrade => downgrade(transaction, claim)?,
        Step::Grant => grant(transaction, claim, &rows)?,
        Step::Refuse(mode) => {
            return Ok(Err(Error::stronger_mode(transaction.file, mode)));
        }
        Step::Wait {
            ticket,
            ahead,
            until,
        } => {
            delete_expired(transaction, &claim.name, &rows)?;
            join_queue(transaction, claim, ticket, &rows)?;
            transaction.entries.set_waiting(claim.id);
            return Ok(Ok(Standing::Waiting(
                Place::new(recheck(asked_at, until)).ahead(ahead),
            )));
        }
        Step::Busy => {
            if leave_queue(transaction, &claim.name, claim.id, &rows)? {
                wake_next(transaction, &claim.name)?;
            }
            return Ok(Ok(Standing::Busy));
        }
    };
    Ok(match tokens {
        Some(tokens) => Ok(Standing::Held(Grant::new(tokens, asked_at, claim.ttl))),
        None => Err(used_by_another_machine(transaction)),
    })
}

/// Never shortens the lease: the claim may have been renewed since this call was made.
fn prolong(transaction: &Transaction<'_>, claim: &Claim) -> Sql<()> {
    let sql = "UPDATE holders SET expiry = max(expiry, ?3), lock_delay = ?4, written = ?5 \
               WHERE name = ?1 AND claim = ?2";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        instant_value(lease::expiry(claim, transaction.now)),
        duration_value(claim.lock_delay),
        instant_value(transaction.now),
    ];
    transaction.execute(sql, values)?;
    transaction.entries.set_holding(claim.id, &claim.name);
    Ok(())
}

fn downgrade(transaction: &mut Transaction<'_>, claim: &Claim) -> Sql<Option<Tokens>> {
    let Some(tokens) = tokens::draw(transaction, count(claim), SELECT_STORE, [])? else {
        return Ok(None);
    };
    let sql = "UPDATE holders SET mode = ?3, first = ?4, count = ?5, token = ?4, \
               expiry = max(expiry, ?6), lock_delay = ?7, written = ?8 \
               WHERE name = ?1 AND claim = ?2";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        lease::mode_text(claim.mode),
        token_value(tokens.first),
        tokens.count,
        instant_value(lease::expiry(claim, transaction.now)),
        duration_value(claim.lock_delay),
        instant_value(transaction.now),
    ];
    transaction.execute(sql, values)?;
    wake_next(transaction, &claim.name)?;
    Ok(Some(tokens))
}

/// Grants a lock that has no row, in fewer statements. `None` if it has one, or if no token can be drawn.
fn grant_alone(transaction: &mut Transaction<'_>, claim: &Claim) -> Sql<Option<Tokens>> {
    if transaction.entries.waiting(claim.id).is_some() {
        return Ok(None);
    }
    let name = [claim.name.as_str()];
    let Some(tokens) = tokens::draw(transaction, count(claim), SELECT_STORE_IF_FREE, name)? else {
        return Ok(None);
    };
    store_hold(transaction, claim, tokens)?;
    Ok(Some(tokens))
}

fn grant(transaction: &mut Transaction<'_>, claim: &Claim, rows: &Rows) -> Sql<Option<Tokens>> {
    let Some(tokens) = tokens::draw(transaction, count(claim), SELECT_STORE, [])? else {
        return Ok(None);
    };
    delete_expired(transaction, &claim.name, rows)?;
    leave_queue(transaction, &claim.name, claim.id, rows)?;
    store_hold(transaction, claim, tokens)?;
    Ok(Some(tokens))
}

fn store_hold(transaction: &Transaction<'_>, claim: &Claim, tokens: Tokens) -> Sql<()> {
    let sql = "INSERT INTO holders (name, claim, mode, first, count, token, expiry, lock_delay, since, state, owner, label, bell, run, written) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7, ?8, 'held', ?9, ?10, ?11, ?12, ?8)";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        lease::mode_text(claim.mode),
        token_value(tokens.first),
        tokens.count,
        instant_value(lease::expiry(claim, transaction.now)),
        duration_value(claim.lock_delay),
        instant_value(transaction.now),
        &*claim.owner,
        claim.label.as_deref(),
        transaction.address.as_bytes(),
        transaction.file.boot.id(),
    ];
    transaction.entries.set_holding(claim.id, &claim.name);
    transaction.execute(sql, values)
}

/// How many tokens the claim gets.
fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, lease::MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    }
}

fn used_by_another_machine(transaction: &Transaction<'_>) -> Error {
    Error::config(
        transaction.file,
        ConfigPart::Server,
        "another machine uses this file now, and the two do not share their locks; use a server such as redis: or etcd: \
         for several machines. (Or a copy from before the last start of this machine was put back: then restart this \
         process)",
    )
}

/// Joins the queue, or keeps the claim's place for another [`CLAIM_WINDOW`].
fn join_queue(
    transaction: &Transaction<'_>,
    claim: &Claim,
    ticket: Option<i64>,
    rows: &Rows,
) -> Sql<()> {
    let expiry = instant_value(transaction.now + CLAIM_WINDOW);
    let name = claim.name.as_str();
    let mode = lease::mode_text(claim.mode);
    let address = transaction.address.as_bytes();
    if let Some(ticket) = ticket {
        let sql =
            "UPDATE waiters SET expiry = ?3, mode = ?4, bell = ?5 WHERE name = ?1 AND ticket = ?2";
        let mut update = transaction.connection.prepare_cached(sql)?;
        if update.execute(params![name, ticket, expiry, mode, address])? > 0 {
            return Ok(());
        }
        // The row had expired and was just deleted. The claim has its old ticket again.
    }
    let last = rows.queue.last().map_or(0, |last| last.ticket);
    let sql = "INSERT INTO waiters (name, ticket, claim, mode, expiry, owner, bell, label) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let values = params![
        name,
        ticket.unwrap_or(last + 1),
        claim.id.as_bytes(),
        mode,
        expiry,
        &*claim.owner,
        address,
        claim.label.as_deref(),
    ];
    transaction.execute(sql, values)
}

/// When a waiter places its claim again. The first waiter does so when the first lease of the holders ends, because no process
/// would wake it then.
fn recheck(asked_at: BootInstant, lease_ends: Option<BootInstant>) -> BootInstant {
    let recheck = asked_at + RECHECK;
    match lease_ends {
        Some(end) => recheck.min(end + Duration::from_millis(1)),
        None => recheck,
    }
}
