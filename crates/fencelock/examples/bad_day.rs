//! What does your code do when the store stops answering? A layer that injects faults lets a test find out.

use std::sync::Arc;
use std::time::Duration;

use fencelock::layers::{Fault, Trouble};
use fencelock::{Client, Error, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other = Client::new(Arc::new(store.another()))?;
    let (engine, faults) = Fault::new(Arc::new(store));
    let client = Client::new(Arc::new(engine))?;
    let ttl = Duration::from_millis(500);

    // The request takes effect and its answer is lost. An error, and nothing stays behind.
    faults.next([Trouble::LoseReply]);
    let error = client.try_lock("x").await;
    assert!(matches!(error, Err(Error::Unavailable { .. })));
    other.lock("x").await?.release().await?;

    // Renewals get lost from here on: the holder knows before the next one holds.
    let guard = client.lock("x").ttl(ttl).await?;
    faults.by_chance(|call| match call {
        "renew" => Trouble::LoseRequest,
        _ => Trouble::None,
    });
    let next = other.lock("x").await?;
    assert!(!guard.is_valid());
    println!("lost: {}", guard.lost().await);
    assert!(next.token() > guard.token());

    faults.calm();
    next.release().await?;
    Ok(())
}
