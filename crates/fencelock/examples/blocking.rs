//! A program without async.

use std::time::Duration;

use fencelock::{Error, Release, blocking};

pub(crate) fn main() -> fencelock::Result<()> {
    let client = blocking::connect("memory:")?;
    let guard = client
        .lock("backup")
        .ttl(Duration::from_secs(10))
        .label("weekly")
        .take()?;

    let second = client
        .lock("backup")
        .timeout(Duration::from_millis(20))
        .take();
    assert!(matches!(second, Err(Error::TimedOut { .. })));

    // Settings without a shortcut go through `set`.
    let third = client
        .lock("backup")
        .set(|request| request.attempts(1))
        .take();
    assert!(matches!(third, Err(Error::Held { .. })));

    assert_eq!(guard.release()?, Release::Released);
    client.close()
}
