//! The engine for one server, a master with Sentinels, or a cluster.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{Clock, Engine, Error, Finding, LockName, Promises, Result, StoreUrl, Token};
use tokio::sync::{Mutex, mpsc};

use crate::config::Config;
use crate::servers::Servers;
use crate::{acquire, diagnose, inspect, release, renew, wait};

/// Locks on Redis or Valkey: one server, a master that Sentinels watch, or a cluster.
pub struct Redis {
    servers: Arc<Servers>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

impl Redis {
    /// Connects to the server that a URL names. Needs a tokio runtime, and replaces lost connections in a task there.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL or the server cannot be used, [`Error::Unavailable`] if the server does not answer
    /// within `connect-timeout`, [`Error::Refused`] if it refuses this user.
    pub async fn connect(url: StoreUrl) -> Result<Self> {
        Self::open(Config::from_url(url)?).await
    }

    /// Connects with the address and credentials of an existing client.
    ///
    /// # Errors
    /// As [`Redis::connect`].
    pub async fn from_client(client: redis::Client) -> Result<Self> {
        Self::open(Config::from_client(&client)?).await
    }

    async fn open(config: Config) -> Result<Self> {
        let (servers, events) = Servers::open(config).await?;
        let events = Mutex::new(events);
        Ok(Self { servers, events })
    }
}

#[async_trait]
impl Engine for Redis {
    fn promises(&self) -> Promises {
        self.servers.promises.clone()
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        acquire::place(&self.servers, claim).await
    }

    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        wait::wait(&self.servers, claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        renew::renew(&self.servers, held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        release::withdraw(&self.servers, claim, how).await
    }

    async fn events(&self) -> Result<Event> {
        let event = self.events.lock().await.recv().await;
        event.ok_or(Error::Closed)
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        inspect::look(&self.servers, name, unlike).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        inspect::list(&self.servers, prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        release::evict(&self.servers, name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(diagnose::findings(&self.servers).await)
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
