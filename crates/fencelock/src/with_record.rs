//! A store that keeps no record, with the option `record`: the store that keeps it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_composite::RecordIn;
use fencelock_core::engine::StoreOptions;
use fencelock_core::{Engine, Result, StoreUrl};

use crate::member::{Options, is_set, refuse_set};
use crate::to_open::ToOpen;

const OPTION: &str = "record";

/// The options of such a store.
pub(crate) struct WithRecord {
    url: StoreUrl,
    /// The options of a store with this URL, or of this text.
    of_url: fn(StoreUrl) -> Options,
    of_text: fn(String) -> Options,
}

/// Whether a URL has the option. In that of a set it is the id of a shard.
pub(crate) fn has_record(url: &StoreUrl) -> bool {
    !is_set(url) && url.clone().take(OPTION).is_some()
}

/// A URL without the option, whose engine names the option in its error for an unknown one.
#[cfg(feature = "redis")]
pub(crate) fn known(mut url: StoreUrl) -> StoreUrl {
    url.take(OPTION);
    url
}

impl WithRecord {
    pub(crate) fn new(
        url: StoreUrl,
        of_url: fn(StoreUrl) -> Options,
        of_text: fn(String) -> Options,
    ) -> Self {
        Self {
            url,
            of_url,
            of_text,
        }
    }

    /// The options of the store itself, and the store that keeps its record.
    fn parts(&self) -> Result<(Box<dyn StoreOptions>, ToOpen)> {
        let mut url = self.url.clone();
        let mut record = (self.of_text)(url.take(OPTION).unwrap_or_default())?;
        refuse_set("the store that keeps a record", record.url())?;
        record.url().inspect_only = url.inspect_only;
        Ok(((self.of_url)(url)?, ToOpen::new(record)?))
    }
}

#[async_trait]
impl StoreOptions for WithRecord {
    fn url(&mut self) -> &mut StoreUrl {
        &mut self.url
    }

    fn check(&self) -> Result<()> {
        let (own, record) = self.parts()?;
        own.check().and(record.check())
    }

    async fn open(&self) -> Result<Arc<dyn Engine>> {
        let (own, record) = self.parts()?;
        let engine = own.open().await?;
        let other = match record.open_once().await {
            Ok(other) => other,
            Err(error) => {
                let _ = engine.close().await;
                return Err(error);
            }
        };
        match RecordIn::new(Arc::clone(&engine), Arc::clone(&other)) {
            Ok(both) => Ok(Arc::new(both)),
            Err(error) => {
                let _ = (engine.close().await, other.close().await);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for WithRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({})", self.url)
    }
}
