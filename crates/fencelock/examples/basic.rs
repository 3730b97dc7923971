//! Take a lock, use its fencing token, give it back.

use fencelock::Release;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    // Or "sqlite:/var/lib/app/locks.db", or "redis://127.0.0.1".
    let client = fencelock::connect("memory:").await?;

    let guard = client
        .lock("nightly-report")
        .label("the first of many")
        .await?;
    println!("{} is held, token {}", guard.name(), guard.token());

    // Before each step that needs the lock. It renews itself meanwhile.
    if guard.is_valid() {
        println!("held for {:?} even without renewal", guard.remaining());
    }

    // Dropping the guard would release, too; this tells how it went.
    assert_eq!(guard.release().await?, Release::Released);
    client.close().await
}
