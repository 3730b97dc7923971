//! Locks in etcd: keys under session leases, in line by revision.
//!
//! Each claim is one key under the lock's own prefix. Who has the lowest create revision there holds; the others stand in
//! line in that order, each watching the key before its own. One transaction takes a free lock and one deletion releases
//! it. What keeps the keys is a lease per client and length of lease (a *session*), kept alive for all claims at once.
//!
//! What it assumes: the members' clocks run at about the right rate; the quorum keeps its data.
//!
//! | URL | |
//! | --- | --- |
//! | `etcd://[user:pass@]h1:p1,h2:p2,h3:p3` | one cluster; the port is 2379 if none is given |
//! | `etcds://...` | over TLS (feature `tls`) |
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `connect-timeout` | 5s | for a member that has a leader to be found |
//! | `response-timeout` | 2s | for one answer |
//! | `claim-window` | 5s | the lease of the session in which claims wait: for how long a dead waiter keeps its place |
//! | `layout` | `fencelock` | `concurrency`: the keys of Go's package `concurrency` and of `etcdctl lock` |
//! | `password-env`, `password-file` | | where the password is, other than in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format: the authority to trust (else the system's), and this client's certificate |
//!
//! # Layout
//! `fencelock/lock/<name>/<mode><client>-<number>`, with `%` and `/` of the name percent-encoded, so that no lock stands within
//! another, and the claim's id in the value. A client uses its keys again, because etcd remembers all that it ever had until it is
//! compacted; `fencelock/base`, one key for the whole store, from which tokens are counted; `fencelock/mail/<client>/<claim
//! id>`, while a holder is being told that it was evicted or is asked to let go; `fencelock/released/<name>/…`, for a second after
//! the release of a lock that is in demand.
//!
//! With `layout=concurrency` the keys are `<name>/<lease in hex>` as in Go, so that they and we exclude each other. Then
//! there is exclusive mode only, tokens are bare create revisions, and, as in Go, holding `a/b` blocks `a`.
//!
//! # Tokens
//! The create revision of the claim's key times 16, on top of `fencelock/base`: the time in microseconds at which the
//! store was first used, so that tokens go on increasing should the cluster ever be built anew. A grant carries up to 15; the last is for a hold that is
//! downgraded to shared.
//!
//! # Least rights
//! etcd 3.4 or later. With authentication on, a user needs `readwrite` on the prefix `fencelock/`; with
//! `layout=concurrency` also on the prefixes of the names that it locks.
//!
//! # What to know
//! * Leases are whole seconds, and the server has a shortest one (twice its election timeout or so): a holder that
//!   vanished is kept for that at least.
//! * A claim that waits, or comes to a lock that was found taken of late, is in a session with the lease `claim-window`, and holds
//!   in it until its first renewal.
//! * A change of the leader prolongs all leases by one lease.

mod attempt;
mod base;
mod claims;
mod config;
mod diagnose;
mod engine;
mod inspect;
mod layout;
mod link;
mod mail;
mod place;
mod refusal;
mod release;
mod renew;
mod session;
mod txns;
mod value;
mod wait;
mod watches;

pub use engine::Etcd;

/// Reads what may be stored, whoever stored it: for fuzzing alone.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    value::read_bytes(bytes);
}
