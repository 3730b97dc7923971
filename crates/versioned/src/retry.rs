//! Repeats an attempt after a conflict.

use std::fmt;
use std::time::Duration;

/// How often to try, and how long to pause in between.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Retry {
    /// The number of attempts at most.
    pub max_attempts: u32,
    /// The length of the first pause. Each further pause is about twice as long as the one before.
    pub first_pause: Duration,
    /// No pause is longer.
    pub max_pause: Duration,
}

impl Default for Retry {
    /// Ten attempts, with pauses of 2 to 200 ms.
    fn default() -> Self {
        Self {
            max_attempts: 10,
            first_pause: Duration::from_millis(2),
            max_pause: Duration::from_millis(200),
        }
    }
}

impl Retry {
    /// Sets [`max_attempts`](Self#structfield.max_attempts).
    #[must_use]
    pub const fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// Sets [`first_pause`](Self#structfield.first_pause).
    #[must_use]
    pub const fn first_pause(mut self, first_pause: Duration) -> Self {
        self.first_pause = first_pause;
        self
    }

    /// Sets [`max_pause`](Self#structfield.max_pause).
    #[must_use]
    pub const fn max_pause(mut self, max_pause: Duration) -> Self {
        self.max_pause = max_pause;
        self
    }

    /// The pause after so many attempts. Up to half of it is random, so that two writers do not meet again.
    fn pause(&self, attempts: u32) -> Duration {
        let grown = self
            .first_pause
            .saturating_mul(1 << attempts.saturating_sub(1).min(16));
        grown
            .min(self.max_pause)
            .mul_f32(0.5 + fastrand::f32() / 2.0)
    }
}

/// The outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<T> {
    /// The row was written.
    Written(T),
    /// Another writer changed the row first, and nothing was written. Read again.
    Changed,
}

impl<T> Attempt<T> {
    /// The outcome of an `UPDATE` or `DELETE` of one row, by the number of rows that it changed.
    #[must_use]
    pub fn of_rows(affected: u64, value: T) -> Self {
        match affected {
            0 => Self::Changed,
            _ => Self::Written(value),
        }
    }
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotWritten<E> {
    /// Another writer changed the row first in every attempt.
    #[non_exhaustive]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// An attempt failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for NotWritten<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contended { attempts } => write!(
                f,
                "another writer changed the row during each of {attempts} attempts; allow more attempts, or use a lock"
            ),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for NotWritten<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Contended { .. } => None,
            Self::Failed(error) => Some(error),
        }
    }
}

impl<E> From<E> for NotWritten<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

/// Repeats an attempt until it has written. Each attempt reads again, decides, and writes. An attempt in a transaction rolls
/// it back before it returns [`Attempt::Changed`].
///
/// # Errors
/// [`NotWritten::Contended`] after the last attempt, [`NotWritten::Failed`] with the first error.
///
/// # Cancel safety
/// May be dropped. Whether an attempt in flight still takes effect depends on the driver.
pub async fn retry<T, E>(
    how: Retry,
    mut attempt: impl AsyncFnMut() -> Result<Attempt<T>, E>,
) -> Result<T, NotWritten<E>> {
    let mut attempts = 0;
    loop {
        if let Attempt::Written(value) = attempt().await? {
            return Ok(value);
        }
        attempts += 1;
        if attempts >= how.max_attempts {
            return Err(NotWritten::Contended { attempts });
        }
        tokio::time::sleep(how.pause(attempts)).await;
    }
}

/// [`retry`] for blocking drivers.
///
/// # Errors
/// As [`retry`].
pub fn retry_blocking<T, E>(
    how: Retry,
    mut attempt: impl FnMut() -> Result<Attempt<T>, E>,
) -> Result<T, NotWritten<E>> {
    let mut attempts = 0;
    loop {
        if let Attempt::Written(value) = attempt()? {
            return Ok(value);
        }
        attempts += 1;
        if attempts >= how.max_attempts {
            return Err(NotWritten::Contended { attempts });
        }
        std::thread::sleep(how.pause(attempts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Retry = Retry {
        max_attempts: 3,
        first_pause: Duration::from_micros(1),
        max_pause: Duration::from_micros(4),
    };

    #[test]
    fn tries_so_often_and_no_more() {
        let mut tries = 0;
        let contended = retry_blocking(QUICK, || {
            tries += 1;
            Ok::<_, fmt::Error>(Attempt::<()>::Changed)
        });
        assert_eq!(contended, Err(NotWritten::Contended { attempts: 3 }));
        assert_eq!(tries, 3);
        let failed = retry_blocking(QUICK, || Err::<Attempt<()>, _>(fmt::Error));
        assert_eq!(failed, Err(NotWritten::Failed(fmt::Error)));
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        for attempts in 1..100 {
            let pause = Retry::default().pause(attempts);
            assert!(pause <= Duration::from_millis(200), "{pause:?}");
            assert!(pause >= Duration::from_millis(1), "{pause:?}");
        }
    }
}
