//! Typed options and connectors of the driver: their locks are those of the URL, and every option takes effect.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Client, Error};
use fencelock_testbed::ZooKeeper as Server;
use fencelock_zookeeper::{Options, ZooKeeper};

use crate::{connect, soon};

fn host(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// A lock that is taken with `options` is held for a client of the URL.
async fn locks_for(options: Options, url: &str) -> Client {
    let engine = soon("opening", ZooKeeper::open(options)).await.unwrap();
    let (one, two) = (Client::new(Arc::new(engine)).unwrap(), connect(url).await);
    let guard = one.lock("a").await.unwrap();
    assert_eq!(two.look("a").await.unwrap().token(), Some(guard.token()));
    guard.release().await.unwrap();
    one
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_url_lock_the_same() {
    let server = Server::start().unwrap();
    let window = Duration::from_millis(4321);
    let options = Options::new([host(&server)]).user("ann").password("s:cret");
    let options = options.chroot("/a/b").claim_window(window);
    let url = format!("zookeeper://ann:s%3Acret@{}/a/b", host(&server));
    let client = locks_for(options, &url).await;
    assert_eq!(client.promises().claim_window, window);
    // Other users have no rights at the nodes of this user.
    let stranger = Options::new([host(&server)]).chroot("/a/b");
    let error = soon("a refusal", ZooKeeper::open(stranger)).await.map(drop);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_the_connector_are_used() {
    let server = Server::start().unwrap();
    let own = || zookeeper_client::Client::connector().with_auth("digest", b"ann:s3cret");
    let options = Options::from_connector([host(&server)], own()).private_nodes();
    assert!(!format!("{options:?}").contains("s3cret"));
    let url = format!("zookeeper://ann:s3cret@{}/own", host(&server));
    locks_for(options.chroot("/own"), &url).await;
    let stranger = zookeeper_client::Client::connector();
    let stranger = Options::from_connector([host(&server)], stranger).chroot("/own");
    let error = soon("a refusal", ZooKeeper::open(stranger)).await.map(drop);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    // By default all users have rights on the nodes.
    let open = Options::from_connector([host(&server)], own()).chroot("/all");
    let url = format!("{}/all", server.url());
    locks_for(open, &url).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_of_the_connector_is_used() {
    let server = Server::builder().tls().start().unwrap();
    let authority = std::fs::read_to_string(server.ca()).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tls = zookeeper_client::TlsOptions::default();
    let tls = tls.with_pem_ca(&authority).unwrap();
    let own = zookeeper_client::Client::connector().with_tls(tls);
    let host = format!("127.0.0.1:{}", server.secure_port().unwrap());
    locks_for(Options::from_secure_connector([&host], own), &server.url()).await;
    let untrusting = zookeeper_client::Client::connector();
    let options = Options::from_secure_connector([&host], untrusting);
    let options = options.connect_timeout(Duration::from_secs(2));
    let error = soon("a refusal", ZooKeeper::open(options)).await.map(drop);
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}
