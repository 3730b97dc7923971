//! Hours of holding in no time: a test with tokio's paused clock.

use std::sync::Arc;
use std::time::Duration;

use fencelock::{Client, Clock, Memory};
use tokio::time::{Instant, sleep};

#[tokio::main(flavor = "current_thread", start_paused = true)]
pub(crate) async fn main() -> fencelock::Result<()> {
    let clock = Clock::Tokio(Instant::now());
    let client = Client::new(Arc::new(Memory::with_clock(clock)))?;

    let renewed = client.lock("renewed").await?;
    let left_alone = client.lock("left alone").renew(false).await?;
    sleep(Duration::from_secs(3600)).await;
    assert!(renewed.is_valid());
    assert!(!left_alone.is_valid());
    client.close().await
}
