//! A mutex without poison.

use std::sync::{MutexGuard, PoisonError};

/// [`std::sync::Mutex`] for values whose every change is complete before anything can panic, so that a panic of one task
/// does not end the others.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits for the value. Blocks the thread, so hold it briefly and never across an `.await`.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
