//! Run a piece of work under a lock. It is stopped if the lock is lost.

use std::sync::Arc;

use fencelock::engine::Evict;
use fencelock::{Client, Error, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let operator = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let work = |held: fencelock::Held| async move { format!("done with token {}", held.token()) };
    println!("{}", client.with("invoice/7", work).await?);

    // Here somebody takes the lock away while the body waits: it gets no further.
    let interrupted = client
        .with("invoice/7", |held| async move {
            let taken = operator.evict("invoice/7", held.token(), Evict::Release);
            assert!(taken.await.is_ok());
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(interrupted, Err(Error::Lost { .. })));
    client.close().await
}
