//! The engine for N independent Redis servers, of which a majority decides (Redlock), with fencing tokens.
//!
//! `redlock://[user:pass@]h1:p1,[user:pass@]h2:p2,h3:p3[/db]`, over TLS `redlocks://`. Credentials that only the first host
//! has are for all of them.
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `quorum` | the majority | how many nodes must agree; with more of them, more nodes may lose their memory unnoticed |
//! | `node-timeout` | 50ms | how long one node may take to reply; every ttl must be at least five times as long |
//! | `max-ttl` | 30s | the longest ttl with its lock-delay; a restarted node does not vote for that time and 2 s |
//! | `first-node-gate` | no | `yes`: after a split vote the first node is asked alone, before the others |
//! | `connect-timeout` | 5s | how long connecting and preparing may take |
//! | `password-env`, `password-file` | | where the password of all nodes is, if not in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format: the authority to trust, and this client's certificate |
//!
//! The lock is a plain string at the key that is the lock's name. So this engine and Redlock clients that do `SET NX PX` at
//! each node exclude each other. Besides the locks each node has one hash of fixed size, `fencelock:redlock`.
//!
//! # When a node does not vote
//! A server process votes once it was *admitted*: `max-ttl` and 2 s after a client saw it first, with no counter below those
//! of the other nodes. If it still has its memory, it is admitted as soon as it has used so much processor time. Both times
//! are measured by clocks that cannot be set: the boot clocks of the machines with clients, and the processor's. So a store
//! of new nodes grants nothing for its first 32 s. A process is known by the run id that `INFO` tells at each connection; a
//! node that no longer has the scripts, or whose counters have fallen, is examined again. A node whose clock was set,
//! compared with this machine's boot clock, does not vote for as long either.
//!
//! # What to know
//! * There is no order among waiters: a waiter is told of a release, and also tries again by itself.
//! * The timing assumption that remains: each node's clock runs at about the right rate, and setting one is noticed. A
//!   client notices it at nodes to which it was connected before.
//! * Tokens do not depend on clocks, with one exception: if a whole quorum loses its memory, tokens go on from the nodes'
//!   time.

mod acquire;
mod ballot;
mod batcher;
mod clock;
mod config;
mod connection;
mod diagnose;
mod engine;
mod error;
mod inspect;
mod membership;
mod node;
mod open;
mod promises;
mod release;
mod renew;
mod round;
mod scripts;
mod state;
mod tokens;
mod votes;
mod wait;
mod withdrawal;

pub use engine::Redlock;
