//! Work in its own task, which a cancellation token ends when the lock is lost or released.

use std::time::Duration;

use fencelock::CancellationToken;

async fn index(cancelled: CancellationToken) -> u32 {
    let mut pages = 0;
    while !cancelled.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        pages += 1;
    }
    pages
}

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let guard = client
        .lock("index")
        .max_hold(Duration::from_millis(500))
        .await?;
    let work = tokio::spawn(index(guard.cancellation_token()));
    // Nobody waits for `guard.lost()`: the token ends the work when the longest time to hold is over.
    let pages = work.await.unwrap_or(0);
    assert!(pages > 0 && !guard.is_valid());
    println!("{pages} pages");
    client.close().await
}
