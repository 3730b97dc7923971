//! The format of the rows, and the promises of the strategy.

use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, Durability, Finding, Floor, Mode, Promises, Token, Tokens, Wake};
use fencelock_sql::lease::CLAIM_WINDOW;
use fencelock_sql::lease::MOST_TOKENS;
use fencelock_sql::server::micros;
use tokio_postgres::Row;

pub(super) fn promises(limits: Vec<Finding>, durable: bool) -> Promises {
    Promises::full(
        "postgres",
        "the database's clock does not jump forward by more than the rest of a lease",
    )
    .record(true)
    .floor(Floor::Store)
    .wake(Wake::Push)
    .durability(if durable {
        Durability::Durable
    } else {
        Durability::Process
    })
    .claim_window(CLAIM_WINDOW)
    .limits(limits)
}

pub(super) fn tokens(first: i64, claim: &Claim) -> Tokens {
    Tokens::new(Token(first.unsigned_abs()), count(claim))
}

pub(super) fn count(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Exclusive => claim.reserve.clamp(1, MOST_TOKENS),
        Mode::Shared | Mode::Permit { .. } => 1,
    }
}

pub(super) fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

pub(super) fn length(duration: Duration) -> i64 {
    i64::try_from(micros(duration)).unwrap_or(i64::MAX)
}

pub(super) fn id(claim: &Claim) -> &[u8] {
    claim.id.as_bytes()
}

pub(super) fn claim(row: &Row, at: usize) -> Option<ClaimId> {
    let bytes: &[u8] = row.get(at);
    Some(ClaimId::from_bytes(bytes.try_into().ok()?))
}
