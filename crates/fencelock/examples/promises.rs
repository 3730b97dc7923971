//! Ask a store what it promises before relying on it.

use std::time::Duration;

use fencelock::Purpose;

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:")
        .purpose(Purpose::Correctness)
        .await?;
    let promises = client.promises();
    println!("{} serves {:?}", promises.engine, promises.order);
    println!("its clocks: {}", promises.clock);
    // Empty unless the client was opened for correctness on a store that could grant a lock twice.
    for limit in client.warnings() {
        println!("{}; {}", limit.what, limit.change);
    }

    // The lock stays closed for a while after a holder that vanished; one that is released is free at once.
    if promises.lock_delay {
        let request = client.lock("a").lock_delay(Duration::from_secs(2));
        request
            .max_hold(Duration::from_secs(60))
            .await?
            .release()
            .await?;
    }
    client.close().await
}
