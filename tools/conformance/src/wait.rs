//! Waits with a limit that name what they waited for.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// How long a case waits for what must happen. Far beyond what anything takes, on a busy machine too.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);

/// What a future comes to, within [`LIMIT`].
pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match timeout(LIMIT, future).await {
        Ok(result) => result,
        Err(_) => panic!("waited {LIMIT:?} in vain for: {what}"),
    }
}

/// Waits until `done` says so; for what nothing tells of its own accord.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !done().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, poll).await;
}

/// Makes sure that a future does not come to its end for a while.
pub(crate) async fn not_for<T>(what: &str, while_: Duration, future: impl IntoFuture<Output = T>) {
    if timeout(while_, future).await.is_ok() {
        panic!("happened, and must not have: {what}");
    }
}
