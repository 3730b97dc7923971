//! The engine for ZooKeeper 3.6 and later, one server or an ensemble.
//!
//! A lock is a node right below the chroot; each claim is an ephemeral sequential node below that, laid out as Curator
//! does it, and holds when nothing before it excludes it. A waiter watches the node before its own, a reader the last
//! one ahead that is no reader. Tokens are the numbers of the transactions that made the nodes, times 32.
//!
//! | URL | |
//! | --- | --- |
//! | `zookeeper://[user:pass@]host:port,host:port[/chroot]` | the user is one of the scheme `digest` |
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `connect-timeout` | 5s | for a session to be opened |
//! | `response-timeout` | 1500ms | for one answer |
//! | `claim-window` | 6s | the session of those who wait: how long a dead one may hold up the line |
//! | `password-env`, `password-file` | | where the password is, other than in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format (feature `tls`); any of them means TLS to all servers |
//!
//! # Names and nodes
//! The name is the node's name, so `orders` below the chroot `/locks` is `/locks/orders`, where Curator's
//! `InterProcessMutex`, go-zookeeper and kazoo's `Lock` (with `extra_lock_patterns=["-lock-"]`) exclude us and we them. A
//! slash in a name does not make a deeper node: `/`, `%`, whatever ZooKeeper refuses in paths, and the names `.`, `..`
//! and `zookeeper` are percent-encoded, so that `/a/b` and `/a` have nothing to do with each other.
//!
//! # Sessions
//! ZooKeeper knows one timeout per session and no lease per lock. So a client has one short session (`claim-window`) for
//! waiting and young holds, and for each length of hold one of its own, to which a hold's node moves, keeping its place,
//! with the first renewal. The session of a hold is one and a half times its ttl plus its lock-delay, within what the
//! servers grant: the client gives up after two thirds of it, the ttl, and when its machine dies the lock is free after
//! all of it. A ttl above what sessions allow is kept up by renewals, and lost earlier than its length says; see
//! [`Promises::limits`](fencelock_core::Promises). Only what a quorum has taken counts as a renewal.
//!
//! # Least rights
//! At the chroot: `read`, `create`, `delete`. With a user, all nodes are made for that user alone, so all clients of a
//! lock are to use the same one; without, for everybody.
//!
//! # What to know
//! * The node of a name is a container: this engine deletes it a second after its last use, and the servers do when all
//!   clients are dead.
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
mod queue;
mod reap;
mod release;
mod renew;
mod rollback_repair;
mod server;
mod session;
mod state;
mod stored;
mod wait;

pub use engine::ZooKeeper;

/// Reads what may be stored, whoever stored it: for fuzzing alone.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    if let Ok(data) = stored::ClaimData::read(bytes) {
        // What is read is written as it was meant, and tells tokens.
        let (tokens, _) = data.tokens(7);
        let _ = tokens.contains(fencelock_core::Token(9));
        assert_eq!(stored::ClaimData::read(&data.write()), Ok(data));
    }
    let _ = names::decode(&String::from_utf8_lossy(bytes));
}
