//! Do not wait, or wait for a limited time.

use std::time::Duration;

use fencelock::Error;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let guard = client.try_lock("import").await?;

    match client.try_lock("import").await {
        Err(Error::Held { name, .. }) => println!("{name} is held; nothing to do here"),
        other => panic!("{other:?}"),
    }

    // Held is one thing, a store that does not answer another: that would be Error::Unavailable.
    let patience = Duration::from_millis(20);
    match client.lock("import").timeout(patience).await {
        Err(Error::TimedOut { name, waited, .. }) => {
            println!("{name} is held after {waited:?} still")
        }
        other => panic!("{other:?}"),
    }

    guard.release().await?;
    let request = client.lock("import").timeout(Duration::from_secs(5));
    request.await?.release().await?;
    client.close().await
}
