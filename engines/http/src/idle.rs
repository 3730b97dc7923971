//! Open connections without a request.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};

use crate::exchange::Connection;

/// The longest idle time. The service closes a connection after an idle minute, so the client closes it first.
const LONGEST: Duration = Duration::from_secs(30);

/// The connections of one client, by address.
#[derive(Default)]
pub(crate) struct Idle(Mutex<State>);

#[derive(Default)]
struct State {
    /// With the time since when each has been idle. The last one is used first.
    hosts: HashMap<String, Vec<(BootInstant, Connection)>>,
    /// Whether a task sweeps them.
    is_swept: bool,
    is_closed: bool,
}

impl Idle {
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    /// Closes all idle connections, and those that are put back later.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let hosts = std::mem::take(&mut state.hosts);
        drop(state);
        drop(hosts);
    }

    /// An open connection, if there is one.
    pub(crate) fn take(&self, address: &str) -> Option<Connection> {
        loop {
            let (since, mut connection) = self.0.lock().hosts.get_mut(address)?.pop()?;
            if !is_old(since) && connection.is_open() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose request is done. Must be called within a tokio runtime.
    pub(crate) fn put(self: &Arc<Self>, address: &str, mut connection: Connection) {
        // Not under the lock: closing a connection is a system call.
        if !connection.is_open() {
            return;
        }
        let now = Clock::Boot.now();
        let mut state = self.0.lock();
        if state.is_closed {
            return;
        }
        match state.hosts.get_mut(address) {
            Some(idle) => idle.push((now, connection)),
            None => {
                let idle = vec![(now, connection)];
                state.hosts.insert(address.to_owned(), idle);
            }
        }
        if !std::mem::replace(&mut state.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes the connections that were idle for long. Returns whether any is left.
    fn end_old(&self) -> bool {
        let mut old = Vec::new();
        let mut state = self.0.lock();
        state.hosts.retain(|_, idle| {
            let count = idle.iter().take_while(|(since, _)| is_old(*since)).count();
            old.extend(idle.drain(..count));
            !idle.is_empty()
        });
        let any = !state.hosts.is_empty();
        state.is_swept = any;
        drop(state);
        any
    }
}

fn is_old(since: BootInstant) -> bool {
    Clock::Boot.now().since(since) > LONGEST
}

/// Closes the connections that were idle for long, until none is left.
async fn sweep(idle: Weak<Idle>) {
    loop {
        tokio::time::sleep(LONGEST / 2).await;
        match idle.upgrade() {
            Some(idle) if idle.end_old() => {}
            _ => return,
        }
    }
}
