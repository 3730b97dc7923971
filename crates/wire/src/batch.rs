//! Several requests in one, none of which waits: `POST /v1/batch`.

use fencelock_core::ClaimId;
use serde::{Deserialize, Serialize};

use crate::claim::{Granted, Release, Released, Take, Waiting};
use crate::problem::Problem;
#[cfg(feature = "openapi")]
use crate::schema;

/// Up to [`MOST_IN_BATCH`](crate::MOST_IN_BATCH) requests about claims of one key. Each claim appears once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The requests.
    #[cfg_attr(feature = "openapi", schema(max_items = 128))]
    pub claims: Vec<BatchOne>,
}

/// One request of a batch: either `take` or `release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchOne {
    /// The claim.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
    pub claim: ClaimId,
    /// The body of `PUT /v1/claims/{id}`, with a `wait_ms` of 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<Take>,
    /// The body of `POST /v1/claims/{id}/release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
}

/// The answer to one request of a batch, on its own line. The lines come in the order in which the answers are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchAnswer {
    /// The claim.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimId))]
    pub claim: ClaimId,
    /// The status of the same request outside a batch.
    pub status: u16,
    /// After how many seconds to ask again, if the service says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// The body of the answer to the same request outside a batch.
    pub body: BatchBody,
}

/// The content of an answer, by its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum BatchBody {
    /// The claim holds (200).
    Granted(Granted),
    /// The claim waits (202).
    Waiting(Waiting),
    /// The claim neither holds nor waits any more (200).
    Released(Released),
    /// The request was not served.
    Problem(Problem),
}
