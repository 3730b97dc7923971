//! Messages to a client: a hold was evicted, or is asked to let go. One watch per client, however many locks it holds, so that
//! nothing grows with the traffic of other clients.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchFilterType, WatchOptions};
use fencelock_core::engine::Event;
use fencelock_core::{ClaimId, Result};

use crate::layout::{mailbox, range_end};
use crate::state::State;

pub(crate) const EVICTED: &str = "evicted";
pub(crate) const ASKED: &str = "asked";

/// The pause before the mailbox is watched again.
const RETRY: Duration = Duration::from_millis(200);

impl State {
    /// Starts reading messages, with the first hold.
    pub(crate) fn read_mail(self: &Arc<Self>) {
        if !self.reads_mail.swap(true, Ordering::SeqCst) {
            self.spawn(read_mail(Arc::clone(self)));
        }
    }

    /// Reads messages until the watch ends.
    async fn watch_mailbox(&self) -> Result<()> {
        let prefix = mailbox(&self.client);
        let options = WatchOptions::new()
            .with_range(range_end(&prefix))
            .with_filters([WatchFilterType::NoDelete]);
        let (connection, mut watch) = self.cluster.watch(prefix.as_bytes(), options).await?;
        // Messages from before the watch.
        let all = GetOptions::new().with_range(range_end(&prefix));
        let got = self
            .cluster
            .get(|| "reading messages".into(), prefix.as_bytes(), all)
            .await?;
        for kv in got.kvs() {
            self.receive(&prefix, kv.key(), kv.value()).await?;
        }
        loop {
            let response = tokio::select! {
                response = watch.next() => response,
                () = connection.closed() => return Ok(()),
            };
            let Some(response) = response else {
                return Ok(());
            };
            let events = response.events().iter();
            let put = events.filter(|event| event.event_type() == EventType::Put);
            for kv in put.filter_map(|event| event.kv()) {
                self.receive(&prefix, kv.key(), kv.value()).await?;
            }
        }
    }

    /// Acts on a message and deletes it.
    async fn receive(&self, prefix: &str, key: &[u8], message: &[u8]) -> Result<()> {
        let Ok(key) = std::str::from_utf8(key) else {
            return Ok(());
        };
        let id = key.strip_prefix(prefix);
        if let Some(id) = id.and_then(|id| id.parse::<ClaimId>().ok()) {
            if message == EVICTED.as_bytes() {
                let entries = self.entries.lock();
                let session = entries.get(id).map(|entry| Arc::clone(&entry.session));
                drop(entries);
                if let Some(session) = session {
                    session.forget_hold(id);
                }
                self.lost(id);
            } else if message == ASKED.as_bytes() {
                self.events.tell(Event::Asked(id));
            }
        }
        self.cluster.delete(key).await?;
        Ok(())
    }
}

async fn read_mail(state: Arc<State>) {
    loop {
        if let Err(error) = state.watch_mailbox().await {
            tracing::debug!(%error, "reading messages failed; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }
}
