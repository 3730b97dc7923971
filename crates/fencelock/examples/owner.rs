//! Take a lock again that is held already: on purpose, as its owner, also from another process.

use std::sync::Arc;

use fencelock::{Client, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other_process: Client = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let owner = client.owner();
    let outer = client.lock("migration").owner(&owner).await?;
    // Without the owner this would wait for ever.
    let inner = client.lock("migration").owner(&owner).await?;
    assert_eq!(inner.token(), outer.token());
    inner.release().await?;
    assert!(outer.is_valid(), "only the last one releases");

    // A child process gets the owner's text in its environment, and joins.
    let text = owner.as_str().to_owned();
    let outer_owner = other_process.join(&text)?;
    let joined = other_process.lock("migration").owner(&outer_owner).await?;
    assert!(joined.joined());
    assert_eq!(joined.token(), outer.token());
    joined.release().await?;
    assert!(outer.is_valid(), "a joined hold is its owner's to release");

    outer.release().await?;
    other_process.close().await?;
    client.close().await
}
