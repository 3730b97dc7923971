//! Injects faults into a store, records what its clients believed, and checks the record.
//!
//! * [`history`]: what happened, as data. [`check`] judges it and knows nothing else.
//! * `worker`: a process that locks and reports what it believes; `register`: the resource that the locks protect.
//! * `nemesis`: injects faults by a seeded plan; `stores`: the stores that can be started, with their faults.
//! * `scenario`: accidents of home-made locks, side by side with this library.
//! * `report`: the same verdict in the terminal, as a page, and as a table.

mod args;
mod check;
mod external;
mod fault;
pub mod history;
mod late;
mod nemesis;
mod record;
mod register;
mod replica;
mod report;
mod run;
mod scenario;
mod stores;
mod witness;
mod worker;
mod workers;

use std::path::PathBuf;

pub use args::{Args, Failed, command, program};
pub use check::{Verdict, Violation, check};
pub use fault::{FaultKind, Whom};
pub use register::Marks;
pub use worker::run_worker;

/// How to start this program again as a worker, which calls [`run_worker`].
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}
