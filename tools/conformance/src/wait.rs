//! Waits with a limit. A wait that fails names what it waited for.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// How long a case waits for what must happen. This takes much less time, even on a busy machine. Shorter than the usual ttl of
/// 30 s: no case passes only because a lease has ended.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

/// The output of a future, within [`LIMIT`].
pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match timeout(LIMIT, future).await {
        Ok(result) => result,
        Err(_) => panic!("timed out after {LIMIT:?}: {what}"),
    }
}

/// Polls until `done` is true.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !done().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, poll).await;
}

/// Makes sure that a future does not end for a while.
pub(crate) async fn not_for<T>(what: &str, while_: Duration, future: impl IntoFuture<Output = T>) {
    if timeout(while_, future).await.is_ok() {
        panic!("happened, and must not have: {what}");
    }
}
