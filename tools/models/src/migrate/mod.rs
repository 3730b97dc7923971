//! Moving locks from one store to another while programs run: one name, two clients, two stores with a record each, and
//! administrators who change the phase. `crates/composite` implements it.
//!
//! Time is the rest of each lease and the age of each client's knowledge, so it has no limit; tokens, grants and steps
//! have limits. Clients may take any step or none at any moment. Requests and answers are up to a tick late, or lost.
//! Withdrawals arrive at any time or never: then the lease ends. An administrator may die or reverse the direction, and
//! there may be two at once.
//!
//! | phase | a new grant takes | and has the token of | a hold needs |
//! | --- | --- | --- | --- |
//! | 0 | old | old | old |
//! | 1 | old, then new | old | old |
//! | 2, the hush | is not given | | both |
//! | 3 | old, then new | new | new |
//! | 4 | new | new | new |
//!
//! Each step out of the hush takes a new floor for the tokens that count next. The exception is a step back to the
//! phase from which the hush came: the record contains that phase, but a lost record does not.
//!
//! When the first change is over, a second one may follow, back to the store where the first one began. It has its own records:
//! phases 5 to 9 are its phases 0 to 4, with the stores exchanged. Its programs are not those of the first change, which may
//! still hold and take locks by their knowledge.

mod bounds;
mod clients;
mod model;
mod state;
mod walk;

pub use bounds::Migration;
pub use state::{Event, Mutant, State, Step};
