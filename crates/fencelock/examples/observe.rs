//! Count what happens to a client's locks, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencelock::{LockName, Observer, Token};

#[derive(Debug, Default)]
struct Metrics {
    granted: AtomicU64,
    waited_us: AtomicU64,
    released: AtomicU64,
}

impl Observer for Metrics {
    fn granted(&self, _: &LockName, _: Token, waited: Duration, _: bool) {
        self.granted.fetch_add(1, Relaxed);
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(waited, Relaxed);
    }

    fn released(&self, _: &LockName, _: Token) {
        self.released.fetch_add(1, Relaxed);
    }
}

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let client = fencelock::connect("memory:")
        .observer(metrics.clone())
        .await?;
    for _ in 0..3 {
        client.lock("shard").await?.release().await?;
    }
    client.close().await?;
    assert_eq!(metrics.granted.load(Relaxed), 3);
    assert_eq!(metrics.released.load(Relaxed), 3);
    println!("waited {} us in all", metrics.waited_us.load(Relaxed));
    Ok(())
}
