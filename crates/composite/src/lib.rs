//! Stores made of stores: [`Routed`] spreads the names of locks over several stores, the *shards* of a *set*.
//!
//! Each name has one store, which rendezvous hashing chooses ([`Map`]). All else is that store's: its tokens, its queue, its
//! leases. So a shard that is away costs its own names only, and no other shard stands in for it: that would be two stores
//! for one name.
//!
//! Each store of a set keeps a record that says which shard of which set it is. It is written once, before the first lock
//! is taken, by [`Shards::init`]; [`Shards::open`] refuses a store whose record says something else.

mod diagnose;
mod engine;
mod hash;
mod inspect;
mod map;
mod member;
mod open;
mod opened_events;
mod partial;
mod promises;
mod set;
mod shard;
mod stored;

pub use engine::Routed;
pub use hash::hash;
pub use map::{KeyRule, MAX_WEIGHT, Map};
pub use open::Opening;
pub use partial::list_partial;
pub use set::Shards;
pub use shard::{OpenStore, Shard};
