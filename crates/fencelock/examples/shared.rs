//! Many readers, or one writer.

use fencelock::Error;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let one = client.lock("catalogue").shared().await?;
    let two = client.lock("catalogue").shared().await?;
    assert!(one.is_valid() && two.is_valid());

    let writer = client.try_lock("catalogue").await;
    assert!(matches!(writer, Err(Error::Held { .. })));

    one.release().await?;
    two.release().await?;
    let writer = client.lock("catalogue").exclusive().await?;
    println!("the readers are gone; {} writes", writer.owner());
    writer.release().await?;
    client.close().await
}
