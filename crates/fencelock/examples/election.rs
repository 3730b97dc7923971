//! One process leads, and the others know which one.

use std::sync::Arc;

use fencelock::{Client, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let other_process = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
    let mut leaders = other_process.election("scheduler").observe();
    let leader = leaders.next().await?;
    println!("{leader:?}");
    assert_eq!(leader.map(|leader| leader.token), Some(leadership.token()));

    // Lead while `leadership.is_valid()`, and send the token along with whatever you order.
    leadership.resign().await?;
    assert_eq!(leaders.next().await?, None);
    client.close().await
}
