//! A hold that ends by itself after a given time, whatever its holder does.

use std::sync::Arc;
use std::time::Duration;

use fencelock::{Client, Memory, Release};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let most = Duration::from_millis(100);
    let guard = client.lock("batch").max_hold(most).await?;
    // The ttl is 30 s, and it is renewed; but not beyond that. The guard need not be dropped for others to have it.
    let next = other.lock("batch").await?;
    println!("lost: {}", guard.lost().await);
    assert_eq!(guard.release().await?, Release::AlreadyExpired);
    next.release().await?;
    client.close().await
}
