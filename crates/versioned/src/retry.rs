//! Repeats an attempt after a conflict.

use std::fmt;
use std::time::Duration;

/// How often to try, and how long to pause in between.
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let often = Retry::default().max_attempts(100).max_pause(Duration::from_millis(20));
/// let slowly = often.first_pause(Duration::from_millis(10));
/// assert_eq!(often.first_pause, Duration::from_millis(2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Retry {
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// The length of the first pause. Each further pause is about twice as long as the previous one.
    pub first_pause: Duration,
    /// The maximum length of a pause.
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

    /// The pause after this number of attempts. Up to half of it is random, so that two writers do not collide again.
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
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // An `UPDATE` that changed one row, and one that changed none:
/// assert_eq!(Attempt::of_rows(1, "new value"), Attempt::Written("new value"));
/// assert_eq!(Attempt::of_rows(0, "new value"), Attempt::Changed);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let twice = Retry::default().max_attempts(2);
/// match retry_blocking(twice, || Ok::<_, std::io::Error>(Attempt::<()>::Changed)) {
///     Err(NotWritten::Contended { attempts, .. }) => assert_eq!(attempts, 2),
///     other => other?,
/// }
/// # Ok(())
/// # }
/// ```
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

/// Repeats an attempt until it has written. Each attempt reads again, decides, and writes. If an attempt uses a
/// transaction, it rolls the transaction back before it returns [`Attempt::Changed`].
///
/// # Errors
/// [`NotWritten::Contended`] after the last attempt, [`NotWritten::Failed`] with the first error.
///
/// # Cancel safety
/// May be dropped. Whether an attempt in flight still takes effect depends on the driver.
///
/// ```
/// # use fencelock_versioned::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (mut others, mut row) = (1, 100);
/// let balance = retry(Retry::default(), async || {
///     let seen = row; // reads the row, with its version
///     // … writes it, where the version is still the same …
/// #   others -= 1;
/// #   let rows = if others == 0 { 0 } else { 1 };
/// #   row = seen - 10 * rows as i64;
///     Ok::<_, std::io::Error>(Attempt::of_rows(rows, seen - 10))
/// });
/// assert_eq!(balance.await?, 90);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bank = rusqlite::Connection::open_in_memory()?;
/// # bank.execute_batch("CREATE TABLE accounts (id INTEGER, version INTEGER, balance INTEGER)")?;
/// # bank.execute_batch("INSERT INTO accounts VALUES (7, 1, 100)")?;
/// # let accounts = Versioned::new("accounts")?;
/// let balance = retry_blocking(Retry::default(), || {
///     let row = |row: &rusqlite::Row<'_>| Ok((Version(row.get(0)?), row.get::<_, i64>(1)?));
///     let (seen, balance) = bank.query_row(&accounts.select("balance", "id = 7"), [], row)?;
///     let update = accounts.update("balance = ?1", "id = 7", seen);
///     let rows = bank.execute(&update, [balance - 10])? as u64;
///     Ok::<_, rusqlite::Error>(Attempt::of_rows(rows, balance - 10))
/// })?;
/// assert_eq!(balance, 90);
/// # Ok(())
/// # }
/// ```
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
    fn tries_at_most_this_often() {
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
