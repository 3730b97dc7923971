//! A set that moves from one map to another while programs run: each name takes the stores that the phase asks for.
//!
//! What must be true, and why it is: any two beliefs that can exist at once share a store in which both hold. Neighbouring phases
//! do by what their holds need; phases 1 and 3 since each new grant in them takes both stores. Phases 0 and 4, and what lies
//! further apart, are kept apart by time: knowledge of the record is a lease ([`knowledge`]), and who makes a step waits for
//! it ([`Migration`](crate::Migration)).

pub(crate) mod acquire;
pub(crate) mod engine;
pub(crate) mod entry;
mod inspect;
pub(crate) mod knowledge;
mod release;
mod renew;
pub(crate) mod state;
mod wait;
