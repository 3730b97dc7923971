//! The engine for N independent Redis servers, of which a majority decides (Redlock), with fencing tokens.
//!
//! [`Options`] say where the servers are and how to use them.
//!
//! The lock is a plain string at the key that is the lock's name. So this engine and Redlock clients that do `SET NX PX` at
//! each node exclude each other. Besides the locks each node has one hash of fixed size, `fencelock:redlock`.
//!
//! # When a node does not vote
//! A server process votes once it was *admitted*. A client admits it `max-ttl` and 2 s after a client saw it first, and raises
//! its counters to those of the other nodes. If the process still has its memory, a client admits it as soon as it has used that
//! much processor time. Nobody can set the clocks that measure these two times: the boot clocks of the machines with clients, and
//! the processor's. So a store of new nodes grants nothing for its first 32 s. A client knows a process by the run id that `INFO`
//! reports at each connection. If a node no longer has the scripts, or its counters have fallen, the client checks it again. If
//! the clock of a node was set, as compared with this machine's boot clock, the node does not vote for as long either.
//!
//! # Limits
//! * There is no order among waiters: a node wakes one waiter after a release, and each waiter also tries again by itself.
//! * One timing assumption remains: each node's clock runs at about the right rate, and a clock that is set is noticed. A
//!   client notices it at nodes to which it was connected before.
//! * Tokens do not depend on clocks, with one exception: if a whole quorum loses its memory, tokens continue from the nodes'
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
mod options;
mod promises;
mod raise;
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
pub use options::Options;
