use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Engine, EventSource, EventStream, Grant, HeldClaim, Inspect, Leave, Place, Record,
    RecordChange, Renewal, Standing, Withdrawn,
};
use fencelock_core::{Promises, Result};
use futures_util::future::join_all;
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::open::{Opened, open};
use crate::options::Options;
use crate::state::State;
use crate::{hold_watch, reap, rollback_repair, server};

/// The engine for ZooKeeper.
pub struct ZooKeeper {
    state: Arc<State>,
    promises: Promises,
    events: EventSource,
    tasks: [AbortHandle; 3],
}

impl ZooKeeper {
    /// Opens the store that the options, or a URL, name.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) for an option that cannot be used,
    /// [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no server answers within `connect-timeout`,
    /// [`Error::Refused`](fencelock_core::Error::Refused) if this user has no rights at the chroot.
    ///
    /// # Cancel safety
    /// If the future is dropped, a session that it began expires by itself.
    pub async fn open(options: impl Into<Options>) -> Result<Self> {
        let config = Arc::new(Config::new(options.into())?);
        let Opened {
            state,
            events,
            session_events,
            watch_requests,
        } = open(&config).await?;
        let sessions = rollback_repair::watch_sessions(Arc::clone(&state), session_events);
        let tasks = [
            tokio::spawn(sessions).abort_handle(),
            tokio::spawn(hold_watch::watch_holds(Arc::clone(&state), watch_requests))
                .abort_handle(),
            tokio::spawn(reap::reap(Arc::clone(&state))).abort_handle(),
        ];
        Ok(Self {
            promises: server::promises(state.sessions.limits, state.sessions.waiting.timeout),
            state,
            events,
            tasks,
        })
    }
}

fencelock_core::store_options!(
    |options| Config::new(options),
    Ok(Arc::new(ZooKeeper::open(options).await?))
);

#[async_trait]
impl Engine for ZooKeeper {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.state.check_open()?;
        claim.check_floor(self, &self.promises)?;
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
        self.state.check_open()?;
        self.state.withdraw(claim, how).await
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        self.state.check_open()?;
        self.state.record(scope, change).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        &*self.state
    }

    async fn close(&self) -> Result<()> {
        let released = {
            let mut registry = self.state.registry.lock();
            if std::mem::replace(&mut registry.closed, true) {
                return Ok(());
            }
            // The nodes of holds that were not released stay for their lock-delay, that is until their session expires.
            registry.entries.is_empty()
        };
        for task in &self.tasks {
            task.abort();
        }
        let sessions = &self.state.sessions;
        if sessions.waiting.is_connected() {
            self.state.delete_idle_lock_nodes(Duration::ZERO).await;
        }
        let sessions = sessions.all().await;
        join_all(sessions.iter().map(|managed| managed.close(released))).await;
        Ok(())
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({})", self.state.config.store)
    }
}

impl fmt::Display for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state.config.store)
    }
}
