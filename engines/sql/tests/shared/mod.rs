//! The common parts of the tests of MySQL and PostgreSQL. The test's crate names its engine `crate::engine`.

pub(crate) mod crashes;
pub(crate) mod hosts;
pub(crate) mod late;
pub(crate) mod queue;
pub(crate) mod restore;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
mod wire;

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Standing};
use fencelock_core::{ClaimIds, Client, Error, Guard, LockName, Mode, StoreUrl, Token};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Much longer than any step takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn open(url: &str) -> Result<Client, Error> {
    open_with(StoreUrl::parse(url)?).await
}

/// Opens a store by typed options.
pub(crate) async fn open_with(
    options: impl Into<crate::engine::Options> + Send,
) -> Result<Client, Error> {
    let engine = crate::engine::connect(options).await?;
    Client::builder(engine).build()
}

/// A lock that is taken with `options` is held for a client of the URL.
pub(crate) async fn locks_for(options: crate::engine::Options, url: &str) -> Client {
    let (one, two) = (open_with(options).await.unwrap(), open(url).await.unwrap());
    let guard = take(&one, "a").await;
    assert_eq!(two.look("a").await.unwrap().token(), Some(guard.token()));
    guard.release().await.unwrap();
    one
}

/// Opens a store for inspection only.
pub(crate) async fn inspect(url: &str) -> Result<Client, Error> {
    let mut url = StoreUrl::parse(url)?;
    url.inspect_only = true;
    open_with(url).await
}

pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let done = timeout(LIMIT, future).await;
    done.unwrap_or_else(|_| panic!("timed out: {what}"))
}

pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    soon("a lock", client.lock(name)).await.unwrap()
}

/// Releases a lock, and returns how long its waiter took.
pub(crate) async fn hand_over(
    held: Guard,
    waiting: JoinHandle<Result<Guard, Error>>,
) -> (Duration, Guard) {
    let begun = Instant::now();
    held.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    (begun.elapsed(), next)
}

/// Hands over up to four times, until the waiter takes less than `limit`. A busy machine may be too slow once, but a waiter
/// that nobody wakes is too slow each time.
pub(crate) async fn hand_over_within(
    limit: Duration,
    what: &str,
    mut hand_over: impl AsyncFnMut() -> (Duration, Guard),
) -> Guard {
    let mut all = Vec::new();
    for _ in 0..4 {
        let (took, next) = hand_over().await;
        if took < limit {
            return next;
        }
        next.release().await.unwrap();
        all.push(took);
    }
    panic!("{what}: {all:?}");
}

pub(crate) async fn token_of(client: &Client, name: &str) -> Token {
    let guard = take(client, name).await;
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

/// A claim without a client, which is neither renewed nor released.
pub(crate) fn claim(name: &str, mode: Mode, ttl: Duration) -> Claim {
    let id = ClaimIds::new().unwrap().next();
    Claim::new(id, "vanished", LockName::new(name).unwrap())
        .mode(mode)
        .ttl(ttl)
        .wait(false)
        .record(true)
}

/// Takes a lock like a process that is killed right after.
pub(crate) async fn hold_and_vanish(url: &str, name: &str, ttl: Duration) -> Token {
    let engine = crate::engine::connect(StoreUrl::parse(url).unwrap()).await;
    let claim = claim(name, Mode::Exclusive, ttl);
    match engine.unwrap().place(&claim).await.unwrap() {
        Standing::Held(grant) => grant.tokens.first,
        other => panic!("{other:?}"),
    }
}

/// A holder whose process vanished holds until its ttl is over, even if the database's clock is wrong.
pub(crate) async fn a_vanished_holder_expires(
    url: &str,
    client: &Client,
    name: &str,
    ttl: Duration,
) {
    let begun = Instant::now();
    let token = hold_and_vanish(url, name, ttl).await;
    let view = client.look(name).await.unwrap();
    let left = view.holders[0].ttl_left.unwrap();
    assert!(left <= ttl && left > Duration::ZERO, "{left:?}");
    let next = take(client, name).await;
    let waited = begun.elapsed();
    assert!(waited >= ttl, "{waited:?}");
    assert!(waited < ttl + Duration::from_secs(15), "{waited:?}");
    assert!(next.token() > token);
}
