//! Servers with TLS.

use std::sync::Arc;

use fencelock_core::{Client, Error, StoreUrl};
use fencelock_testbed::ZooKeeper;

use crate::{connect, renewed, soon, wait_in_queue};

async fn refused(url: &str) -> Error {
    let opening = fencelock_zookeeper::ZooKeeper::open(StoreUrl::parse(url).unwrap());
    let opened = soon("a refusal", opening).await;
    match opened {
        Ok(engine) => {
            drop(Client::new(Arc::new(engine)));
            panic!("{url} was opened")
        }
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_tls_exclude_those_without() {
    let server = ZooKeeper::builder().tls().start().unwrap();
    let secure = format!("127.0.0.1:{}", server.secure_port().unwrap());
    let url = format!(
        "zookeeper://{secure}?tls-ca={}&connect-timeout=10s",
        server.ca()
    );
    let (one, two) = (connect(&url).await, connect(&server.url()).await);
    let guard = one.lock("a").await.unwrap();
    let waiter = wait_in_queue(&two, "a", false, 1).await;
    renewed(&guard).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();

    // Without TLS to a port with TLS, with the wrong certificate authority, and with TLS to a port without TLS.
    let stranger = ZooKeeper::builder().tls().start().unwrap();
    let quick = "connect-timeout=2s";
    for url in [
        format!("zookeeper://{secure}?{quick}"),
        format!("zookeeper://{secure}?{quick}&tls-ca={}", stranger.ca()),
        format!(
            "zookeeper://127.0.0.1:{}?{quick}&tls-ca={}",
            server.port(),
            server.ca()
        ),
    ] {
        let error = refused(&url).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
}
