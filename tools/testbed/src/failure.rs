//! Why a server could not be started or used.

use std::fmt;

/// A [`Result`](std::result::Result) with a [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

/// What went wrong, for the output of a test. `Debug` is the same text, so that `unwrap` shows it.
pub struct Failure(String);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Turns a cause into the failure to do `what`.
    pub fn to<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("cannot {what}: {cause}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
