//! At most three at a time.

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let downloads = client.semaphore("downloads", 3)?;
    let permit = downloads.acquire().await?;
    println!("token {}", permit.token());
    assert_eq!(downloads.available().await?, 2);
    permit.release().await?;
    client.close().await
}
