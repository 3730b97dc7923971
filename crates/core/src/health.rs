//! Signs of life, so that a stuck holder loses its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::{BootInstant, Clock};

/// Signs of life for [`Acquire::healthy`](crate::Acquire::healthy). If the work under a lock has given none for too long, the
/// lock is not renewed. Cheap to clone; all clones share their signs of life.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::Heartbeat;
/// let heart = Heartbeat::every(Duration::from_secs(60));
/// // client.lock("import").healthy(heart.check()).await
/// for _file in ["a", "b"] {
///     heart.beat();
///     // ... work that takes less than a minute, unless it is stuck
/// }
/// assert!(heart.is_alive());
/// ```
#[derive(Clone, Debug)]
pub struct Heartbeat {
    last: Arc<AtomicU64>,
    most: Duration,
}

impl Heartbeat {
    /// A heartbeat that must be repeated within `most`, from now on.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # use std::time::Duration;
    /// assert!(Heartbeat::every(Duration::from_secs(60)).is_alive());
    /// ```
    #[must_use]
    pub fn every(most: Duration) -> Self {
        let last = Arc::new(AtomicU64::new(Clock::Boot.now().as_nanos()));
        Self { last, most }
    }

    /// Gives a sign of life.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # use std::time::Duration;
    /// let heart = Heartbeat::every(Duration::from_secs(60));
    /// // In the work, whenever a part of it is done:
    /// heart.beat();
    /// ```
    pub fn beat(&self) {
        self.last
            .store(Clock::Boot.now().as_nanos(), Ordering::SeqCst);
    }

    /// Whether the last sign of life is recent enough.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # use std::time::Duration;
    /// let heart = Heartbeat::every(Duration::ZERO);
    /// std::thread::sleep(Duration::from_millis(1));
    /// assert!(!heart.is_alive());
    /// ```
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let last = BootInstant::from_nanos(self.last.load(Ordering::SeqCst));
        Clock::Boot.now().since(last) <= self.most
    }

    /// The heartbeat as a check for [`Acquire::healthy`](crate::Acquire::healthy).
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # use std::time::Duration;
    /// let heart = Heartbeat::every(Duration::from_secs(60));
    /// let guard = client.lock("import").healthy(heart.check()).await?;
    /// heart.beat();
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let heart = self.clone();
        move || heart.is_alive()
    }
}
