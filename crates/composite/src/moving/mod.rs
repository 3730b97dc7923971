//! A set that moves from one map to another while programs run: each name takes the stores that the phase demands.
//!
//! The invariant: if two clients believe at the same time, there is a store in which both hold. For neighbouring phases this
//! follows from the stores that their holds need. For phases 1 and 3 it follows because each new grant takes both stores. Other
//! pairs of phases, such as 0 and 4, share no store. A client in the one and a client in the other never believe at the same
//! time: knowledge of the record is a lease ([`knowledge`]), and each step waits for it to end ([`Migration`](crate::Migration)).

pub(crate) mod acquire;
pub(crate) mod engine;
pub(crate) mod entry;
mod inspect;
pub(crate) mod knowledge;
mod release;
mod renew;
pub(crate) mod state;
mod wait;
