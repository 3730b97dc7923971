//! The engine: opening it, and its contract with the core.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Engine, Event, Evict, Grant, HeldClaim, HolderView, Leave, LockView, Page,
    Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{Clock, Error, Finding, LockName, Promises, Result, StoreUrl, Token};
use futures_util::future::join_all;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::connection::Session;
use crate::open::{Opened, open};
use crate::state::State;
use crate::{diagnose, hold_watch, reap, rollback_repair, server};

/// The engine for ZooKeeper.
pub struct ZooKeeper {
    state: Arc<State>,
    promises: Promises,
    reports: Mutex<Reports>,
    tasks: [AbortHandle; 3],
}

/// What the engine's tasks report.
struct Reports {
    events: mpsc::UnboundedReceiver<Event>,
    expired: mpsc::UnboundedReceiver<Arc<Session>>,
}

impl ZooKeeper {
    /// Opens the store that a URL names.
    ///
    /// # Errors
    /// [`Error::Config`] for a URL that cannot be used, [`Error::Unavailable`] if no server answers within
    /// `connect-timeout`, [`Error::Refused`] if this user has no rights at the chroot.
    ///
    /// # Cancel safety
    /// May be dropped. A session that was begun expires by itself.
    pub async fn open(url: StoreUrl) -> Result<Self> {
        let config = Arc::new(Config::from_url(url)?);
        let Opened {
            state,
            events,
            expired,
            resumed,
            watch_requests,
        } = open(&config).await?;
        let tasks = [
            tokio::spawn(hold_watch::watch(Arc::clone(&state), watch_requests)).abort_handle(),
            tokio::spawn(reap::reap(Arc::clone(&state))).abort_handle(),
            tokio::spawn(rollback_repair::watch(Arc::clone(&state), resumed)).abort_handle(),
        ];
        Ok(Self {
            promises: server::promises(state.sessions.limits),
            state,
            reports: Mutex::new(Reports { events, expired }),
            tasks,
        })
    }

    fn check_open(&self) -> Result<()> {
        match self.state.registry().closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Engine for ZooKeeper {
    fn promises(&self) -> Promises {
        self.promises.clone()
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_open()?;
        self.state.place(claim).await
    }

    async fn changed(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.check_open()?;
        self.state.changed(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.state.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.check_open()?;
        self.state.withdraw(claim, how).await
    }

    async fn events(&self) -> Result<Event> {
        let mut reports = self.reports.lock().await;
        let Reports { events, expired } = &mut *reports;
        loop {
            tokio::select! {
                event = events.recv() => return event.ok_or(Error::Closed),
                session = expired.recv() => match session {
                    Some(session) => self.state.report_expired(&session),
                    None => return Err(Error::Closed),
                },
            }
        }
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.check_open()?;
        self.state.look(name, unlike).await
    }

    async fn vouch(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.check_open()?;
        self.state.attest(name, owner).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.check_open()?;
        self.state.list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_open()?;
        self.state.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.check_open()?;
        let limits = self.promises.limits.iter().cloned().map(Finding::from);
        let servers = diagnose::diagnose(&self.state.config).await;
        Ok(limits.chain(servers).collect())
    }

    async fn close(&self) -> Result<()> {
        let released = {
            let mut registry = self.state.registry();
            if std::mem::replace(&mut registry.closed, true) {
                return Ok(());
            }
            // The nodes of holds that were not released stay for their lock-delay, so until their session expires.
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
