//! A holder's own word on whether it is fit to go on holding.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a program says of its own health; see [`Acquire::healthy`](crate::Acquire::healthy).
#[derive(Clone)]
pub(crate) struct Health(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);

impl Health {
    /// A check that panics counts as a no, and must not end the renewals of other holds.
    pub(crate) fn check(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.0)())).unwrap_or(false)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}
