//! The connections that hold and wait: a limited number, and free ones are used again.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::EventSender;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::{Semaphore, TryAcquireError};

use super::control::timed;
use super::dialect::Dialect;
use super::queue::{Permit, Ticket};
use super::signal::CloseSignal;
use crate::Settings;

/// A free connection is closed after this time.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// A free connection, and when it became free.
type Spare<D> = (<D as Dialect>::Session, Arc<CloseSignal>, BootInstant);

pub(super) struct Pool<D: Dialect> {
    dialect: Arc<D>,
    settings: Settings,
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Spare<D>>>,
    events: EventSender,
}

/// A connection in use. A drop closes it.
pub(super) struct PooledSession<D: Dialect> {
    pub(super) session: D::Session,
    pub(super) signal: Arc<CloseSignal>,
    /// Whether it has served another claim.
    pub(super) used_before: bool,
    permit: Permit,
}

impl<D: Dialect> Pool<D> {
    pub(super) fn new(dialect: Arc<D>, settings: Settings, events: EventSender) -> Self {
        Self {
            dialect,
            settings,
            permits: Arc::new(Semaphore::new(settings.connections.get())),
            free: Mutex::default(),
            events,
        }
    }

    /// The right to a connection, unless all are in use.
    pub(super) fn try_permit(&self) -> Result<Option<Permit>> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(Error::Closed),
        }
    }

    /// The right to a connection, when one is free; first come, first served.
    pub(super) async fn permit(&self) -> Result<Permit> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| Error::Closed)
    }

    /// A place in the queue for a connection.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket::new(&self.permits)
    }

    /// A connection: a free one, or a new one.
    pub(super) async fn get(&self, permit: Permit) -> Result<PooledSession<D>> {
        let spare = {
            let mut free = self.free.lock();
            let live = |(_, signal, since): &Spare<D>| {
                !signal.is_closed() && Clock::Boot.now().since(*since) < MAX_IDLE
            };
            let spare = free.pop().filter(live);
            if spare.is_none() {
                // The other free ones are older still.
                free.clear();
            }
            spare
        };
        if let Some((session, signal, _)) = spare {
            return Ok(PooledSession {
                session,
                signal,
                used_before: true,
                permit,
            });
        }
        self.connect(permit).await
    }

    async fn connect(&self, permit: Permit) -> Result<PooledSession<D>> {
        let signal = CloseSignal::new(Some(self.events.clone()));
        let connect = self.dialect.connect(Arc::clone(&signal));
        let limit = self.settings.response_timeout;
        Ok(PooledSession {
            session: timed(&*self.dialect, limit, "connecting", connect).await?,
            signal,
            used_before: false,
            permit,
        })
    }

    /// A fresh connection for one that has ended.
    pub(super) async fn replace(&self, ended: PooledSession<D>) -> Result<PooledSession<D>> {
        let PooledSession { permit, .. } = ended;
        self.connect(permit).await
    }

    /// Returns a connection that holds nothing, for other claims to use.
    pub(super) fn put_back(&self, conn: PooledSession<D>) {
        let PooledSession {
            session, signal, ..
        } = conn;
        signal.unbind();
        if !signal.is_closed() && !self.permits.is_closed() {
            self.free.lock().push((session, signal, Clock::Boot.now()));
        }
    }

    /// Closes connections that were not needed for a while.
    pub(super) fn trim(&self) {
        let now = Clock::Boot.now();
        self.free
            .lock()
            .retain(|(_, signal, since)| !signal.is_closed() && now.since(*since) < MAX_IDLE);
    }

    pub(super) fn close(&self) {
        self.permits.close();
        self.free.lock().clear();
    }
}
