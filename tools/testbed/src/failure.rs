//! Why a server could not be had.

use std::fmt;

/// A [`Result`](std::result::Result) with a [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

/// What went wrong, for the person who reads the test's output. `Debug` is the same text, so that `unwrap` shows it.
pub struct Failure(String);

impl Failure {
    /// A failure in words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Turns a cause into a failure to do `what`.
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
