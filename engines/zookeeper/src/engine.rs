//! The engine itself: opened from a URL, and what the core asks of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Engine, Event, Evict, Grant, HeldClaim, HolderView, Leave, LockView, Page,
    Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{Clock, Error, Finding, LockName, Promises, Result, StoreUrl, Token};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::connection::Life;
use crate::open::{Opened, open};
use crate::state::Store;
use crate::{diagnose, hold_watch, reap, rollback_repair, server};

/// The engine for ZooKeeper.
pub struct ZooKeeper {
    store: Arc<Store>,
    promises: Promises,
    told: Mutex<Told>,
    tasks: [AbortHandle; 3],
}

/// What the servers tell of their own accord.
struct Told {
    events: mpsc::UnboundedReceiver<Event>,
    ended: mpsc::UnboundedReceiver<Arc<Life>>,
}

impl ZooKeeper {
    /// Opens the store that a URL names.
    ///
    /// # Errors
    /// [`Error::Config`] for a URL that cannot be used, [`Error::Unavailable`] if no server answers within
    /// `connect-timeout`, [`Error::Refused`] if this user has no rights at the chroot.
    ///
    /// # Cancel safety
    /// May be dropped: a session that was begun ends by itself.
    pub async fn open(url: StoreUrl) -> Result<Self> {
        let config = Arc::new(Config::from_url(url)?);
        let Opened {
            store,
            events,
            ended,
            resumed,
            watched,
        } = open(&config).await?;
        let tasks = [
            tokio::spawn(hold_watch::watch(Arc::clone(&store), watched)).abort_handle(),
            tokio::spawn(reap::tidy(Arc::clone(&store))).abort_handle(),
            tokio::spawn(rollback_repair::watch(Arc::clone(&store), resumed)).abort_handle(),
        ];
        Ok(Self {
            promises: server::promises(store.limits),
            store,
            told: Mutex::new(Told { events, ended }),
            tasks,
        })
    }

    fn check_open(&self) -> Result<()> {
        match self.store.state().closed {
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
        self.store.place(claim).await
    }

    async fn changed(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.check_open()?;
        self.store.changed(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.store.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.check_open()?;
        self.store.withdraw(claim, how).await
    }

    async fn events(&self) -> Result<Event> {
        let mut told = self.told.lock().await;
        let Told { events, ended } = &mut *told;
        loop {
            tokio::select! {
                event = events.recv() => return event.ok_or(Error::Closed),
                life = ended.recv() => match life {
                    Some(life) => self.store.tell_of(&life),
                    None => return Err(Error::Closed),
                },
            }
        }
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.check_open()?;
        self.store.look(name, unlike).await
    }

    async fn vouch(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.check_open()?;
        self.store.vouch(name, owner).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.check_open()?;
        self.store.list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_open()?;
        self.store.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.check_open()?;
        let limits = self.promises.limits.iter().cloned().map(Finding::from);
        let servers = diagnose::diagnose(&self.store.config).await;
        Ok(limits.chain(servers).collect())
    }

    async fn close(&self) -> Result<()> {
        let delayed = {
            let mut state = self.store.state();
            if std::mem::replace(&mut state.closed, true) {
                return Ok(());
            }
            // What is still there is to stay for its lock-delay, so for its session's timeout.
            !state.spots.is_empty()
        };
        for task in &self.tasks {
            task.abort();
        }
        if self.store.line.has_link() {
            self.store.drop_parents(Duration::ZERO).await;
        }
        let sessions = self.store.sessions().await;
        let closing = sessions.iter().map(|session| session.close(!delayed));
        futures_util::future::join_all(closing).await;
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
        write!(f, "ZooKeeper({})", self.store.config.store)
    }
}

impl fmt::Display for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.config.store)
    }
}
