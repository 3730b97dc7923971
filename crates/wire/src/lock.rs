//! A lock as others see it, and what they can do about it.

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
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order where the store keeps one.
    pub waiters: Vec<Waiter>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Holder {
    /// For people.
    pub owner: String,
    /// The fencing token; null if the store does not know it yet.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Token>))]
    pub token: Option<Token>,
    /// How it is held.
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// For how long the store keeps the lock, its lock-delay included; null if it does not know.
    pub ttl_left_ms: Option<u64>,
    /// How much of that is lock-delay.
    pub lock_delay_ms: u64,
    /// For how long it has been held; null if the store does not know.
    pub held_ms: Option<u64>,
    /// A note for people.
    pub label: Option<String>,
    /// The claim; null if the store does not know.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::ClaimId>))]
    pub claim: Option<ClaimId>,
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiter {
    /// For people.
    pub owner: String,
    /// How it is to be held.
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// A note for people.
    pub label: Option<String>,
}

/// A part of the locks that are held. It may be empty and have a next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Locks {
    /// The locks, in no particular order.
    pub locks: Vec<Lock>,
    /// Where the next part begins (`cursor`); null at the end.
    pub next: Option<String>,
}

/// What may a process believe that joins the hold of this owner?
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

/// The hold of that owner, if it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attested {
    /// Null if the owner does not hold.
    pub holder: Option<Holder>,
    /// How long it may be believed, from when the request was sent; 0 if the owner does not hold.
    pub lease_ms_since_sent: u64,
}

/// How to end somebody else's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum EvictHow {
    /// Take it away.
    Release,
    /// Ask the holder.
    Ask,
}

/// Takes the lock from the holder with this token, or asks that holder for it.
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

/// Whether that holder was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evicted {
    /// False if no holder has this token.
    pub done: bool,
}

/// Is the grant of this sequencer still held?
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
    /// Whether it was held when the store was asked.
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

/// The mode of a view. A service that leaves out a count means one permit.
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
