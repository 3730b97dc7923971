//! What wakes waiters: those of this client, and those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::listen::Listener;
use super::ring::{Ring, Ringer};
use crate::config::Config;
use crate::ear::{Control, new_name};
use crate::tables::Tables;

/// What wakes this client's waiters, and those of others.
pub(super) struct Ears {
    /// Whether the server has all that is needed.
    work: AtomicBool,
    pub(super) listener: Listener,
    ringer: Ringer,
}

impl Ears {
    pub(super) fn new(config: &Config, tables: &Arc<Tables>) -> Self {
        let ear = new_name();
        let control = Arc::new(Control::new(config.clone(), ear.clone()));
        Self {
            work: false.into(),
            ringer: Ringer::new(Arc::clone(tables), Arc::clone(&control)),
            listener: Listener::new(config.clone(), Arc::clone(tables), ear, control),
        }
    }

    pub(super) fn work(&self) -> bool {
        self.work.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, work: bool) {
        self.work.store(work, Ordering::SeqCst);
    }

    /// Something is missing. Returns whether it was there before.
    pub(super) fn lose(&self) -> bool {
        self.work.swap(false, Ordering::SeqCst)
    }

    pub(super) fn ring(&self, whom: impl FnOnce() -> Ring) {
        if self.work() {
            self.ringer.ring(whom());
        }
    }

    pub(super) fn close(&self) {
        self.listener.close();
        self.ringer.close();
    }
}
