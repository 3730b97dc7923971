//! Renewals that arrive more than once, as a network or a proxy may repeat them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{Guard, Memory};

use crate::{Replica, connect, soon, url};

const LONG: Duration = Duration::from_secs(60);

const SHORT: Duration = Duration::from_secs(4);

/// Records a refresh as it is on the wire.
async fn refreshed(at: &Replica, guard: &Guard, ttl: Duration) -> Vec<u8> {
    at.proxy.keep();
    soon("a refresh", guard.refresh(ttl)).await.unwrap();
    let kept = at.proxy.take_kept().into_iter();
    let mut renewals = kept.filter(|chunk| chunk.starts_with(b"POST /v1/renewals "));
    let renewal = renewals.next().unwrap();
    assert!(renewals.next().is_none());
    renewal
}

/// The request arrives a second time.
fn comes_again(at: &Replica, request: &[u8]) {
    let mut server = TcpStream::connect(("127.0.0.1", at.proxy.port())).unwrap();
    server.write_all(request).unwrap();
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"}]}") {
        let count = server.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..count]);
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(r#""state":"held""#), "{answer}");
}

/// How long the store still keeps the hold.
async fn left(guard: &Guard) -> Duration {
    soon("a look", guard.ttl()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_comes_again_takes_nothing_from_a_longer_one() {
    let at = [Replica::start(Arc::new(Memory::new())).await];
    let client = connect(&url(&at)).await;
    let guard = client.lock("a").ttl(SHORT).renew(false).await.unwrap();
    let short = refreshed(&at[0], &guard, SHORT).await;
    refreshed(&at[0], &guard, LONG).await;
    comes_again(&at[0], &short);
    let left = left(&guard).await;
    assert!(left > LONG / 2, "cut to {left:?}");
    assert!(guard.remaining() > LONG / 2);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_shortened_may_be_shortened_again_and_is_believed_for_no_longer() {
    let at = [Replica::start(Arc::new(Memory::new())).await];
    let client = connect(&url(&at)).await;
    let guard = client.lock("a").renew(false).await.unwrap();
    refreshed(&at[0], &guard, LONG).await;
    let shortening = refreshed(&at[0], &guard, SHORT).await;
    assert!(left(&guard).await <= SHORT);
    refreshed(&at[0], &guard, LONG).await;
    assert!(left(&guard).await > LONG / 2);
    assert!(guard.remaining() <= SHORT, "{:?}", guard.remaining());
    comes_again(&at[0], &shortening);
    let left = left(&guard).await;
    assert!(left <= SHORT, "the copy came again: {left:?}");
    assert!(guard.remaining() <= left && guard.is_valid());
    guard.release().await.unwrap();
    // The next grant is believed for its whole lease.
    let guard = client.lock("a").renew(false).await.unwrap();
    refreshed(&at[0], &guard, LONG).await;
    assert!(guard.remaining() > LONG / 2);
    guard.release().await.unwrap();
}
