//! The clock for locks: it also counts while the machine sleeps.
//!
//! A lease is counted by a server that does not sleep when this machine does, so validity is counted on
//! `CLOCK_BOOTTIME`. Tests of the core's own logic run on tokio's clock instead, which can be paused.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The longest sleep of [`Clock::sleep_until`]. Timers of the operating system stop in suspend and the boot clock does not, so
/// a sleeper reads the clock again at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// An instant on the boot clock, in nanoseconds since the machine was started. It is only valid on this machine, until its
/// restart.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// let now = Clock::Boot.now();
/// let later = now + Duration::from_secs(1);
/// assert_eq!(later.since(now), Duration::from_secs(1));
/// assert_eq!(BootInstant::from_nanos(later.as_nanos()), later);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// An instant from its nanoseconds since the machine was started.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(BootInstant::from_nanos(7).as_nanos(), 7);
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the machine was started.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(Clock::Boot.now().as_nanos() > 0);
    /// ```
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # use std::time::Duration;
    /// let (early, late) = (BootInstant::from_nanos(5), BootInstant::from_nanos(7));
    /// assert_eq!(late.since(early), Duration::from_nanos(2));
    /// assert_eq!(early.since(late), Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates: a far future counts as "never".
impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}

/// The source of time. An [`Engine`](crate::Engine) names its clock, and its client uses the same one.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # use std::time::Duration;
/// let ends = Clock::Boot.now() + Duration::from_millis(2);
/// Clock::Boot.sleep_until(ends).await;
/// assert!(Clock::Boot.now() >= ends);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Clock {
    /// `CLOCK_BOOTTIME` (on systems without it, the monotonic clock). Everything uses it except tests of the core.
    #[default]
    Boot,
    /// tokio's clock, counted from the instant given: it stands still and jumps in a runtime with paused time.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The present instant.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let before = Clock::Boot.now();
    /// assert!(Clock::Boot.now() >= before);
    /// ```
    #[must_use]
    pub fn now(self) -> BootInstant {
        match self {
            Self::Boot => boot_now(),
            Self::Tokio(origin) => {
                // Not zero at the origin, so that tests can also name instants before it.
                BootInstant(0) + Duration::from_secs(3600) + origin.elapsed()
            }
        }
    }

    /// Waits until `instant`, even across a suspend of the machine (then at most a second late).
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let due = Clock::Boot.now() + Duration::from_millis(2);
    /// Clock::Boot.sleep_until(due).await;
    /// assert!(Clock::Boot.now() >= due);
    /// # }
    /// ```
    pub async fn sleep_until(self, instant: BootInstant) {
        loop {
            let left = instant.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(match self {
                Self::Boot => left.min(LONGEST_SLEEP),
                Self::Tokio(_) => left,
            })
            .await;
        }
    }
}

fn boot_now() -> BootInstant {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = ClockId::Monotonic;
    let time = clock_gettime(id);
    // The kernel's uptime is never negative, and its nanoseconds are below a second.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    BootInstant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
