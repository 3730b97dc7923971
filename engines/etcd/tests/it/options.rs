//! Typed options and the driver's own options lock the same locks as a URL, and their settings take effect.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, TlsOptions};
use fencelock::{Client, Error};
use fencelock_etcd::{Layout, Options};
use fencelock_testbed::Etcd;

use crate::soon;

fn host(etcd: &Etcd) -> String {
    format!("127.0.0.1:{}", etcd.port(0))
}

/// A lock that was taken with `options` is held for a client that uses the URL.
async fn locks_for(options: Options, url: &str) -> Client {
    let one = soon("opening", fencelock::connect(options)).await.unwrap();
    let two = soon("opening", fencelock::connect(url)).await.unwrap();
    let guard = one.lock("a").await.unwrap();
    assert_eq!(two.look("a").await.unwrap().token(), Some(guard.token()));
    guard.release().await.unwrap();
    one
}

#[tokio::test]
async fn options_lock_what_the_url_locks() {
    let etcd = Etcd::builder().user("ann", "pass").start().unwrap();
    let options = Options::new([host(&etcd)]).user("ann").password("pass");
    let window = Duration::from_millis(3500);
    let client = locks_for(options.clone().claim_window(window), &etcd.url()).await;
    assert_eq!(client.promises().claim_window, window);
    let error = soon("a refusal", fencelock::connect(options.password("wr0ng"))).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
    let etcd = Etcd::start().unwrap();
    let options = Options::new([host(&etcd)]).layout(Layout::Concurrency);
    locks_for(options, &format!("{}?layout=concurrency", etcd.url())).await;
}

#[tokio::test]
async fn own_options_bring_credentials() {
    let etcd = Etcd::builder().user("ann", "pass").start().unwrap();
    let endpoint = format!("http://{}", host(&etcd));
    let own = |password| {
        let own = ConnectOptions::new().with_user("ann", password);
        Options::from_endpoints([&endpoint], own)
    };
    assert!(!format!("{:?}", own("pass")).contains("pass"));
    locks_for(own("pass"), &etcd.url()).await;
    let error = soon("a refusal", fencelock::connect(own("wr0ng"))).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test]
async fn own_options_bring_tls() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let authority = Certificate::from_pem(std::fs::read(etcd.ca()).unwrap());
    let tls = TlsOptions::new().ca_certificate(authority);
    let own = |own| Options::from_endpoints([format!("https://{}", host(&etcd))], own);
    locks_for(own(ConnectOptions::new().with_tls(tls)), &etcd.url()).await;
    let error = soon("a refusal", fencelock::connect(own(ConnectOptions::new()))).await;
    assert!(error.is_err());
}
