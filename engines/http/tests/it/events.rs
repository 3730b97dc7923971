//! Events of the service arrive: a client learns of a loss before its next renewal.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::{Evict, Memory};
use tokio::time::Instant;

use crate::{Replica, connect, soon, until, url};

#[tokio::test]
async fn an_eviction_is_heard_before_the_next_renewal() {
    let memory = Arc::new(Memory::new());
    let replica = Replica::start(Arc::clone(&memory) as _).await;
    let replicas = [replica];
    let client = connect(&url(&replicas)).await;
    // The renewal after the first one is 20 seconds away.
    let lock = client.lock("a").ttl(Duration::from_secs(60));
    let guard = soon("taking", lock).await.unwrap();
    until("the first renewal", async || {
        guard.remaining() > Duration::from_secs(30)
    })
    .await;
    let evicted = Instant::now();
    let inspect = memory.inspect();
    let done = inspect.evict(guard.name(), guard.token(), Evict::Release);
    assert!(done.await.unwrap());
    soon("the loss", guard.lost()).await;
    assert!(
        evicted.elapsed() < Duration::from_secs(12),
        "that was a renewal: {:?}",
        evicted.elapsed()
    );
}
