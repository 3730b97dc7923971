use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{Engine, Promises, Result, StoreUrl, Token};

use super::config::Config;
use super::open::open;
use super::options::Options;
use super::state::State;
use super::{acquire, promises, raise, release, renew, wait};

/// Locks on N independent Redis servers.
pub struct Redlock {
    state: Arc<State>,
    promises: Promises,
    events: EventSource,
}

impl Redlock {
    /// Connects to the nodes that the options, or a URL, name. Needs a tokio runtime, and keeps a task there for each node.
    ///
    /// # Errors
    /// - [`Error::Config`] if an option or a node cannot be used.
    /// - [`Error::Unavailable`] if fewer nodes than the quorum reply within `connect-timeout`.
    /// - [`Error::Refused`] if that is because they refuse this user.
    ///
    /// # Cancel safety
    /// May be dropped: no lock is held yet.
    ///
    /// [`Error::Config`]: fencelock_core::Error::Config
    /// [`Error::Unavailable`]: fencelock_core::Error::Unavailable
    /// [`Error::Refused`]: fencelock_core::Error::Refused
    pub async fn connect(options: impl Into<Options>) -> Result<Self> {
        Self::open(Config::new(options.into(), true)?).await
    }

    /// As [`Redlock::connect`], but restarted nodes vote at once, even if they have lost their memory. For tests that show the
    /// result: two holders.
    ///
    /// # Errors
    /// As [`Redlock::connect`].
    #[doc(hidden)]
    pub async fn connect_without_delayed_restart(url: StoreUrl) -> Result<Self> {
        Self::open(Config::new(url.into(), false)?).await
    }

    async fn open(config: Config) -> Result<Self> {
        let (state, events) = open(config).await?;
        Ok(Self {
            promises: promises::of(&state),
            state,
            events,
        })
    }
}

fencelock_core::store_options!(
    |options| Config::new(options, true),
    Ok(Arc::new(Redlock::connect(options).await?))
);

#[async_trait]
impl Engine for Redlock {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        claim.check_floor(self, &self.promises)?;
        acquire::place(&self.state, claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        wait::wait(&self.state, claim, place).await;
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew::renew(&self.state, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        release::withdraw(&self.state, claim, how).await
    }

    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        raise::raise_tokens(&self.state, floor).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        self.state.close();
        Ok(())
    }
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl fmt::Display for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state.config.store)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({})", self.state.config.store)
    }
}
