//! Stores that have names in a configuration file.

#[cfg(feature = "config")]
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), fencelock::Error> {
    let file = format!("fencelock-named-{}.toml", std::process::id());
    let path = std::env::temp_dir().join(file);
    let text = "[store.orders]\nurl = \"memory:\"\n";
    drop(std::fs::write(&path, text)); // `load` says if it failed

    let config = fencelock::Config::load(&path)?;
    let orders = config.connect("orders").await?;
    orders.lock("{customer-7}/invoice").await?.release().await?;

    orders.close().await?;
    drop(std::fs::remove_file(&path));
    Ok(())
}

#[cfg(not(feature = "config"))]
pub(crate) fn main() -> Result<(), fencelock::Error> {
    println!("build with --features config");
    Ok(())
}
