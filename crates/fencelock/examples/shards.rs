//! The names of locks, spread over two stores.

#[cfg(all(feature = "composite", feature = "sqlite"))]
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), fencelock::Error> {
    use fencelock::ShardSet;

    let folder = std::env::temp_dir().join(format!("fencelock-shards-{}", std::process::id()));
    drop(std::fs::create_dir_all(&folder));
    let file = |name: &str| format!("sqlite:{}", folder.join(name).display());
    let (one, other) = (file("a.db"), file("b.db"));

    let set = || {
        ShardSet::new("orders")
            .shard("a", 1, &one)
            .shard("b", 2, &other)
    };
    fencelock::init(set()).await?; // once
    let client = fencelock::connect(set()).await?;

    // One customer's locks lie on one store.
    let both = client.lock_all(["{customer-7}/invoice", "{customer-7}/stock"]);
    both.await?.release().await?;

    client.close().await?;
    drop(std::fs::remove_dir_all(&folder));
    Ok(())
}

#[cfg(not(all(feature = "composite", feature = "sqlite")))]
pub(crate) fn main() -> Result<(), fencelock::Error> {
    println!("build with --features composite,sqlite");
    Ok(())
}
