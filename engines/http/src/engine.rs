use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Engine, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Promises,
    Renewal, Standing, Withdrawn,
};
use fencelock_core::{ClaimId, Result};

use crate::config::Config;
use crate::options::Options;
use crate::state::State;
use crate::{acquire, events, release, renew, wait};

/// The engine on a lock service.
pub struct Http {
    state: Arc<State>,
    events: EventSource,
}

impl Http {
    /// Connects to the service of the options, or of a URL `fencelock+http://...` or `fencelock+https://...`.
    ///
    /// # Errors
    /// [`Config`](fencelock_core::Error::Config) if an option is wrong, or two replicas serve different stores,
    /// [`Refused`](fencelock_core::Error::Refused) if the service does not know this client,
    /// [`Unavailable`](fencelock_core::Error::Unavailable) if no replica answers, or the store behind them does not.
    ///
    /// # Cancel safety
    /// May be dropped: no lock is held yet.
    pub async fn connect(options: impl Into<Options>) -> Result<Self> {
        let (sender, events) = EventSource::channel();
        let state = State::open(Config::new(options.into())?, sender).await?;
        let state = Arc::new(state);
        Ok(Self { state, events })
    }
}

fencelock_core::store_options!(
    |options| Config::new(options),
    Ok(Arc::new(Http::connect(options).await?))
);

#[async_trait]
impl Engine for Http {
    fn promises(&self) -> &Promises {
        &self.state.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        claim.check_floor(self, self.promises())?;
        acquire::place(&self.state, claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        wait::wait(&self.state, claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew::renew(&self.state, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        release::withdraw(&self.state, claim, how).await
    }

    fn forget(&self, claim: &ClaimId) {
        self.state.entries.waits_no_more(claim);
    }

    fn claim_ids(&self) -> Option<[u8; 10]> {
        self.state.config.claim_ids()
    }

    fn home_of(&self, claim: &ClaimId) -> Option<String> {
        let home = self.state.home_of(claim)?;
        Some(home.to_string())
    }

    fn events(&self) -> Result<EventStream> {
        let events = self.events.take(self)?;
        if self.state.info.tells_events() {
            for replica in 0..self.state.replicas.len() {
                tokio::spawn(events::listen(Arc::downgrade(&self.state), replica));
            }
        }
        Ok(events)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        self.state.close();
        Ok(())
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state.config.store)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Http({})", self.state.config.store)
    }
}
