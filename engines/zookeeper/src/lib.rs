//! The engine for ZooKeeper 3.6 and later, one server or an ensemble.
//!
//! A lock is a node directly below the chroot. Each claim is an ephemeral sequential node below that, in Curator's layout. A
//! claim holds when no claim ahead of it excludes it. A waiter watches the node ahead of its own, a reader the last node
//! ahead that is no reader. A claim's token is the id of the transaction that created its node, times 32.
//!
//! [`Options`] say where the servers are and how to use them; each constructor and setter names its form in a
//! URL.
//!
//! # Names and nodes
//! The lock's name is the node's name: `orders` below the chroot `/locks` is `/locks/orders`, where Curator's
//! `InterProcessMutex`, go-zookeeper and kazoo's `Lock` (with `extra_lock_patterns=["-lock-"]`) exclude fencelock and are
//! excluded by it. A slash in a name does not make a deeper node: `/`, `%`, characters that ZooKeeper refuses in paths, and
//! the names `.`, `..` and `zookeeper` are percent-encoded, so that `/a/b` and `/a` are independent locks.
//!
//! # Sessions
//! ZooKeeper has one timeout per session and no lease per lock. So a client has one short session (`claim-window`) for waiting
//! claims and young holds, and one session for each length of hold. With its first renewal a hold's node moves to that session
//! and keeps its place. The timeout of a hold's session is one and a half times its ttl plus its lock-delay, within the limits
//! of the servers. The client gives up after two thirds of that, which is the ttl. If its machine dies, the lock is free when
//! the whole timeout is over. For a ttl above the servers' limit, renewals keep the hold, and a loss comes earlier than the ttl
//! says; see [`Promises::limits`](fencelock_core::Promises). Only a request that a quorum has processed counts as a renewal.
//!
//! # Least rights
//! At the chroot: `read`, `create`, `delete`. With a user, all nodes are created for that user alone, so all clients of a
//! lock must use the same user. Without a user, nodes are created for everybody.
//!
//! # Limits
//! * The lock's node is a container. This engine deletes it one second after its last use, and the servers delete it when
//!   all clients are dead.
//! * Permits (`Mode::Permit`) watch as many nodes as may hold beside them.

mod acquire;
mod alone_hint;
mod attest;
mod claim_node;
mod config;
mod connection;
mod diagnose;
mod engine;
mod entry;
mod error;
mod hold_watch;
mod inspect;
mod lock_node;
mod names;
mod open;
mod options;
mod queue;
mod reap;
mod record;
mod release;
mod renew;
mod rollback_repair;
mod server;
mod session;
mod session_pool;
mod state;
mod stored;
mod token_base;
mod token_history;
mod wait;

pub use engine::ZooKeeper;
pub use options::Options;

/// Reads the data and the name of a node that any client may have written. For fuzzing.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    if let Ok(data) = stored::ClaimData::read(bytes) {
        let (tokens, _) = data.tokens(fencelock_core::Token(7));
        let _ = tokens.contains(fencelock_core::Token(9));
        // What was read does not change when it is written and read again.
        assert_eq!(stored::ClaimData::read(&data.write()), Ok(data));
    }
    let _ = names::decode(&String::from_utf8_lossy(bytes));
}
