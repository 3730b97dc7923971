//! An operator looks at a lock, asks its holder for it, and in the end takes it away.

use std::sync::Arc;

use fencelock::engine::Evict;
use fencelock::{Client, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let operator = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let guard = client.lock("leader").label("node 1").await?;
    let view = operator.look("leader").await?;
    for holder in &view.holders {
        println!("{} holds it ({:?})", holder.owner, holder.label);
    }

    // Only the holder with this very token is meant, never one that came after it.
    let Some(token) = view.token() else {
        panic!("it is held");
    };
    assert!(operator.evict("leader", token, Evict::Ask).await?);
    guard.asked_to_release().await;
    guard.release().await?;
    assert!(!operator.evict("leader", token, Evict::Release).await?);

    let deaf = client.lock("leader").await?;
    let taken = operator.evict("leader", deaf.token(), Evict::Release);
    assert!(taken.await?);
    println!("lost: {}", deaf.lost().await);
    assert!(!deaf.is_valid());
    client.close().await
}
