//! A job that several machines start at about the same time, and that runs once per period.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock::{Client, Error, Memory, Release};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let begun = Instant::now();
    let at_least = Duration::from_secs(1);
    let guard = client.try_lock("report").at_least(at_least).await?;
    println!("the report is made, with token {}", guard.token());
    assert_eq!(guard.release().await?, Release::Released);
    // The store keeps the lock by itself.
    client.close().await?;

    // Another machine, whose clock is a little late.
    let late = other.try_lock("report").at_least(at_least).await;
    assert!(matches!(late, Err(Error::Held { .. })));

    // The next period.
    let guard = other.lock("report").await?;
    assert!(begun.elapsed() >= at_least);
    guard.release().await?;
    Ok(())
}
