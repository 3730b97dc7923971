//! A reserve for holders: a tenth of the connections is for peers that have sent a renewal within the last minute. So a flood
//! of other peers does not end their holds.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a peer that has renewed is remembered.
const KNOWN: Duration = Duration::from_secs(60);

/// With more known peers than this, those that have not renewed for long are removed.
const SWEEP: usize = 1024;

/// The peers that have renewed.
#[derive(Debug, Default)]
pub(crate) struct Renewers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: HashMap<IpAddr, BootInstant>,
    sweep_at: usize,
}

impl Renewers {
    /// Notes that a peer has renewed.
    pub(crate) fn note(&self, peer: IpAddr) {
        let now = Clock::Boot.now();
        let mut table = self.0.lock();
        table.last.insert(peer, now);
        if table.last.len() > table.sweep_at {
            table.last.retain(|_, last| now.since(*last) < KNOWN);
            table.sweep_at = 2 * table.last.len() + SWEEP;
        }
    }

    fn knows(&self, peer: IpAddr) -> bool {
        let last = self.0.lock().last.get(&peer).copied();
        last.is_some_and(|last| Clock::Boot.now().since(last) < KNOWN)
    }
}

/// The connections that may be open.
#[derive(Debug)]
pub(crate) struct Room {
    all: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    /// Permits for connections that are open and not served yet.
    waiting: Arc<Semaphore>,
}

/// Whether a new connection may be served.
#[derive(Debug)]
pub(crate) enum Permit {
    /// It may be served now.
    Now(OwnedSemaphorePermit),
    /// It may be served when another one has ended. The permit here is that of a waiting connection.
    Later(OwnedSemaphorePermit, Arc<Semaphore>),
    /// Too many connections wait already.
    Refused,
}

impl Room {
    pub(crate) fn new(connections: usize) -> Self {
        let connections = connections.min(Semaphore::MAX_PERMITS);
        let reserved = connections / 10;
        Self {
            all: Arc::new(Semaphore::new(connections - reserved)),
            reserved: Arc::new(Semaphore::new(reserved)),
            waiting: Arc::new(Semaphore::new(reserved.max(16))),
        }
    }

    pub(crate) fn permit(&self, peer: IpAddr, renewers: &Renewers) -> Permit {
        if let Ok(permit) = Arc::clone(&self.all).try_acquire_owned() {
            return Permit::Now(permit);
        }
        if renewers.knows(peer)
            && let Ok(permit) = Arc::clone(&self.reserved).try_acquire_owned()
        {
            return Permit::Now(permit);
        }
        match Arc::clone(&self.waiting).try_acquire_owned() {
            Ok(permit) => Permit::Later(permit, Arc::clone(&self.all)),
            Err(_) => Permit::Refused,
        }
    }
}
