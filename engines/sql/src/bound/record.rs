//! Records who holds, some time after the grant.

use std::sync::Weak;

use fencelock_core::ClaimId;
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::dialect::Dialect;
use super::entry::Entry;
use super::state::{EntryLock, RECORD_AFTER, State};

impl<D: Dialect> State<D> {
    /// Records those of these entries that hold and have no record yet. If that fails, a renewal does it.
    async fn record(&self, entries: Vec<EntryLock<D>>) {
        // Locked until the records are written, so that a release comes after that.
        let mut locked: Vec<OwnedMutexGuard<Entry<D>>> = Vec::new();
        let mut records = Vec::new();
        for entry in entries {
            // An entry in use is being released, or renewed, which records it.
            let Ok(entry) = entry.try_lock_owned() else {
                continue;
            };
            if let Entry::Holding(hold) = &*entry
                && hold.recorded.is_none()
            {
                let id = self.session_id(&hold.conn);
                records.push(hold.record(id, &hold.claim, hold.tokens.first));
                locked.push(entry);
            }
        }
        if !records.is_empty() && self.control.record(&records, &[]).await.is_ok() {
            for (mut entry, record) in locked.into_iter().zip(records) {
                if let Entry::Holding(hold) = &mut *entry {
                    hold.recorded = Some(record);
                }
            }
        }
    }

    pub(super) async fn record_all(&self) {
        let entries = self.entries.lock().values().cloned().collect();
        self.record(entries).await;
    }
}

/// Records holds that have lasted for [`RECORD_AFTER`].
pub(super) async fn record_granted<D: Dialect>(
    state: Weak<State<D>>,
    mut granted: mpsc::UnboundedReceiver<ClaimId>,
) {
    while let Some(first) = granted.recv().await {
        tokio::time::sleep(RECORD_AFTER).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let mut claims = vec![first];
        while let Ok(next) = granted.try_recv() {
            claims.push(next);
        }
        let entries = claims.iter().filter_map(|claim| state.entry(*claim));
        state.record(entries.collect()).await;
    }
}
