//! Several locks as one: all of them or none, always in the same order, so that no programs wait for each other in a circle.

use std::time::Duration;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let transfer = client
        .lock_all(["account/7", "account/3"])
        .timeout(Duration::from_secs(5))
        .each(|request| request.ttl(Duration::from_secs(10)))
        .await?;
    for guard in &transfer {
        println!("{} with token {}", guard.name(), guard.token());
    }
    assert!(transfer.is_valid());
    transfer.release().await?;
    client.close().await
}
