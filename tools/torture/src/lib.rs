//! Puts a store under faults, records what its clients believed, and checks it.
//!
//! * [`history`]: what happened, as data. [`check`] judges it and knows nothing else.
//! * `worker`: a process that locks and tells what it believes; `register`: the resource that the locks protect.
//! * `nemesis`: does harm by a seeded plan; `beds`: stores that were started here, and what can be done to them.
//! * `scenario`: accidents of home-made locks, told beside this library.
//! * `report`: the same verdict in the terminal, as a page, and as a table.

mod args;
mod beds;
mod check;
mod crew;
mod harm;
pub mod history;
mod nemesis;
mod own;
mod record;
mod register;
mod report;
mod run;
mod scenario;
mod witness;
mod worker;

use std::path::PathBuf;

pub use args::{Args, Failed, command, program};
pub use check::{Verdict, Violation, check};
pub use harm::{Harm, Whom};
pub use register::Marks;
pub use worker::run_worker;

/// How to start this program again as a worker: what it ends up calling is [`run_worker`].
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}
