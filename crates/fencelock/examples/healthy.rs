//! A holder that is stuck loses its lock, although its process lives and renews.

use std::time::Duration;

use fencelock::Heartbeat;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let heart = Heartbeat::every(Duration::from_millis(500));
    let request = client.lock("import").ttl(Duration::from_millis(600));
    let guard = request.healthy(heart.check()).await?;
    for _ in 0..20 {
        heart.beat();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(guard.is_valid());
    // No beat any more: the work hangs.
    println!("lost: {}", guard.lost().await);
    client.lock("import").await?.release().await?;
    client.close().await
}
