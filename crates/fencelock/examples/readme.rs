//! The ten lines of the README.

use std::time::Duration;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?; // sqlite:PATH, redis://HOST
    let guard = client
        .lock_for("nightly-report", Duration::from_secs(60))
        .ttl(Duration::from_secs(30))
        .await?;
    write_report(guard.token().get()); // the resource refuses an older token
    println!("{:?}", guard.release().await?); // Released, AlreadyExpired or NotOwner
    Ok(())
}

fn write_report(token: u64) {
    println!("written with token {token}");
}
