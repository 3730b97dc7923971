//! Locks through the lock service (`fencelock serve`): the HTTP API of its replicas as an engine.
//!
//! The store behind the service keeps the locks. On most stores, any replica serves any request. Only the client renews a hold,
//! and only the client decides how long it believes in a hold, by its own clock.
//!
//! * The id of a claim commits to a secret key of this client (`Fencelock-Key`). So nobody else can make requests for the
//!   claim, and no replica has to store anything about it.
//! * A duration in an answer counts from when this client sent the request.
//! * A first grant lasts for the store's claim window; the first renewal brings the whole ttl.
//! * A claim that waits polls again and again, each time for half of a claim window. Each poll keeps its place, at any replica.
//! * A request without an answer may still take effect, and then takes the lock for a claim window. So its claim is released
//!   again in the background, until two claim windows after that request was sent. If a poll is open when a claim is released,
//!   the release waits for its end.
//! * On a store whose claims belong to a replica (etcd, ZooKeeper, Redlock) a claim stays with the replica that got its first
//!   request, and ends with that replica. A waiting claim is then over; the core makes a new claim, with a new id, at another
//!   replica.
//! * Each replica is asked once which store it serves, and again after a restart. Two stores behind one URL are refused.
//!
//! [`Options`] say where the service is and how to use it; each constructor and setter names its form in a URL.

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
mod open;
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
