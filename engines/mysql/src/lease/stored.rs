//! The format of the rows, and of the ids from which tokens are made.

use std::time::Duration;

use fencelock_core::engine::{Claim, HolderView};
use fencelock_core::{ClaimId, LockName, Mode, Token, Tokens};
use fencelock_sql::lease::{self, Holder, MOST_TOKENS, Waiter};
use fencelock_sql::server::{DbInstant, micros};
use mysql_async::Row;
use sha2::{Digest, Sha256};

use crate::request::{Answer, NOW, bytes};
use crate::tables::Tables;

/// A grant's first token is its id times this.
const PER_ID: u64 = MOST_TOKENS as u64;
/// How many rows there are for draws.
const DRAWS: u64 = 1000;
/// All columns but the id, which the server draws.
pub(super) const GATE_COLUMNS: &str =
    "(name, version, state, claim, tokens, current, expiry, lock_delay, since, owner, label)";

/// A row that [`all_rows`] selects.
pub(super) struct StoredRow {
    pub(super) kind: u8,
    pub(super) name: LockName,
    /// A gate's version, the id of a holder's grant, a waiter's ticket.
    pub(super) number: u64,
    /// For a gate, the present time.
    pub(super) expiry: DbInstant,
    /// `None` for a gate.
    pub(super) mode: Option<Mode>,
    claim: ClaimId,
    tokens: u32,
    current: u32,
    lock_delay: Duration,
    since: DbInstant,
    state: Vec<u8>,
    pub(super) owner: String,
    label: Option<String>,
    /// The name of a waiter's ear, if the query asked for ears.
    ear: Option<Vec<u8>>,
}

const GATE: u8 = 0;
pub(super) const HOLDER: u8 = 1;
pub(super) const WAITER: u8 = 2;

/// A query for everything about some locks, in one statement and so of one moment.
pub(super) fn all_rows(tables: &Tables, names: &str, with_ears: bool) -> String {
    let Tables {
        locks,
        holders,
        waiters,
        ears,
        ..
    } = tables;
    let ear = match with_ears {
        true => format!(
            "(SELECT ear FROM {ears} AS e WHERE e.name = {waiters}.name AND e.ticket = {waiters}.ticket \
             AND e.claim = {waiters}.claim)"
        ),
        false => "NULL".to_owned(),
    };
    format!(
        "SELECT 0 AS kind, name, version AS number, {NOW} AS expiry, '' AS mode, '' AS claim, 0 AS tokens, \
             0 AS current, 0 AS lock_delay, 0 AS since, '' AS state, '' AS owner, NULL AS label, NULL AS ear \
             FROM {locks} WHERE name IN ({names}) UNION ALL \
             SELECT 1, name, id, expiry, 'x', claim, tokens, current, lock_delay, since, state, owner, label, NULL \
             FROM {locks} WHERE name IN ({names}) AND state <> 'none' UNION ALL \
             SELECT 1, name, id, expiry, mode, claim, 1, current, lock_delay, since, state, owner, label, NULL \
             FROM {holders} WHERE name IN ({names}) UNION ALL \
             SELECT 2, name, ticket, expiry, mode, claim, 0, 0, 0, 0, '', owner, NULL, {ear} \
             FROM {waiters} WHERE name IN ({names})"
    )
}

impl StoredRow {
    /// `None` for a row that this version would not write.
    pub(super) fn read(mut row: Row) -> Option<Self> {
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
            ear: take(row, 13)?,
        })
    }

    fn first(&self) -> Token {
        token(self.number)
    }

    pub(super) fn holder(&self, mode: Mode) -> Holder<DbInstant> {
        Holder {
            claim: self.claim,
            mode,
            tokens: Tokens::new(self.first(), self.tokens),
            expiry: self.expiry,
            abandoned: self.state == b"abandoned",
        }
    }

    pub(super) fn waiter(&self, mode: Mode) -> Waiter<DbInstant> {
        Waiter {
            claim: self.claim,
            ticket: i64::try_from(self.number).unwrap_or(i64::MAX),
            mode,
            expiry: self.expiry,
            address: self.ear.clone(),
        }
    }

    pub(super) fn holder_view(self, mode: Mode, now: DbInstant) -> HolderView {
        let left = self.expiry.since(now);
        let token = Token(self.first().get() + u64::from(self.current));
        HolderView::new(self.owner, mode)
            .claim(self.claim)
            .token(token)
            .ttl_left(left)
            .lock_delay(self.lock_delay.min(left))
            .held(now.since(self.since))
            .label(self.label)
    }
}

/// The tokens of a grant, from the row's id.
pub(super) fn tokens(answer: &Answer, claim: &Claim) -> Option<Tokens> {
    let id = answer.last_id.filter(|_| answer.affected > 0)?;
    let first = Token(id.checked_mul(PER_ID)?);
    let count = count(claim);
    Some(Tokens::new(first, count))
}

/// How many tokens a grant to this claim has.
pub(super) fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    }
}

/// The row for draws of this lock. All clients must agree on it.
pub(super) fn draws_row(name: &LockName) -> u64 {
    let hash = Sha256::digest(name.as_str());
    let eight = hash.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(eight) % DRAWS
}

/// The values of a gate for this grant. Inserting the row draws the id.
pub(super) fn gate_values(claim: &Claim, version: u64) -> String {
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

/// The row of a shared holder or a permit, with the id that its gate drew.
pub(super) fn insert_holder(tables: &Tables, claim: &Claim, condition: &str) -> String {
    format!(
        "INSERT INTO {} (id, name, claim, mode, current, expiry, lock_delay, since, state, owner, label) \
         SELECT LAST_INSERT_ID(), {}, {}, '{}', 0, {NOW} + {}, {}, {NOW}, 'held', {}, {} FROM DUAL WHERE {condition}",
        tables.holders,
        name(&claim.name),
        bytes(claim.id.as_bytes()),
        lease::mode_text(claim.mode),
        micros(claim.ttl.saturating_add(claim.lock_delay)),
        micros(claim.lock_delay),
        bytes(claim.owner.as_bytes()),
        label(claim),
    )
}

pub(super) fn label(claim: &Claim) -> String {
    let label = claim.label.as_deref();
    label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()))
}

pub(super) fn name(name: &LockName) -> String {
    bytes(name.as_str().as_bytes())
}

/// The id of a grant, from any of its tokens.
pub(super) fn id(token: Token) -> u64 {
    token.get() / PER_ID
}

pub(super) fn list(ids: impl IntoIterator<Item = u64>) -> String {
    let ids = ids.into_iter().map(|id| id.to_string());
    ids.collect::<Vec<_>>().join(",")
}

/// The first token of the grant with this id.
pub(super) fn token(id: u64) -> Token {
    Token(id.saturating_mul(PER_ID))
}

/// Which of the grant's tokens this one is.
pub(super) fn offset(token: Token) -> u64 {
    token.get() % PER_ID
}
