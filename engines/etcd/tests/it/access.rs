//! TLS, users and rights, and members that are down.

use std::time::{Duration, Instant};

use fencelock::Error;
use fencelock_testbed::{Etcd, Port};

use crate::{client, soon};

#[tokio::test]
async fn tls_and_the_wrong_scheme() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let guard = client(&etcd).await.lock("a").await.unwrap();
    guard.release().await.unwrap();
    let plain = format!("etcd://127.0.0.1:{}", etcd.port(0));
    let error = soon("a refusal", fencelock::connect(&plain))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("etcds://"), "{error}");
    // The wrong certificate authority.
    let other = Etcd::builder().tls().start().unwrap();
    let url = format!("etcds://127.0.0.1:{}?tls-ca={}", etcd.port(0), other.ca());
    let error = soon("a refusal", fencelock::connect(&url))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ertificate"), "{error}");
}

#[tokio::test]
async fn client_certificates() {
    let etcd = Etcd::builder().client_certificates().start().unwrap();
    let (certificate, key) = etcd.certificate();
    let url = format!("{}&tls-cert={certificate}&tls-key={key}", etcd.url());
    let one = soon("opening", fencelock::connect(&url)).await.unwrap();
    one.lock("a").await.unwrap().release().await.unwrap();
    let error = soon("a refusal", fencelock::connect(etcd.url())).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("tls-cert"), "{error}");
}

#[tokio::test]
async fn tls_to_a_plain_server() {
    let (etcd, with) = (
        Etcd::start().unwrap(),
        Etcd::builder().tls().start().unwrap(),
    );
    let url = format!("etcds://127.0.0.1:{}?tls-ca={}", etcd.port(0), with.ca());
    let error = soon("a refusal", fencelock::connect(&url))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn users_and_their_rights() {
    let etcd = Etcd::builder().user("ann", "pass").start().unwrap();
    let port = etcd.port(0);
    for who in ["", "ann:wrong@", "eve:pass@"] {
        let url = format!("etcd://{who}127.0.0.1:{port}");
        let error = soon("a refusal", fencelock::connect(&url))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{who}: {error:?}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    // The documented rights are enough for everything except Go's layout, whose keys have other prefixes.
    let go = format!("{}?layout=concurrency", etcd.url());
    let go = fencelock::connect(&go).await.unwrap();
    let error = go.try_lock("elsewhere").await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("readwrite"), "{error}");
    let guard = client(&etcd).await.lock("a").await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_user_on_a_server_without_authentication() {
    let etcd = Etcd::start().unwrap();
    let url = format!("etcd://ann:pass@127.0.0.1:{}", etcd.port(0));
    let error = soon("a refusal", fencelock::connect(&url))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("authentication is not enabled"),
        "{error}"
    );
}

#[tokio::test]
async fn one_of_three_is_down_at_the_start() {
    let etcd = Etcd::cluster(3).start().unwrap();
    etcd.kill9(1);
    let guard = soon("the lock", client(&etcd).await.lock("a"))
        .await
        .unwrap();
    guard.release().await.unwrap();
    // A member that accepts connections and does not answer causes no delay either.
    etcd.launch(1).unwrap();
    let guard = soon("the lock", client(&etcd).await.lock("a"))
        .await
        .unwrap();
    etcd.pause(1).unwrap();
    let other = soon("opening", client(&etcd)).await;
    assert!(matches!(other.try_lock("a").await, Err(Error::Held { .. })));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn no_server_listens() {
    let port = Port::free().unwrap();
    let url = format!("etcd://127.0.0.1:{}?connect-timeout=1s", port.number());
    let error = soon("an error", fencelock::connect(&url))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        error.to_string().contains(&port.number().to_string()),
        "{error}"
    );
}

/// Many claims while the server does not answer. All wait for the same attempt, not for one attempt each, which would take 20
/// seconds.
#[tokio::test]
async fn claims_share_the_failure_of_one_attempt() {
    const CLAIMS: usize = 20;
    let etcd = Etcd::start().unwrap();
    let url = format!("{}?response-timeout=1s", etcd.url());
    let one = fencelock::connect(&url).await.unwrap();
    one.lock("a").await.unwrap().release().await.unwrap();
    etcd.pause(0).unwrap();
    // The call makes the client give up its connection and its session.
    one.try_lock("a").await.unwrap_err();
    let begun = Instant::now();
    let claim = |i| {
        let one = one.clone();
        tokio::spawn(async move { one.try_lock(&format!("a/{i}")).await })
    };
    let claims: Vec<_> = (0..CLAIMS).map(claim).collect();
    for claim in claims {
        let error = soon("an error", claim).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("no answer within"), "{error}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    etcd.resume(0).unwrap();
    let again = soon("the client goes on", one.lock("a")).await.unwrap();
    again.release().await.unwrap();
}
