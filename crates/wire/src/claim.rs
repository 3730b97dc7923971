//! One claim: to take or to wait (`PUT /v1/claims/{id}`), to renew and to release.

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Token};
use serde::{Deserialize, Serialize};

use crate::mode::ModeWord;
#[cfg(feature = "openapi")]
use crate::schema;

/// The lease of a request that names no lease, if the service allows leases of this length. Otherwise it is the longest
/// allowed lease.
pub const DEFAULT_TTL_MS: u64 = 30_000;

pub(crate) const fn default_ttl_ms() -> u64 {
    DEFAULT_TTL_MS
}

/// Takes a lock, joins the queue, or continues to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The mode.
    #[serde(default)]
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// The lease. The default is 30000, or the longest allowed lease if that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// How much longer the store keeps a lock whose holder disappeared.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// Whether to wait in the queue if the lock is not free.
    #[serde(default)]
    pub queue: bool,
    /// The maximum time until the answer. The service answers sooner if it must.
    #[serde(default)]
    pub wait_ms: u64,
    /// The owner, for people.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub owner: String,
    /// A note for people.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 255))]
    pub label: Option<String>,
}

/// A constant word of an answer, so that one answer cannot be taken for another.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident $variant:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "lowercase")]
        pub enum $name {
            /// The word.
            #[default]
            $variant,
        }
    };
}

word!(
    /// `held`.
    WordHeld Held
);
word!(
    /// `waiting`.
    WordWaiting Waiting
);

/// The claim holds (200).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Granted {
    /// Always `held`.
    pub state: WordHeld,
    /// The claim.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
    pub claim: ClaimId,
    /// Its fencing token, below 2^53.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
    pub token: Token,
    /// The grant as a text for the protected resource.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Sequencer))]
    pub sequencer: String,
    /// The mode.
    pub mode: ModeWord,
    /// How long the client may believe that it holds, from when it sent the request.
    pub lease_ms_since_sent: u64,
    /// Whether that is the whole lease. If not, the first renewal makes it the whole lease.
    pub full_ttl: bool,
    /// Whether somebody asked for the lock.
    pub release_requested: bool,
}

/// The claim waits in the queue (202).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    /// Always `waiting`.
    pub state: WordWaiting,
    /// How many waiters are before this one; null if the store keeps no order.
    pub ahead: Option<u64>,
    /// The place in the queue ends this long after the request was sent, unless the client asks again.
    pub poll_within_ms: u64,
    /// Why the store grants nothing to any client at this time, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
}

/// Prolongs one hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The token of the grant that is renewed.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
    pub token: Token,
    /// The lease, as in the first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Whether the lease may end sooner than before. Without this, a renewal never shortens a lease. So a renewal that
    /// arrives a second time takes nothing from a later one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shorten: bool,
    /// As in the first request.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// As in the first request.
    #[serde(default)]
    pub mode: ModeWord,
    /// As in the first request.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// As in the first request.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub owner: String,
    /// As in the first request.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 255))]
    pub label: Option<String>,
}

/// The hold was prolonged (200).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Renewed {
    /// Always `held`.
    pub state: WordHeld,
    /// The token of the grant.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
    pub token: Token,
    /// How long the client may believe that it holds, from when it sent the request.
    pub lease_ms_since_sent: u64,
    /// Whether that is the whole lease.
    pub full_ttl: bool,
    /// Whether somebody asked for the lock.
    pub release_requested: bool,
}

/// How to release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// The next waiter may have the lock at once.
    #[default]
    Release,
    /// After a loss: the lock-delay still runs.
    Abandon,
}

/// Releases, leaves the queue, or undoes a request whose answer was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// How to release.
    #[serde(default)]
    pub how: How,
    /// As in the first request.
    #[serde(default)]
    pub mode: ModeWord,
    /// As in the first request.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// As in the first request.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// As in the first request.
    #[serde(default = "default_ttl_ms")]
    pub ttl_ms: u64,
}

/// The state that a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The claim held until now.
    Released,
    /// It waited, and has left the queue.
    LeftQueue,
    /// It held, and its lease had ended before.
    AlreadyExpired,
    /// It neither held nor waited. A repeated release finds this, too.
    NotOwner,
}

/// The claim neither holds nor waits any more (200).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Released {
    /// The state that was found.
    pub released: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_enough() {
        let take: Take = serde_json::from_str(r#"{"name":"nightly"}"#).unwrap();
        assert_eq!((take.ttl_ms, take.queue, take.wait_ms), (None, false, 0));
        assert_eq!(take.mode, ModeWord::Exclusive);
    }

    #[test]
    fn unknown_members_and_bad_names_are_refused() {
        for body in [
            r#"{"name":"a","tll_ms":1}"#,
            r#"{"name":""}"#,
            "{}",
            r#"{"name":"a","ttl_ms":-1}"#,
        ] {
            assert!(serde_json::from_str::<Take>(body).is_err(), "{body}");
        }
    }

    #[test]
    fn words_are_as_documented() {
        let released = Released {
            released: Outcome::LeftQueue,
        };
        let text = serde_json::to_string(&released).unwrap();
        assert_eq!(text, r#"{"released":"left-queue"}"#);
        let waiting = Waiting {
            state: WordWaiting::Waiting,
            ahead: None,
            poll_within_ms: 2000,
            stalled: None,
        };
        let text = serde_json::to_string(&waiting).unwrap();
        assert_eq!(
            text,
            r#"{"state":"waiting","ahead":null,"poll_within_ms":2000}"#
        );
    }
}
