//! Connections on which a grant or a renewal is written, and which then wait for the replicas. `WAIT` blocks a connection, so
//! each grant or renewal has a connection of its own meanwhile.

use std::ops::Deref;
use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connect::{Purpose, Setup, connecting};
use crate::connection::Connection;
use crate::earlier::Earlier;
use crate::state::State;
use crate::uptime::Uptime;

/// How many grants may wait for replicas at once.
const GRANTS: usize = 4;
/// How many renewal requests may wait for replicas at once. They have their own limit, so that grants do not delay them.
const RENEWALS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Grant,
    Renewal,
}

#[derive(Debug)]
pub(crate) struct Writers {
    grants: Arc<Semaphore>,
    renewals: Arc<Semaphore>,
    idle: Mutex<Vec<Arc<Connection>>>,
    earlier: Arc<Earlier>,
}

impl Writers {
    pub(crate) fn new(earlier: Arc<Earlier>) -> Arc<Self> {
        Arc::new(Self {
            grants: Arc::new(Semaphore::new(GRANTS)),
            renewals: Arc::new(Semaphore::new(RENEWALS)),
            idle: Mutex::default(),
            earlier,
        })
    }

    pub(crate) fn close(&self) {
        self.idle.lock().clear();
    }

    /// A writer to the server of `main`.
    pub(crate) async fn get(
        self: &Arc<Self>,
        purpose: Use,
        state: &State,
        uptime: &Uptime,
        main: &Connection,
    ) -> Result<Writer> {
        let permits = match purpose {
            Use::Grant => &self.grants,
            Use::Renewal => &self.renewals,
        };
        let permit = Arc::clone(permits).acquire_owned();
        let timeout = state.config.response_timeout;
        let Ok(Ok(permit)) = tokio::time::timeout(timeout, permit).await else {
            let cause = "all connections that wait for replicas (replicas=N) are in use; find out why replicas are slow";
            let action = "waiting for a connection";
            return Err(Error::unavailable(state.store(), action, cause));
        };
        let fits = |connection: &Arc<Connection>| {
            !connection.is_broken() && connection.run_id == main.run_id
        };
        let found = {
            let mut idle = self.idle.lock();
            idle.retain(fits);
            idle.pop()
        };
        let connection = match found {
            Some(connection) => connection,
            None => Arc::new(open(state, uptime, main).await?),
        };
        Ok(Writer {
            pool: Arc::clone(self),
            connection,
            spoiled: false,
            unanswered: false,
            _permit: permit,
        })
    }
}

async fn open(state: &State, uptime: &Uptime, main: &Connection) -> Result<Connection> {
    let setup = Setup {
        state,
        uptime,
        client: main.client.clone(),
        purpose: Purpose::Write,
        generation: state.next_generation(),
        wake_up: Arc::default(),
    };
    let action = connecting(&setup.client);
    let opened = setup.open(Arc::new(|_| {}));
    let Ok(opened) = tokio::time::timeout(state.config.response_timeout, opened).await else {
        let cause = "no answer in time";
        return Err(Error::unavailable(state.store(), action, cause));
    };
    let (connection, _) = opened?;
    if connection.run_id != main.run_id {
        main.break_off();
        let cause = "another server answers there";
        return Err(Error::unavailable(state.store(), action, cause));
    }
    Ok(connection)
}

/// A connection for one grant or renewal. It returns to the pool when dropped.
#[derive(Debug)]
pub(crate) struct Writer {
    pool: Arc<Writers>,
    connection: Arc<Connection>,
    spoiled: bool,
    unanswered: bool,
    _permit: OwnedSemaphorePermit,
}

impl Writer {
    /// Notes that a request is about to be sent. Without a later [`Writer::answered`] the connection is not used again.
    pub(crate) fn sends(&mut self) {
        self.unanswered = true;
    }

    /// Notes that every request has its reply.
    pub(crate) fn answered(&mut self) {
        self.unanswered = false;
    }

    /// Notes that a request has no reply, so that the connection is not used again.
    pub(crate) fn spoil(&mut self) {
        if !std::mem::replace(&mut self.spoiled, true) {
            self.pool.earlier.remember(&self.connection);
        }
    }
}

impl Deref for Writer {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.unanswered || self.connection.is_broken() {
            self.spoil();
        }
        if !self.spoiled {
            self.pool.idle.lock().push(Arc::clone(&self.connection));
        }
    }
}
