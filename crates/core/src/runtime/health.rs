//! A holder's own check of whether it should continue to hold.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A program's check of its own health; see [`Acquire::healthy`](crate::Acquire::healthy).
#[derive(Clone)]
pub(crate) struct Health(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);

impl Health {
    /// Runs the check. A panic counts as `false`, and must not end the renewals of other holds.
    pub(crate) fn check(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.0)())).unwrap_or(false)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}
