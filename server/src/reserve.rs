//! A reserve for holders: a tenth of the connections is for peers that have sent a renewal within the last minute, so that a
//! flood of others does not end their holds.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A peer that has renewed is known for so long.
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
    /// A peer has renewed.
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
    /// How many connections may be open and not served yet.
    waiting: Arc<Semaphore>,
}

/// Whether a new connection may be served.
#[derive(Debug)]
pub(crate) enum Permit {
    /// Yes.
    Now(OwnedSemaphorePermit),
    /// When another one has ended. The first permit is for waiting.
    Later(OwnedSemaphorePermit, Arc<Semaphore>),
    /// No: too many wait already.
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
