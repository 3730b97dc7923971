//! Renew by hand: for programs whose lock should end by itself when their work makes no progress.

use std::time::Duration;

use fencelock::Release;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let ttl = Duration::from_millis(500);
    let guard = client.lock("batch").ttl(ttl).renew(false).await?;

    // A step is done: some more time.
    guard.refresh(Duration::from_secs(5)).await?;
    assert!(guard.remaining() > ttl);
    println!("the store says {:?}", guard.ttl().await?);

    // And now it is left alone. The reason comes once the lock is no longer held.
    guard.refresh(ttl).await?;
    println!("lost: {}", guard.lost().await);
    assert_eq!(guard.release().await?, Release::AlreadyExpired);
    client.close().await
}
