//! SQLite, the embedded default store: one file, for the processes of one machine.
//!
//! [`Options`] say which file it is and how to use it; each constructor and setter names its form in a URL.
//!
//! Without a path the file is `$XDG_STATE_HOME/fencelock/locks.db`, otherwise `~/.local/state/fencelock/locks.db`: one per
//! user. Programs of several users need one named path in a directory that all of them may write.
//!
//! An engine that only inspects ([`StoreUrl::inspect_only`](fencelock_core::StoreUrl::inspect_only)) creates and writes
//! nothing, and needs only the permission to read. Do not open one in a process that also takes locks in the same file:
//! SQLite has one view of its lock file per process.
//!
//! If a small write need not wait, its caller does it on its own thread. If your disk may stall for long (a network disk),
//! use a runtime of several threads: a runtime of one thread does not report a lost lock while the disk stalls.

mod acquire;
mod blocker;
mod boot;
mod config;
mod connection;
mod diagnose;
mod engine;
mod entry;
mod error;
mod file;
mod file_name;
mod handle;
mod inspect;
mod job;
mod options;
mod read_only;
mod reap;
mod record;
mod release;
mod renew;
mod rows;
#[cfg_attr(not(target_os = "linux"), path = "no_socket.rs")]
mod socket;
mod state;
mod stored;
mod tokens;
mod transaction;
mod wait;
mod wake_up;
mod worker;

pub use engine::Sqlite;
pub use options::Options;
