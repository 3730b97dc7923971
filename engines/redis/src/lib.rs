//! The engines for Redis and Valkey: [`Redis`] for one server, a master with Sentinels, or a cluster, described here; and
//! [`Redlock`] for several independent servers of which a majority decides.
//!
//! The lock is a plain string at the key that is the lock's name. So this engine and the usual clients that do `SET NX PX` on
//! the same name exclude each other. A release hands the lock to the first waiter on the server, in one script, and the
//! server tells that process at once. Tokens come from one counter per store; no key remains per name.
//!
//! The engine assumes that the server keeps its memory, and that the server's clock runs at about the right rate. The limits in
//! its promises depend on the server's settings.
//!
//! [`Options`] and [`redlock::Options`] say where the servers are; each constructor and setter names its form in a URL.
//!
//! # Rights
//! Redis 6 or later. An ACL user needs the keys of its locks and those beside them (`~{*}:fencelock:*`, `~fencelock:*`). It
//! needs the channels `&fencelock:*` (new users of Redis 7 have none). It needs the commands `hello client|id client|kill info
//! config|get subscribe publish eval evalsha time get getrange set del exists incrby pttl pexpire pexpireat zadd zrem zpopmin
//! zrange zrangebyscore zscore zcard zrank hset hget hdel hmget hgetall scan`. Without `client|kill` a withdrawal after a
//! broken connection is repeated for one lease. Without `info` and `config|get` the promises have less information on what
//! the server may lose. `replicas` also needs `wait`; a cluster also needs `cluster|info cluster|slots asking ssubscribe sunsubscribe
//! spublish`. A store that is opened only for inspection ([`StoreUrl::inspect_only`](fencelock_core::StoreUrl)) needs no
//! channels, no scripts and no right to write: only the commands `hello client|id info config|get time get pttl zrange hgetall
//! hmget scan`, and those of a cluster.
//!
//! # Limits
//! * If the key of a lock is absent while waiters queue, another claim may take the lock out of turn. This happens after the
//!   holder's lease has expired, and after another client deleted the key.
//! * A waiter whose process is connected and does not react delays its queue by one claim window. N of them in a row delay it
//!   by N windows.
//! * The engine does not protect against three things: a proxy that hides a fail-over; a manual fail-back during which the
//!   connection survives; and a server that was emptied and whose clock is behind.

mod acquire;
mod client;
mod clocks;
mod cluster;
mod config;
mod connect;
mod connection;
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
mod options;
mod persistence;
mod promises;
mod raise;
mod record;
pub mod redlock;
mod release;
mod renew;
mod reply;
mod route;
mod scan;
mod scripts;
mod sentinel;
mod server;
mod servers;
mod slot_channels;
mod slot_map;
mod state;
mod stored;
mod together;
mod unanswered;
mod uptime;
mod wait;
mod writer;

pub use engine::Redis;
pub use options::Options;
pub use redlock::Redlock;

/// Reads arbitrary bytes as stored values and messages. For fuzzing only.
#[doc(hidden)]
pub fn read_stored(bytes: &[u8]) {
    drop(stored::Stored::parse(bytes));
    drop(stored::Message::parse(bytes));
    let text = String::from_utf8_lossy(bytes);
    drop(stored::Hold::parse_shared(&"0".repeat(32), &text));
    drop(stored::waiter_view(&text));
    drop(stored::foreign_view(bytes, None));
}
