//! The connections that hold and wait: so many at most, and those that are free used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::control::timed;
use super::dialect::{Dialect, Settings, Tie};

/// A free connection is closed after this time.
const UNUSED: Duration = Duration::from_secs(10);

/// A free connection, and since when it is.
type Spare<D> = (<D as Dialect>::Session, Arc<Tie>, BootInstant);

pub(super) struct Pool<D: Dialect> {
    dialect: Arc<D>,
    settings: Settings,
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Spare<D>>>,
    tell: mpsc::UnboundedSender<Event>,
}

/// A connection in somebody's hands. Dropped, it is closed.
pub(super) struct Leased<D: Dialect> {
    pub(super) session: D::Session,
    pub(super) tie: Arc<Tie>,
    /// Whether it served another claim before.
    pub(super) used_before: bool,
    permit: OwnedSemaphorePermit,
}

impl<D: Dialect> Pool<D> {
    pub(super) fn new(
        dialect: Arc<D>,
        settings: Settings,
        tell: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            dialect,
            settings,
            permits: Arc::new(Semaphore::new(settings.max_connections)),
            free: Mutex::default(),
            tell,
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Spare<D>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, unless all are in use.
    pub(super) async fn lease_now(&self) -> Result<Option<Leased<D>>> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => self.with(permit).await.map(Some),
            Err(tokio::sync::TryAcquireError::NoPermits) => Ok(None),
            Err(tokio::sync::TryAcquireError::Closed) => Err(Error::Closed),
        }
    }

    /// A connection, when one is free; first come, first served.
    pub(super) async fn lease(&self) -> Result<Leased<D>> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        self.with(permit.map_err(|_| Error::Closed)?).await
    }

    async fn with(&self, permit: OwnedSemaphorePermit) -> Result<Leased<D>> {
        let spare = {
            let mut free = self.free();
            let live = |(_, tie, since): &Spare<D>| {
                !tie.is_cut() && Clock::Boot.now().since(*since) < UNUSED
            };
            let spare = free.pop().filter(live);
            if spare.is_none() {
                // The others have been free for longer.
                free.clear();
            }
            spare
        };
        if let Some((session, tie, _)) = spare {
            return Ok(Leased {
                session,
                tie,
                used_before: true,
                permit,
            });
        }
        self.fresh(permit).await
    }

    async fn fresh(&self, permit: OwnedSemaphorePermit) -> Result<Leased<D>> {
        let tie = Tie::new(Some(self.tell.clone()));
        let connect = self.dialect.connect(Arc::clone(&tie));
        let limit = self.settings.response_timeout;
        Ok(Leased {
            session: timed(&*self.dialect, limit, "connect", connect).await?,
            tie,
            used_before: false,
            permit,
        })
    }

    /// A fresh connection for one that turned out to be dead.
    pub(super) async fn renew(&self, dead: Leased<D>) -> Result<Leased<D>> {
        let Leased { permit, .. } = dead;
        self.fresh(permit).await
    }

    /// For others to use. It holds nothing.
    pub(super) fn give_back(&self, leased: Leased<D>) {
        let Leased { session, tie, .. } = leased;
        tie.unbind();
        if !tie.is_cut() && !self.permits.is_closed() {
            self.free().push((session, tie, Clock::Boot.now()));
        }
    }

    /// Closes those that nobody needed for a while.
    pub(super) fn trim(&self) {
        let now = Clock::Boot.now();
        self.free()
            .retain(|(_, tie, since)| !tie.is_cut() && now.since(*since) < UNUSED);
    }

    pub(super) fn close(&self) {
        self.permits.close();
        self.free().clear();
    }
}
