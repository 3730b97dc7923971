//! Waking waiters: those of this client, and those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::listen::Listener;
use super::wake_others::{BackgroundWaker, Whom};
use crate::config::Config;
use crate::ear::{Control, new_name};
use crate::tables::Tables;

/// Wakes this client's waiters, and those of others.
pub(super) struct Ears {
    /// Whether the server has all that ears need.
    work: AtomicBool,
    pub(super) listener: Listener,
    waker: BackgroundWaker,
}

impl Ears {
    pub(super) fn new(config: &Config, tables: &Arc<Tables>) -> Self {
        let ear = new_name();
        let control = Arc::new(Control::new(config.clone(), ear.clone()));
        Self {
            work: false.into(),
            waker: BackgroundWaker::new(Arc::clone(tables), Arc::clone(&control)),
            listener: Listener::new(config.clone(), Arc::clone(tables), ear, control),
        }
    }

    pub(super) fn work(&self) -> bool {
        self.work.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, work: bool) {
        self.work.store(work, Ordering::SeqCst);
    }

    /// Notes that something is missing. Returns whether ears worked before.
    pub(super) fn lose(&self) -> bool {
        self.work.swap(false, Ordering::SeqCst)
    }

    pub(super) fn wake(&self, whom: impl FnOnce() -> Whom) {
        if self.work() {
            self.waker.wake(whom());
        }
    }

    pub(super) async fn finish(&self) {
        self.waker.finish().await;
    }

    pub(super) fn close(&self) {
        self.listener.close();
        self.waker.close();
    }
}
