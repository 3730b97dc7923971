//! Do not queue: ask a few times, with random pauses, then give up.

use std::time::Duration;

use fencelock::Error;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let guard = client.lock("mail").await?;

    let (shortest, longest) = (Duration::from_millis(1), Duration::from_millis(4));
    let request = client.lock("mail").attempts(3).delays(shortest, longest);
    assert!(matches!(request.clone().await, Err(Error::Held { .. })));

    guard.release().await?;
    request.await?.release().await?;

    // Or ask until the lock is granted. Others may get it first.
    client.lock("mail").unfair().await?.release().await?;
    client.close().await
}
