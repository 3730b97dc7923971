use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::Result;
use fencelock_core::engine::{
    Claim, Engine, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Promises,
    Record, RecordChange, Renewal, Standing, Withdrawn,
};

use crate::cluster::Cluster;
use crate::config::Config;
use crate::options::Options;
use crate::server;
use crate::state::State;

/// The engine on an etcd cluster.
pub struct Etcd {
    state: Arc<State>,
    events: EventSource,
}

impl Etcd {
    /// Connects to the cluster of the options, or of a URL `etcd://...` or `etcds://...`.
    ///
    /// # Errors
    /// [`Config`](fencelock_core::Error::Config) if an option is wrong, [`Refused`](fencelock_core::Error::Refused) if the cluster
    /// refuses this user, [`Unavailable`](fencelock_core::Error::Unavailable) if no member that has a leader answers within
    /// `connect-timeout`.
    ///
    /// # Cancel safety
    /// May be dropped: nothing is held yet.
    pub async fn connect(options: impl Into<Options>) -> Result<Self> {
        let cluster = Cluster::open(Config::new(options.into())?).await?;
        let limits = match cluster.server_info().await {
            Ok(info) => info.limits(),
            Err(failed) => {
                let store = &cluster.config.store;
                tracing::debug!(%store, error = %failed.error, "the cluster's version is not known");
                Vec::new()
            }
        };
        let (sender, events) = EventSource::channel();
        let promises = server::promises(&cluster.config, limits);
        let state = Arc::new(State::new(cluster, promises, sender));
        Ok(Self { state, events })
    }
}

fencelock_core::store_options!(
    |options| Config::new(options),
    Ok(Arc::new(Etcd::connect(options).await?))
);

#[async_trait]
impl Engine for Etcd {
    fn promises(&self) -> &Promises {
        &self.state.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.state.check_open()?;
        self.state.place(claim).await
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.state.check_open()?;
        self.state.wait(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.state.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.state.withdraw(claim, how).await
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        self.state.check_open()?;
        self.state.cluster.record(scope, change).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        self.state.close().await;
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.state.stop();
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state.cluster.config.store)
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.state.cluster.config.store)
    }
}
