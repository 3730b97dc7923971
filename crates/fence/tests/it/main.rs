//! Fences compared with a simple model, under crashes and reordering, and on real databases and servers.
#![allow(clippy::unwrap_used, missing_docs)]

#[cfg(feature = "etcd")]
mod etcd;
mod examples;
mod highest;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod http_gone;
#[cfg(feature = "http")]
mod http_once;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Mode, Sequencer, Token};
use fencelock_fence::Stale;
use proptest::prelude::*;

pub(crate) const MODES: [Mode; 3] = [
    Mode::Exclusive,
    Mode::Shared,
    Mode::Permit {
        of: NonZeroU32::MIN,
    },
];

/// A grant of its own claim.
pub(crate) fn grant(mode: Mode, token: u64) -> Sequencer {
    by(mode, token, token)
}

/// A grant of the claim with this number.
pub(crate) fn by(mode: Mode, token: u64, claim: u64) -> Sequencer {
    Sequencer::new(
        LockName::new("ledger: \"ä%'").unwrap(),
        mode,
        Token(token),
        ClaimId::from_bytes(u128::from(claim + 1).to_be_bytes()),
    )
}

pub(crate) fn exclusive(token: u64) -> Sequencer {
    grant(Mode::Exclusive, token)
}

pub(crate) fn shared(token: u64) -> Sequencer {
    grant(Mode::Shared, token)
}

/// Few tokens and claims, so that they meet often.
pub(crate) fn grants() -> impl Strategy<Value = Sequencer> {
    let mode = prop_oneof![3 => Just(MODES[0]), 2 => Just(MODES[1]), 1 => Just(MODES[2])];
    (mode, 1..12u64, 0..3u64).prop_map(|(mode, token, claim)| by(mode, token, claim))
}

/// The rule as the documentation states it, over all holders that have passed before.
pub(crate) fn model(passed: &[Sequencer], next: &Sequencer) -> Result<(), u64> {
    let exclusive = passed.iter().filter(|p| p.mode == Mode::Exclusive);
    let exclusive = exclusive.map(|p| p.token.get()).max().unwrap_or(0);
    let any = passed.iter().map(|p| p.token.get()).max().unwrap_or(0);
    let first_of_top = passed.iter().find(|p| p.token.get() == any);
    let same = first_of_top.is_some_and(|p| p.claim == next.claim);
    let token = next.token.get();
    match next.mode {
        Mode::Exclusive if token > any || (token == any && same) => Ok(()),
        Mode::Exclusive => Err(any),
        _ if token > exclusive => Ok(()),
        _ => Err(exclusive),
    }
}

/// The refusal in these tests: 33 is late, and 34 has won.
pub(crate) fn says_who_won(stale: Option<&Stale>) {
    let stale = stale.unwrap();
    assert_eq!((stale.late.token.get(), stale.won.get()), (33, 34));
    let text = stale.to_string();
    assert!(
        text.contains("token 33") && text.contains("token 34"),
        "{text}"
    );
}
