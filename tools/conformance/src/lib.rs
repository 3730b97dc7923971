//! What every engine must do: one list of cases. Each engine runs those that it [promises](fencelock::Promises).
//!
//! * [`cases`]: the list. A case knows nothing of its engine except the promises.
//! * [`Subject`]: an engine under test. [`subjects`] lists them.
//! * [`harness`]: runs each case on each subject, each with a store of its own.
//! * [`history`]: checks what happened, and is tested on wrong histories.
//! * [`Remote`]: another process that locks; its other end is the binary `fencelock-conformance-worker`.
//!
//! Everything here is test code: a case fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod case;
pub mod cases;
mod ctx;
pub mod harness;
pub mod history;
mod pool;
mod remote;
mod subject;
pub mod subjects;
mod wait;

pub use case::{Case, Needs};
pub use ctx::Ctx;
pub use remote::{Remote, Wanted};
pub use subject::{Passwords, Server, Store, Subject};
