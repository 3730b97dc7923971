//! Look at locks, list them, and notice when one gets another holder.

use std::sync::Arc;

use fencelock::{Client, Memory};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let store = Memory::new();
    let watcher = Client::new(Arc::new(store.another()))?;
    let client = Client::new(Arc::new(store))?;

    let leader = client.lock("cluster/leader").await?;
    let other = client.lock("cluster/janitor").await?;
    let held = watcher.list("cluster/").await?;
    let names: Vec<&str> = held.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(names, ["cluster/janitor", "cluster/leader"]);

    let seen = watcher.look("cluster/leader").await?.token();
    leader.release().await?;
    let view = watcher.watch("cluster/leader", seen).await?;
    assert!(view.holders.is_empty());
    println!("{} is free", view.name);

    other.release().await?;
    client.close().await
}
