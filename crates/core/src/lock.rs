//! A lock by its name, to be taken again and again.

use crate::acquire::Acquire;
use crate::client::Client;
use crate::engine::LockView;
use crate::types::Result;

/// A lock by its name, made by [`Client::named`]. Cheap to clone.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::{Client, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencelock_core::Error> {
/// # let client = Client::new(Arc::new(Memory::new()))?;
/// let report = client.named("report");
/// let guard = report.lock().await?;
/// assert!(report.try_lock().await.is_err());
/// assert_eq!(report.look().await?.holders.len(), 1);
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    name: String,
}

impl Client {
    /// A lock by its name, to be taken again and again.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let report = client.named("report");
    /// report.lock().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn named(&self, name: &str) -> Lock {
        let (client, name) = (self.clone(), name.to_owned());
        Lock { client, name }
    }
}

impl Lock {
    /// The lock's name.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// assert_eq!(client.named("report").name(), "report");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A request that waits; see [`Client::lock`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let report = client.named("report");
    /// let guard = report.lock().ttl(Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self) -> Acquire {
        self.client.lock(&self.name)
    }

    /// A request that does not wait; see [`Client::try_lock`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let report = client.named("report");
    /// let guard = report.try_lock().await?;
    /// assert!(report.try_lock().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&self) -> Acquire {
        self.client.try_lock(&self.name)
    }

    /// The lock as it is now.
    ///
    /// # Errors
    /// As [`Client::look`].
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let report = client.named("report");
    /// assert!(report.look().await?.holders.is_empty());
    /// assert_eq!(report.name(), "report");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look(&self) -> Result<LockView> {
        self.client.look(&self.name).await
    }
}
