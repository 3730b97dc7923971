//! A lock that several holders have at a time.

use std::num::NonZeroU32;

use crate::acquire::Acquire;
use crate::client::Client;
use crate::types::Mode;
use crate::types::{Error, Result};

/// A lock that a number of holders have at a time, made by [`Client::semaphore`]. Cheap to clone.
///
/// A permit is a [`Guard`](crate::Guard) like any other: its request waits in the queue, and it has a lease and a token that is
/// higher than those of all earlier permits. All users of a name must give the same number of permits. Permits with different
/// numbers exclude each other, and a permit excludes exclusive and shared locks of that name.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let downloads = client.semaphore("downloads", 2)?;
/// let (one, two) = (downloads.acquire().await?, downloads.acquire().await?);
/// assert!(downloads.try_acquire().await.is_err());
/// assert_eq!((downloads.permits(), downloads.available().await?), (2, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    name: String,
    of: NonZeroU32,
}

impl Client {
    /// A semaphore with this many permits.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zero permits, [`Error::Unsupported`] if the store has no permits
    /// ([`Promises::permits`](crate::Promises::permits)).
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let downloads = client.semaphore("downloads", 3)?;
    /// let permit = downloads.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        let none = || Error::invalid("permits", permits.to_string(), "there must be at least one");
        let of = NonZeroU32::new(permits).ok_or_else(none)?;
        let (client, name) = (self.clone(), name.to_owned());
        let semaphore = Semaphore { client, name, of };
        semaphore.try_acquire().check()?;
        Ok(semaphore)
    }
}

impl Semaphore {
    /// How many permits there are.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// assert_eq!(client.semaphore("downloads", 3)?.permits(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.of.get()
    }

    fn permit(&self, request: Acquire) -> Acquire {
        request.mode(Mode::Permit { of: self.of })
    }

    /// A request for a permit that waits; see [`Client::lock`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let downloads = client.semaphore("downloads", 3)?;
    /// let permit = downloads.acquire().timeout(Duration::from_secs(5)).await?;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.permit(self.client.lock(&self.name))
    }

    /// A request for a permit that does not wait; see [`Client::try_lock`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let downloads = client.semaphore("downloads", 1)?;
    /// let permit = downloads.try_acquire().await?;
    /// assert!(matches!(downloads.try_acquire().await, Err(Error::Held { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self) -> Acquire {
        self.permit(self.client.try_lock(&self.name))
    }

    /// How many permits are free at this moment; 0 while the name is held in another mode.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let downloads = client.semaphore("downloads", 3)?;
    /// let permit = downloads.acquire().await?;
    /// assert_eq!(downloads.available().await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn available(&self) -> Result<u32> {
        let view = self.client.look(&self.name).await?;
        let permit = |mode| matches!(mode, Mode::Permit { .. });
        if view.holders.iter().any(|holder| !permit(holder.mode)) {
            return Ok(0);
        }
        let held = u32::try_from(view.holders.len()).unwrap_or(u32::MAX);
        Ok(self.of.get().saturating_sub(held))
    }
}
