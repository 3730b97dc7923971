//! A lock as other clients see it, and what they can do about it.

use std::num::NonZeroU32;
use std::time::Duration;

use fencelock_core::engine::{HolderView, LockView, WaiterView};
use fencelock_core::{ClaimId, LockName, Mode, Token};
use serde::{Deserialize, Serialize};

use crate::mode::ModeWord;
#[cfg(feature = "openapi")]
use crate::schema;
use crate::time::millis;

/// One lock, with the members of `fencelock show --json` and more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lock {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The highest token of its holders; null if it is free.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Token>))]
    pub token: Option<Token>,
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in order if the store keeps an order.
    pub waiters: Vec<Waiter>,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Holder {
    /// The owner, for people.
    pub owner: String,
    /// The fencing token; null if the store does not know it yet.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Token>))]
    pub token: Option<Token>,
    /// The mode.
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// How long the store still keeps the lock, including the lock-delay; null if it does not know.
    pub ttl_left_ms: Option<u64>,
    /// How much of that time is lock-delay.
    pub lock_delay_ms: u64,
    /// How long it has been held; null if the store does not know.
    pub held_ms: Option<u64>,
    /// A note for people.
    pub label: Option<String>,
    /// The claim; null if the store does not know.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::ClaimId>))]
    pub claim: Option<ClaimId>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiter {
    /// The owner, for people.
    pub owner: String,
    /// The requested mode.
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// A note for people.
    pub label: Option<String>,
}

/// A part of the locks that are held. It may be empty although there is a next part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Locks {
    /// The locks, in no particular order.
    pub locks: Vec<Lock>,
    /// Where the next part begins (`cursor`); null at the end.
    pub next: Option<String>,
}

/// Asks how long a process that joins the hold of this owner may believe in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Attest {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The owner, as `holders` shows it.
    pub owner: String,
}

/// The hold of that owner, if the owner holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attested {
    /// Null if the owner does not hold.
    pub holder: Option<Holder>,
    /// How long the process may believe in the hold, from when the request was sent; 0 if the owner does not hold.
    pub lease_ms_since_sent: u64,
}

/// How to end the hold of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum EvictHow {
    /// Take the lock away.
    Release,
    /// Ask the holder.
    Ask,
}

/// Takes the lock from the holder with this token, or asks that holder to release it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The token of the holder that is meant.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
    pub token: Token,
    /// How.
    pub how: EvictHow,
}

/// Whether the holder was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evicted {
    /// False if no holder has this token.
    pub done: bool,
}

/// Asks whether the grant of this sequencer is still held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// `fl1:…`
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Sequencer))]
    pub sequencer: String,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checked {
    /// Whether the grant was held when the store was asked.
    pub held: bool,
}

impl From<LockView> for Lock {
    fn from(view: LockView) -> Self {
        Self {
            token: view.token(),
            name: view.name,
            holders: view.holders.into_iter().map(Holder::from).collect(),
            waiters: view.waiters.into_iter().map(Waiter::from).collect(),
        }
    }
}

impl From<HolderView> for Holder {
    fn from(view: HolderView) -> Self {
        let (mode, permit_count) = ModeWord::of(view.mode);
        Self {
            owner: view.owner,
            token: view.token,
            mode,
            permit_count,
            ttl_left_ms: view.ttl_left.map(millis),
            lock_delay_ms: millis(view.lock_delay),
            held_ms: view.held.map(millis),
            label: view.label,
            claim: view.claim,
        }
    }
}

impl From<WaiterView> for Waiter {
    fn from(view: WaiterView) -> Self {
        let (mode, permit_count) = ModeWord::of(view.mode);
        Self {
            owner: view.owner,
            mode,
            permit_count,
            label: view.label,
        }
    }
}

/// The mode of a view. If a service omits a count, it means one permit.
fn mode(word: ModeWord, permit_count: Option<NonZeroU32>) -> Mode {
    let permit = Mode::Permit {
        of: NonZeroU32::MIN,
    };
    word.mode(permit_count).unwrap_or(permit)
}

impl From<Lock> for LockView {
    fn from(lock: Lock) -> Self {
        let holders = lock.holders.into_iter().map(HolderView::from).collect();
        let waiters = lock.waiters.into_iter().map(WaiterView::from).collect();
        Self::new(lock.name, holders, waiters)
    }
}

impl From<Holder> for HolderView {
    fn from(holder: Holder) -> Self {
        Self::new(holder.owner, mode(holder.mode, holder.permit_count))
            .claim(holder.claim)
            .token(holder.token)
            .ttl_left(holder.ttl_left_ms.map(Duration::from_millis))
            .lock_delay(Duration::from_millis(holder.lock_delay_ms))
            .held(holder.held_ms.map(Duration::from_millis))
            .label(holder.label)
    }
}

impl From<Waiter> for WaiterView {
    fn from(waiter: Waiter) -> Self {
        Self::new(waiter.owner, mode(waiter.mode, waiter.permit_count)).label(waiter.label)
    }
}
