//! Records who holds and who waits, some time after that began.

use std::sync::Weak;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, ClaimId, Clock};
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::dialect::{Dialect, Record};
use super::entry::Entry;
use super::state::{EntryLock, RECORD_AFTER, State};

impl<D: Dialect> State<D> {
    /// Records the claim if it still holds or waits after [`RECORD_AFTER`].
    pub(super) fn record_later(&self, claim: &Claim) {
        // This cannot fail: the recording task lives as long as the engine.
        let _ = self.to_record.send((claim.id, Clock::Boot.now()));
    }

    /// Records the entries that hold or wait in the server and have no record yet. If that fails, a renewal or a recheck
    /// records them.
    async fn record(&self, entries: Vec<EntryLock<D>>) {
        // Locked until the records are written, so that a release comes after that.
        let mut locked: Vec<OwnedMutexGuard<Entry<D>>> = Vec::new();
        let mut records = Vec::new();
        for entry in entries {
            // An entry in use is being released, or renewed, which records it.
            let Ok(mut entry) = entry.try_lock_owned() else {
                continue;
            };
            if let Some(record) = self.unwritten(&mut entry) {
                records.push(record);
                locked.push(entry);
            }
        }
        if !records.is_empty() && self.control.record(&records, &[]).await.is_ok() {
            for (mut entry, record) in locked.into_iter().zip(records) {
                match &mut *entry {
                    Entry::Holding(hold) => hold.recorded = Some(record),
                    Entry::Waiting(waiting) => waiting.recorded = true,
                    _ => {}
                }
            }
        }
    }

    /// The record that an entry should have and does not have. The release deletes it, whether writing succeeds or not.
    fn unwritten(&self, entry: &mut Entry<D>) -> Option<Record> {
        match entry {
            Entry::Holding(hold) if hold.recorded.is_none() => {
                hold.listed = true;
                let id = self.session_id(&hold.conn);
                Some(hold.record(id, &hold.claim, hold.tokens.first))
            }
            Entry::Waiting(waiting) if !waiting.recorded && !waiting.outcome.is_finished() => {
                waiting.listed = true;
                Some(waiting.record.clone())
            }
            _ => None,
        }
    }

    pub(super) async fn record_all(&self) {
        let entries = self.entries.lock().values().cloned().collect();
        self.record(entries).await;
    }
}

/// Records holds and waits that have lasted for [`RECORD_AFTER`], those of the same time together.
pub(super) async fn record_lasting<D: Dialect>(
    state: Weak<State<D>>,
    mut begun: mpsc::UnboundedReceiver<(ClaimId, BootInstant)>,
) {
    let mut next = None;
    loop {
        let Some((first, _)) = (match next.take() {
            Some(next) => Some(next),
            None => begun.recv().await,
        }) else {
            return;
        };
        tokio::time::sleep(RECORD_AFTER).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let now = Clock::Boot.now();
        let mut claims = vec![first];
        while let Ok((claim, since)) = begun.try_recv() {
            if now.since(since) < RECORD_AFTER {
                next = Some((claim, since));
                break;
            }
            claims.push(claim);
        }
        let entries = claims.iter().filter_map(|claim| state.entry(*claim));
        state.record(entries.collect()).await;
    }
}
