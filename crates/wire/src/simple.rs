//! The simple mode, for curl, PHP and cron: one request waits for a lock and takes it (`POST /v1/claims`).

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Token};
use serde::{Deserialize, Serialize};

use crate::mode::ModeWord;
#[cfg(feature = "openapi")]
use crate::schema;

/// Takes a lock. The service makes the claim and its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SimpleTake {
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
    /// The maximum time to wait for the lock, up to 60000.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 60_000))]
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

/// The lock is held (201). Release it with the claim, the key and the name. Renew it in time if necessary.
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
    /// How long the client may believe that it holds, from when it sent the request.
    pub lease_ms_since_sent: u64,
    /// The lease.
    pub ttl_ms: u64,
    /// On a store that is bound to replicas: the replica that has the claim. Later requests name it in the header
    /// `Fencelock-Replica`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// On a store that is bound to replicas: the URL for later requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
}
