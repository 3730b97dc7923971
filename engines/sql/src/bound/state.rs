use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::support::{Mutex, inspect_only};
use fencelock_core::{BootInstant, ClaimId, Error, Promises, Result};
use tokio::sync::mpsc;

use super::control::{Control, timed};
use super::dialect::Dialect;
use super::entry::Entry;
use super::pool::Pool;
use crate::Settings;

/// How long a lock that a waiter was granted stays taken without a sign of life.
pub const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A hold or a wait that lasts longer than this is recorded.
pub(super) const RECORD_AFTER: Duration = Duration::from_millis(20);

/// One claim's entry. A task that works on the claim keeps it locked.
pub(super) type EntryLock<D> = Arc<tokio::sync::Mutex<Entry<D>>>;

pub(super) struct State<D: Dialect> {
    pub(super) dialect: Arc<D>,
    pub(super) promises: Promises,
    pub(super) settings: Settings,
    pub(super) pool: Pool<D>,
    pub(super) control: Control<D>,
    pub(super) entries: Mutex<HashMap<ClaimId, EntryLock<D>>>,
    /// New holds and waits and when they began, for the task that records them.
    pub(super) to_record: mpsc::UnboundedSender<(ClaimId, BootInstant)>,
    pub(super) used: AtomicBool,
    pub(super) closed: AtomicBool,
}

impl<D: Dialect> State<D> {
    pub(super) fn entry(&self, claim: ClaimId) -> Option<EntryLock<D>> {
        self.entries.lock().get(&claim).cloned()
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Refuses an action that writes, if the store was opened for inspection.
    pub(super) fn check_writes(&self, what: &'static str) -> Result<()> {
        match self.dialect.inspect_only() {
            true => Err(inspect_only(&*self.dialect, what)),
            false => Ok(()),
        }
    }

    /// The call's answer, or an error if it takes too long.
    pub(super) async fn within<T>(
        &self,
        action: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timed(&*self.dialect, self.settings.response_timeout, action, call).await
    }
}
