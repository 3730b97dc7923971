//! The engine for one Redis or Valkey server.
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
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `connect-timeout` | 5s | for a connection to be made and prepared |
//! | `response-timeout` | 500ms | for one answer |
//! | `claim-window` | 2s | how long a lock that was handed over waits for a sign of life |
//! | `restart-delay` | 0 | grant nothing for so long after a restart of the server: the longest lease in use |
//! | `password-env`, `password-file` | | where the password is, other than in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format: the authority to trust, and this client's certificate |

mod config;
mod connection;
mod engine;
mod facts;
mod hub;
mod inspect;
mod refusal;
mod scripts;
mod value;
mod waiters;

pub use engine::Redis;
