//! The store keeps the lock of a vanished holder for a while longer, so that the holder's last requests have time to arrive. An
//! operator can end this time early.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Evict;
use fencelock::{Client, Error, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;
    let delay = Duration::from_secs(3600);

    // A release in good order hands over at once.
    let guard = client.lock("ledger").lock_delay(delay).await?;
    guard.release().await?;
    other.try_lock("ledger").await?.release().await?;

    let ttl = Duration::from_millis(500);
    let request = client.lock("ledger").ttl(ttl).lock_delay(delay);
    // Not renewed, as if its process had died.
    let guard = request.renew(false).await?;
    let sequencer = guard.sequencer().await?;
    println!("lost: {}", guard.lost().await);
    tokio::time::sleep(ttl).await;
    // Nobody holds the lock, and nobody is granted it.
    assert!(!other.check(&sequencer).await?);
    let kept = other.try_lock("ledger").await;
    assert!(matches!(kept, Err(Error::Held { .. })));

    // `fencelock release ledger --token TOKEN`
    let ended = other.evict("ledger", sequencer.token, Evict::Release);
    assert!(ended.await?);
    other.try_lock("ledger").await?.release().await?;
    client.close().await
}
