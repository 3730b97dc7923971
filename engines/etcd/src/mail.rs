//! Mail to a client: somebody evicted one of its holds, or asks for it. One watch per client, whatever it holds, so that
//! nothing grows with the traffic of others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchFilterType, WatchOptions};
use fencelock_core::engine::Event;
use fencelock_core::{ClaimId, Result};

use crate::engine::Shared;
use crate::layout::{end_of, mailbox};

pub(crate) const EVICTED: &str = "evicted";
pub(crate) const ASKED: &str = "asked";

/// The pause before the mailbox is opened again.
const AGAIN: Duration = Duration::from_millis(200);

impl Shared {
    /// From the first hold on, mail is read.
    pub(crate) fn read_mail(self: &Arc<Self>) {
        if !self.reads_mail.swap(true, Ordering::SeqCst) {
            self.spawn(read(Arc::clone(self)));
        }
    }

    async fn read_until_broken(&self) -> Result<()> {
        let prefix = mailbox(&self.client);
        let options = WatchOptions::new()
            .with_range(end_of(&prefix))
            .with_filters([WatchFilterType::NoDelete]);
        let (link, mut watch) = self.store.watch(prefix.as_bytes(), options).await?;
        // What came before the watch.
        let all = GetOptions::new().with_range(end_of(&prefix));
        let got = self
            .store
            .get(|| "reading mail".into(), &prefix, all)
            .await?;
        for kv in got.kvs() {
            self.open_letter(&prefix, kv.key(), kv.value()).await?;
        }
        loop {
            let told = tokio::select! {
                told = watch.message() => told,
                () = link.gone() => return Ok(()),
            };
            let Some(told) = told else { return Ok(()) };
            let put = told
                .events()
                .iter()
                .filter(|e| e.event_type() == EventType::Put);
            for kv in put.filter_map(|event| event.kv()) {
                self.open_letter(&prefix, kv.key(), kv.value()).await?;
            }
        }
    }

    async fn open_letter(&self, prefix: &str, key: &[u8], letter: &[u8]) -> Result<()> {
        let Ok(key) = std::str::from_utf8(key) else {
            return Ok(());
        };
        let id = key.strip_prefix(prefix);
        if let Some(id) = id.and_then(|id| id.parse::<ClaimId>().ok()) {
            if letter == EVICTED.as_bytes() {
                let on = self.claims().get(id).map(|placed| Arc::clone(&placed.on));
                if let Some(on) = on {
                    on.leave(id);
                }
                self.lost(id);
            } else if letter == ASKED.as_bytes() {
                // Nobody listens once the engine is dropped.
                let _ = self.tell.send(Event::Asked(id));
            }
        }
        self.delete_any(key).await?;
        Ok(())
    }
}

async fn read(shared: Arc<Shared>) {
    loop {
        if let Err(error) = shared.read_until_broken().await {
            tracing::debug!(%error, "reading mail failed; trying again");
            tokio::time::sleep(AGAIN).await;
        }
    }
}
