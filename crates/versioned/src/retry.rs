//! Repeats an attempt that came too late.

use std::fmt;
use std::time::Duration;

/// How often to try, and how long to pause in between.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// How many attempts there are at most.
    pub most: u32,
    /// The first pause is about this long; each further one about twice as long as that before.
    pub shortest: Duration,
    /// No pause is longer.
    pub longest: Duration,
}

impl Default for Retry {
    /// Ten attempts, with pauses of 2 to 200 ms.
    fn default() -> Self {
        Self {
            most: 10,
            shortest: Duration::from_millis(2),
            longest: Duration::from_millis(200),
        }
    }
}

impl Retry {
    /// The pause after so many attempts, of which half is chance: those who got in each other's way do not meet again.
    fn pause(&self, attempts: u32) -> Duration {
        let grown = self
            .shortest
            .saturating_mul(1 << attempts.saturating_sub(1).min(16));
        grown.min(self.longest).mul_f32(0.5 + fastrand::f32() / 2.0)
    }
}

/// What came of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<T> {
    /// It was written.
    Written(T),
    /// Somebody else was faster, and nothing was written: read again.
    Changed,
}

impl<T> Attempt<T> {
    /// What an `UPDATE` or `DELETE` of one row came to.
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
pub enum NotWritten<E> {
    /// Somebody else was faster each time.
    Contended {
        /// How often it was tried.
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
                "the row was changed by others during each of {attempts} attempts; try more often, or use a lock"
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

/// Repeats an attempt until it is written: each one reads anew, decides, and writes. An attempt in a transaction rolls
/// that back before it says [`Attempt::Changed`].
///
/// # Errors
/// [`NotWritten::Contended`] after the last attempt, [`NotWritten::Failed`] with the first error.
///
/// # Cancel safety
/// May be dropped; what an attempt under way comes to is the driver's business.
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
        if attempts >= how.most {
            return Err(NotWritten::Contended { attempts });
        }
        tokio::time::sleep(how.pause(attempts)).await;
    }
}

/// [`retry`] for drivers that block.
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
        if attempts >= how.most {
            return Err(NotWritten::Contended { attempts });
        }
        std::thread::sleep(how.pause(attempts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Retry = Retry {
        most: 3,
        shortest: Duration::from_micros(1),
        longest: Duration::from_micros(4),
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
