//! The engines for Redis and Valkey: [`Redis`] for one server, a master that Sentinels watch, or a cluster, described here;
//! and [`Redlock`] for several servers of which a majority decides.
//!
//! The lock is a plain string at the key that is the lock's name, so that the usual clients that do `SET NX PX` on the
//! same name exclude this one and are excluded by it. Whoever releases hands the lock to the next in line on the server,
//! in one script, and the server tells that process at once. Tokens come from one counter per store; nothing is kept
//! per name.
//!
//! What it assumes: the node keeps its memory (see [`Promises::limits`](fencelock_core::Promises) for what the server's
//! configuration says about that), and its clock runs at about the right rate.
//!
//! | URL | |
//! | --- | --- |
//! | `redis://[user:pass@]host:port[/db]`, `valkey://...` | over TCP |
//! | `rediss://...` | over TLS (feature `tls`) |
//! | `redis+unix:///path` | over a Unix socket |
//! | `redis+sentinel://h1:p1,h2:p2,h3:p3/MASTER` | the master of that name, through its fail-overs |
//! | `redis+cluster://h1:p1,h2:p2` | a cluster of Redis 7 or later |
//! | `rediss+sentinel://...`, `rediss+cluster://...` | over TLS |
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `connect-timeout` | 5s | for a connection to be made and prepared |
//! | `response-timeout` | 500ms | for one answer |
//! | `claim-window` | 2s | how long a lock that was handed over waits for a sign of life |
//! | `restart-delay` | 0 | grant nothing for so long after a restart of the server: the longest lease in use |
//! | `replicas` | 0 | how many replicas must have a grant or a renewal before it counts (`WAIT`) |
//! | `promotion-delay` | 0 | Sentinel only: grant nothing for so long after a fail-over; no lease may be longer |
//! | `sentinel-user`, `sentinel-password-env`, `sentinel-password-file` | | for the Sentinels themselves |
//! | `address-map` | | `TOLD=REAL,...`: where to find servers (`HOST:PORT`) other than where one is told |
//! | `password-env`, `password-file` | | where the password is, other than in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format: the authority to trust, and this client's certificate |
//!
//! # Least rights
//! Redis 6 or later. An ACL user needs the keys that it locks and those beside them (`~{*}:fencelock:*`,
//! `~fencelock:*`), the channels `&fencelock:*` (new users of Redis 7 have none), and the commands
//! `hello client|id client|kill info config|get subscribe publish eval evalsha time get getrange set del exists incrby pttl pexpire
//! pexpireat zadd zrem zpopmin zrange zrangebyscore zscore zcard zrank hset hget hdel hmget hgetall scan`. Without
//! `client|kill` a withdrawal after a broken connection is repeated for one lease; without `info` and `config|get` less can
//! be said about what the server may forget. `replicas` needs `wait`; a cluster `cluster|info cluster|slots asking
//! ssubscribe sunsubscribe spublish` besides. A store that is opened to look only
//! ([`StoreUrl::inspect_only`](fencelock_core::StoreUrl)) needs no channels, no scripts and no right to write: of the commands
//! `hello client|id info config|get time get pttl zrange hgetall hmget scan`, and those of a cluster.
//!
//! # What to know
//! * A lock may be taken out of turn where its key is absent while a line stands: after the holder's lease ended, or its
//!   key was deleted.
//! * A waiter whose process is connected and does not react holds up its line for one claim window; so N of them for N.
//! * Unsafe remain: a proxy that hides a fail-over, a manual fail-back on a connection that survives, and a server that
//!   was emptied and whose clock is behind.

mod acquire;
mod client;
mod clocks;
mod cluster;
mod config;
mod connect;
mod connection;
mod contention;
mod diagnose;
mod earlier;
mod engine;
mod entry;
mod error;
mod health;
mod inspect;
mod keys;
mod machine;
mod node;
mod persistence;
mod promises;
mod redlock;
mod release;
mod renew;
mod reply;
mod scan;
mod scripts;
mod sentinel;
mod server;
mod servers;
mod slot_channels;
mod slot_map;
mod state;
mod stored;
mod unanswered;
mod uptime;
mod wait;
mod writer;

pub use engine::Redis;
pub use redlock::Redlock;

/// Reads what may be stored, whoever stored it: for fuzzing alone.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    drop(stored::Stored::parse(bytes));
    drop(stored::Message::parse(bytes));
    let text = String::from_utf8_lossy(bytes);
    drop(stored::Hold::parse_shared(&"0".repeat(32), &text));
    drop(stored::waiter_view(&text));
    drop(stored::foreign_view(bytes, None));
}
