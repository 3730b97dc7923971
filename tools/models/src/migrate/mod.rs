//! Moving locks from one store to another while programs run: one name, two clients, two stores, a record in each, and whoever
//! walks through the phases. It is built in `crates/composite`.
//!
//! Time is what is left of each lease and how old each knowledge is, so it has no end; tokens, grants and walks have. Clients may
//! take any step or none at any moment. Requests and answers are up to a tick late, or lost. Withdrawals arrive at any time or
//! never: then the lease ends. Whoever walks through the phases may die, be two, or turn round.
//!
//! | phase | a new grant takes | and has the token of | a hold needs |
//! | --- | --- | --- | --- |
//! | 0 | old | old | old |
//! | 1 | old, then new | old | old |
//! | 2, the hush | is not given | | both |
//! | 3 | old, then new | new | new |
//! | 4 | new | new | new |
//!
//! Each step out of the hush takes a new floor for the tokens that count next, but for the one back to where the hush came from:
//! the record says where that is, and one that was lost does not.
//!
//! When the first change is over, a second one may follow, back to the store from which the first one came, by records of its own
//! (phases 5 to 9 are its phases 0 to 4, with the stores' parts changed). Its programs are others than those of the first, which
//! may still hold and take locks by what they know.

mod bounds;
mod clients;
mod model;
mod state;
mod walk;

pub use bounds::Migration;
pub use state::{Event, Mutant, State, Step};
