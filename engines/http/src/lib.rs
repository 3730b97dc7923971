//! Locks through the lock service (`fencelock serve`): the HTTP API of its replicas as an engine.
//!
//! The store behind the service keeps the locks, and, on most stores, any replica serves any request. Only the client renews a
//! hold, and only the client decides how long it believes in it, by its own clock.
//!
//! * A claim is its id, which commits to a secret key of this client (`Fencelock-Key`). So nobody else speaks for it, and no
//!   replica has stored anything about it.
//! * A duration in an answer counts from when this client sent the request.
//! * A first grant lasts for the store's claim window; the first renewal brings the whole ttl.
//! * A claim that waits asks again and again, each time for half of a claim window. That keeps its place, at whatever
//!   replica.
//! * A request without an answer may still take effect, and then takes the lock for a claim window. So its claim is released
//!   again in the background, until that request was sent two claim windows ago. A poll that is open when a claim is
//!   released ends first.
//! * On a store whose claims belong to a replica (etcd, ZooKeeper, Redlock) a claim stays with the replica that was asked for it
//!   first, and ends with it. A claim that waited there is over then; the core claims anew, with a new id, at another one.
//! * Each replica is asked once which store it serves, also one that was restarted. Two stores behind one URL are refused.
//!
//! [`Options`] say where the service is and how to use it; the URL is in docs/stores.

mod acquire;
mod batch;
mod choices;
mod config;
mod connection;
mod engine;
mod entry;
mod error;
mod events;
mod exchange;
mod home;
mod idle;
mod inspect;
mod options;
mod release;
mod renew;
mod replicas;
mod reply;
mod server;
mod state;
mod tls;
mod wait;

pub use choices::{Identity, Spread};
pub use engine::Http;
pub use options::Options;
