//! The simple mode, for curl, PHP and cron: one request takes a lock, and waits for it (`POST /v1/claims`).

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Token};
use serde::{Deserialize, Serialize};

use crate::mode::ModeWord;
#[cfg(feature = "openapi")]
use crate::schema;

/// Takes a lock. The service draws the claim and its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SimpleTake {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// How it is to be held.
    #[serde(default)]
    pub mode: ModeWord,
    /// How many permits there are; with mode permit only.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::PermitCount>))]
    pub permit_count: Option<NonZeroU32>,
    /// The lease; by default 30000, or the longest that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// For how much longer the store keeps a lock whose holder vanished.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// How long to wait for the lock, at most 60000.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 60_000))]
    pub wait_ms: u64,
    /// Who claims, for people.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub owner: String,
    /// A note for people.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 255))]
    pub label: Option<String>,
}

/// The lock is held (201). Release it with the claim, the key and the name; renew it in time if need be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SimpleGrant {
    /// The claim.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
    pub claim: ClaimId,
    /// Its key: a secret.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Key))]
    pub key: String,
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LockName))]
    pub name: LockName,
    /// The fencing token, below 2^53.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
    pub token: Token,
    /// The grant as a text for the protected resource.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Sequencer))]
    pub sequencer: String,
    /// How long the client may believe, from when it sent the request.
    pub lease_ms_since_sent: u64,
    /// The lease.
    pub ttl_ms: u64,
    /// On a store that is bound to replicas: the one that has the claim. Later requests name it in the header
    /// `Fencelock-Replica`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// On a store that is bound to replicas: where later requests go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
}
