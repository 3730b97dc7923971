//! The protocol between the lock service and its clients: JSON bodies, headers, problems, and the key of a claim.
//!
//! Every duration is a whole number of milliseconds, and its member ends in `_ms`. A duration in an answer counts from when
//! the client **sent** the request that it answers. Requests refuse members that they do not know; answers may have more
//! members than a client knows.

mod batch;
mod claim;
mod key;
mod lock;
mod mode;
mod problem;
mod renewals;
#[cfg(feature = "openapi")]
pub mod schema;
mod simple;
mod store;
mod time;

pub use batch::{Batch, BatchAnswer, BatchBody, BatchOne};
pub use claim::{
    DEFAULT_TTL_MS, Granted, How, Outcome, Release, Released, Renew, Renewed, Take, Waiting,
    WordHeld, WordWaiting,
};
pub use key::{BadKey, ClaimKey};
pub use lock::{
    Attest, Attested, Check, Checked, Evict, EvictHow, Evicted, Holder, Lock, Locks, Waiter,
};
pub use mode::ModeWord;
pub use problem::{CONTENT_TYPE, Kind, Problem};
pub use renewals::{RenewMany, RenewOne, RenewedMany, RenewedOne};
pub use simple::{SimpleGrant, SimpleTake};
pub use store::{Binding, Finding, Findings, Store};
pub use time::{millis, millis_up};

/// The header with the [key](ClaimKey) of the claims that a request is about.
pub const KEY: &str = "fencelock-key";

/// The header that names a replica. In an answer: the replica that answers. In a request: the replica that is meant.
pub const REPLICA: &str = "fencelock-replica";

/// The maximum number of claims that one request renews.
pub const MOST_RENEWALS: usize = 500;

/// The maximum number of requests in one batch.
pub const MOST_IN_BATCH: usize = 128;

/// The media type of answers with one JSON value on each line.
pub const LINES: &str = "application/x-ndjson";

/// The feature of a service that answers batches.
pub const BATCH: &str = "batch";

/// The feature of a service that answers with the place of a claim at once, and with its result on a second line.
pub const PLACE: &str = "place";

/// The feature of a service whose renewals never shorten a lease, unless they say that they may.
pub const SHORTEN: &str = "shorten";

/// The feature of a service that omits from a stream of events what this parameter of the stream names.
pub const WITHOUT: &str = "without";

/// The maximum length of an owner's name, in bytes. The service puts the name of the principal before it.
pub const MOST_OWNER_BYTES: usize = 200;
