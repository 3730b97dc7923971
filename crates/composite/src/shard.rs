//! A shard as a program describes it: an id, a weight, and how its store is opened.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::{Clock, Engine, Result};

/// How the store of a shard is opened. `Debug` and `Display` show no password.
#[async_trait]
pub trait OpenStore: Debug + Display + Send + Sync + 'static {
    /// Opens the store, with one attempt. After an error it is called again when the store is needed next.
    ///
    /// # Errors
    /// The errors of the store. After an [`Error::Unavailable`](fencelock_core::Error::Unavailable) the shard counts as away.
    /// After any other error the set cannot be used as it is.
    async fn open(&self) -> Result<Arc<dyn Engine>>;

    /// The clock of the engine. All shards of a set have the same one.
    fn clock(&self) -> Clock {
        Clock::Boot
    }
}

/// A store that is open already.
#[derive(Debug)]
struct Opened(Arc<dyn Engine>);

#[async_trait]
impl OpenStore for Opened {
    async fn open(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::clone(&self.0))
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }
}

impl Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// A shard of a set: its id, its weight, and its store.
#[derive(Clone, Debug)]
pub struct Shard {
    pub(crate) id: String,
    pub(crate) weight: u8,
    pub(crate) store: Arc<dyn OpenStore>,
}

impl Shard {
    /// A shard of weight 1 on a store that is opened when it is first needed.
    #[must_use]
    pub fn new(id: impl Into<String>, store: Arc<dyn OpenStore>) -> Self {
        let (id, weight) = (id.into(), 1);
        Self { id, weight, store }
    }

    /// Sets the weight, from 1 to 100. A shard of weight 3 gets three times as many names as one of weight 1.
    #[must_use]
    pub fn weight(mut self, weight: u8) -> Self {
        self.weight = weight;
        self
    }
}

/// A shard of weight 1 on an open engine. The engine must not be used outside the set.
impl<Id: Into<String>> From<(Id, Arc<dyn Engine>)> for Shard {
    fn from((id, engine): (Id, Arc<dyn Engine>)) -> Self {
        Self::new(id, Arc::new(Opened(engine)))
    }
}
