//! Many holds at once: `POST /v1/renewals`.

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Token};
use serde::{Deserialize, Serialize};

use crate::mode::ModeWord;
#[cfg(feature = "openapi")]
use crate::schema;

/// Prolongs up to [`MOST_RENEWALS`](crate::MOST_RENEWALS) holds of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewMany {
    /// The holds.
    #[cfg_attr(feature = "openapi", schema(max_items = 500))]
    pub claims: Vec<RenewOne>,
}

/// One of these holds. All members except `claim` are as in [`Renew`](crate::Renew).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewOne {
    /// The claim that holds.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
    pub claim: ClaimId,
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

/// The answers, in the order of the request (200).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewedMany {
    /// One answer for each hold.
    pub claims: Vec<RenewedOne>,
}

/// The answer for one hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum RenewedOne {
    /// The hold was prolonged.
    Held {
        /// The claim.
        #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
        claim: ClaimId,
        /// The token of the grant.
        #[cfg_attr(feature = "openapi", schema(value_type = schema::Token))]
        token: Token,
        /// How long the client may believe that it holds, from when it sent the request.
        lease_ms_since_sent: u64,
        /// Whether that is the whole lease.
        full_ttl: bool,
        /// Whether somebody asked for the lock.
        release_requested: bool,
    },
    /// The claim does not hold, or not by this grant.
    Lost {
        /// The claim.
        #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
        claim: ClaimId,
    },
    /// The store did not answer, or the service refuses this renewal. The earlier validity is unchanged.
    Unknown {
        /// The claim.
        #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
        claim: ClaimId,
        /// What happened.
        detail: String,
    },
}
