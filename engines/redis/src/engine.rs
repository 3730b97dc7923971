use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Record, RecordChange,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::{ClaimId, Engine, Promises, Result, Token};

use crate::config::Config;
use crate::options::Options;
use crate::servers::Servers;
use crate::{acquire, raise, record, release, renew, wait};

/// Locks on Redis or Valkey: one server, a master that Sentinels watch, or a cluster.
pub struct Redis {
    servers: Arc<Servers>,
    events: EventSource,
}

impl Redis {
    /// Connects to the servers that the options, or a URL, name. Needs a tokio runtime, and replaces lost connections in a
    /// task there.
    ///
    /// # Errors
    /// [`Error::Config`] if an option or the server cannot be used, [`Error::Unavailable`] if the server does not answer
    /// within `connect-timeout`, [`Error::Refused`] if it refuses this user.
    ///
    /// [`Error::Config`]: fencelock_core::Error::Config
    /// [`Error::Unavailable`]: fencelock_core::Error::Unavailable
    /// [`Error::Refused`]: fencelock_core::Error::Refused
    pub async fn connect(options: impl Into<Options>) -> Result<Self> {
        let config = Config::new(options.into())?;
        let (servers, events) = Servers::open(config).await?;
        Ok(Self { servers, events })
    }
}

fencelock_core::store_options!(
    |options| Config::new(options),
    Ok(Arc::new(Redis::connect(options).await?))
);

#[async_trait]
impl Engine for Redis {
    fn promises(&self) -> &Promises {
        &self.servers.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        acquire::place(&self.servers, claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        wait::wait(&self.servers, claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew::renew(&self.servers, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        release::withdraw(&self.servers, claim, how).await
    }

    /// A grant that is pushed to this process later is released.
    fn forget(&self, claim: &ClaimId) {
        self.servers.state.entries.remove(claim);
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        record::record(&self.servers, scope, change).await
    }

    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        raise::raise_tokens(&self.servers, floor).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.servers
    }

    async fn close(&self) -> Result<()> {
        self.servers.close();
        Ok(())
    }
}

impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.servers.state.store())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.servers.state.store())
    }
}
