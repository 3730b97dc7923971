//! What the store of the service promises: `GET /v1/store`.

use serde::{Deserialize, Serialize};

/// What a claim belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// The store: any replica serves any request.
    Store,
    /// The replica that placed it: all later requests of the claim go there.
    Replica,
}

/// What the store promises, and the replica that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Store {
    /// The engine: "redis", "sqlite".
    pub engine: String,
    /// Its URL without passwords, and what else decides which locks it means, such as a prefix.
    pub store: String,
    /// What a claim belongs to.
    pub binding: Binding,
    /// The length of a first grant, and of a place in the queue.
    pub claim_window_ms: u64,
    /// The longest wait of a request. After it a client asks again at once.
    pub poll_ms: u64,
    /// The order of waiters: `fifo` or `none`.
    pub order: String,
    /// Whether there is shared mode.
    pub shared: bool,
    /// Whether there are permits.
    pub permits: bool,
    /// Whether there is a lock-delay.
    pub lock_delay: bool,
    /// What ends a hold whose client has gone: `lease` or `session`.
    pub lease: String,
    /// How waiters wake: `push` or `poll`.
    pub wake: String,
    /// What the store remembers after a crash: `durable`, `process` or `volatile`.
    pub durability: String,
    /// What clocks must do, as a sentence.
    pub clock: String,
    /// The shortest lease.
    pub min_ttl_ms: u64,
    /// The longest sum of lease and lock-delay.
    pub max_ttl_ms: u64,
    /// The ways in which this store could grant a lock twice; empty if none is known.
    pub limits: Vec<Finding>,
    /// The version of the service.
    pub version: String,
    /// What the service can do. A client uses only members of features that it finds here.
    pub features: Vec<String>,
    /// The id of the replica that answers: 16 hex digits, chosen at random at its start.
    pub replica: String,
    /// The URL of this replica, if its operator named one.
    pub advertise: Option<String>,
}

/// Something about a store that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The purpose that is at risk: `correctness` or `efficiency`.
    pub purpose: String,
    /// What may happen, and when.
    pub what: String,
    /// What to change.
    pub change: String,
}

/// What is wrong with the store at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Findings {
    /// Empty if nothing is wrong.
    pub findings: Vec<Finding>,
}

impl From<&fencelock_core::engine::Finding> for Finding {
    fn from(finding: &fencelock_core::engine::Finding) -> Self {
        Self {
            purpose: finding.purpose.as_str().to_owned(),
            what: finding.what.clone(),
            change: finding.change.clone(),
        }
    }
}

impl From<Finding> for fencelock_core::engine::Finding {
    fn from(finding: Finding) -> Self {
        let purpose = match finding.purpose.as_str() {
            "correctness" => fencelock_core::engine::Purpose::Correctness,
            _ => fencelock_core::engine::Purpose::Efficiency,
        };
        Self::new(purpose, finding.what, finding.change)
    }
}
