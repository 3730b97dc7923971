//! Stores made of stores: [`Routed`] spreads the names of locks over several stores, the *shards* of a *set*.
//!
//! Each name has one store, which rendezvous hashing chooses ([`Map`]). The lock's tokens, queue and leases are that store's.
//! So a shard that is away affects only its own names. No other shard replaces it: then one name would lie on two stores.
//!
//! Each store of a set keeps a record that says which shard of which set it is. It is written once, before the first lock
//! is taken, by [`Shards::init`]; [`Shards::open`] refuses a store whose record says something else.

mod diagnose;
mod dissolve;
mod engine;
mod hash;
mod inspect;
mod known;
mod map;
mod maps;
mod member;
mod migrate;
mod migration;
mod moving;
mod open;
mod opened_events;
mod partial;
mod phase;
mod promises;
mod record_in;
mod set;
mod shard;
mod stored;
mod times;
mod unused;

pub use engine::Routed;
pub use hash::hash;
pub use map::{KeyRule, MAX_WEIGHT, Map};
pub use migrate::Migrate;
pub use migration::{How, Migration, Prepare, Status, Stepped, StoreStatus, Unpaired};
pub use moving::engine::Moving;
pub use open::Opening;
pub use partial::{list_partial, shards_away};
pub use phase::Phase;
pub use record_in::RecordIn;
pub use set::Shards;
pub use shard::{OpenStore, Shard};
pub use stored::{may_stand_alone, uses_store};
