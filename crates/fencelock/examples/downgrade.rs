//! Write alone, then read together with others. Nobody else can write in between.

use std::sync::Arc;

use fencelock::{Client, Memory, Mode};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let writer = client.lock("catalogue").await?;
    let reader = writer.downgrade().await?;
    assert_eq!(reader.mode(), Mode::Shared);
    let beside = other.try_lock("catalogue").shared().await?;
    assert!(beside.token() > reader.token());
    client.close().await
}
