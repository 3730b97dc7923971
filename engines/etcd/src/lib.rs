//! Locks in etcd: keys attached to leases, in a queue ordered by create revision.
//!
//! Each claim is one key under the prefix of its lock. The claim with the lowest create revision holds; the others wait in
//! that order, each watching its predecessor's key. One transaction takes a free lock, and one deletion releases it. The keys
//! are attached to a lease per client and ttl (a *session*), which is kept alive for all claims at once.
//!
//! Assumptions: the members' clocks run at about the right rate; the quorum keeps its data.
//!
//! [`Options`] say where the cluster is and how to use it; each constructor and setter names its form in a URL.
//!
//! # Layout
//! | key | |
//! | --- | --- |
//! | `fencelock/lock/<name>/<mode><client>-<number>` | a claim. `%` and `/` of the name are percent-encoded, so that no lock lies within another. The claim's id is in the value |
//! | `fencelock/base` | the token base, one for the whole store |
//! | `fencelock/mail/<client>/<claim id>` | a message to a holder: it was evicted, or is asked to let go |
//! | `fencelock/released/<name>/…` | for a second after the release of a contended lock |
//!
//! A client reuses its keys, because etcd remembers every key until its history is compacted.
//!
//! With `layout=concurrency` the keys are `<name>/<lease in hex>` as in Go, so that clients of both kinds exclude each other. This
//! layout has exclusive mode only, its tokens are bare create revisions, and, as in Go, a holder of `a/b` blocks `a`.
//!
//! # Tokens
//! A token is the create revision of the claim's key times 16, plus the token base. Clients raise the base until the next token
//! is at least the time in microseconds (see the module `token_base`). Tokens therefore keep increasing if the cluster is built
//! again or a snapshot is restored. A grant carries up to 15 tokens; the 16th is for a hold that is downgraded to shared.
//!
//! # Least rights
//! etcd 3.4 or later. With authentication enabled, a user needs `readwrite` on the prefix `fencelock/`; with
//! `layout=concurrency` also on the prefixes of the names that it locks.
//!
//! # Limits
//! * Leases are whole seconds, and the server has a shortest one (about twice its election timeout). The lock of a holder that
//!   vanished is kept for at least that long.
//! * Two kinds of claims are in a session with the lease `claim-window`: one that waits, and one that takes a lock which was
//!   contended recently. Such a claim holds in this session until its first renewal.
//! * When the leader changes, every lease begins anew with its whole ttl.

mod acquire;
mod cluster;
mod config;
mod connection;
mod diagnose;
mod engine;
mod entry;
mod error;
mod hold;
mod inspect;
mod keepalive;
mod layout;
mod mail;
mod options;
mod record;
mod release;
mod renew;
mod requests;
mod server;
mod session;
mod single_flight;
mod standing;
mod state;
mod stored;
mod token_base;
mod txns;
mod wait;
mod watches;

pub use engine::Etcd;
pub use layout::Layout;
pub use options::Options;

/// Reads bytes as a stored claim. For fuzzing only.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    stored::read_bytes(bytes);
}
