//! Typed options and the driver's own options lock the same locks as a URL, and their settings take effect.

use fencelock_core::Error;
use fencelock_mysql::{Options, Strategy};
use fencelock_testbed::MariaDb;
use mysql_async::{Opts, OptsBuilder};

use crate::number;
use crate::shared::{locks_for, open_with, take};

const PASSWORD: &str = "s3cret";

fn host(server: &MariaDb) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn own(server: &MariaDb) -> OptsBuilder {
    OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("lock"))
        .pass(Some(PASSWORD))
        .db_name(Some("lock"))
        .prefer_socket(false)
}

#[tokio::test(flavor = "multi_thread")]
async fn options_lock_what_the_url_locks() {
    let server = MariaDb::builder().password(PASSWORD).start().unwrap();
    let options = || {
        Options::new([host(&server)], "lock")
            .user("lock")
            .password(PASSWORD)
    };
    let url = server.url();
    locks_for(options().table("other"), &format!("{url}?table=other")).await;
    let ours = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'lock' AND table_name LIKE";
    assert!(number(&server, &format!("{ours} 'other%'")) > 0);
    assert_eq!(number(&server, &format!("{ours} 'fencelock%'")), 0);
    for (strategy, word) in [
        (Strategy::GetLock, "get-lock"),
        (Strategy::ForUpdate, "for-update"),
    ] {
        locks_for(
            options().strategy(strategy),
            &format!("{url}?strategy={word}"),
        )
        .await;
    }
    let error = open_with(options().password("wr0ng")).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_options_bring_credentials_and_settings() {
    let server = MariaDb::builder().password(PASSWORD).start().unwrap();
    let noted = own(&server).init(vec!["DO GET_LOCK(CONCAT('own-', CONNECTION_ID()), 0)"]);
    let options = Options::from_opts(noted.into());
    assert!(!format!("{options:?}").contains(PASSWORD));
    let client = locks_for(options, &server.url()).await;
    let _held = take(&client, "b").await;
    // The action of the own options was done for each connection.
    let marked = "SELECT COUNT(IS_USED_LOCK(CONCAT('own-', id))) FROM information_schema.processlist WHERE user = 'lock'";
    assert!(number(&server, marked) > 0);
    let wrong: Opts = own(&server).pass(Some("wr0ng")).into();
    let error = open_with(Options::from_opts(wrong)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_options_of_two_hosts() {
    let primary = MariaDb::builder().replicated().start().unwrap();
    let replica = primary.replica().unwrap();
    let of = |server| Opts::from(own(server).pass(None::<String>));
    let options = Options::from_opts(of(&replica)).other_host(of(&primary));
    locks_for(options, &primary.url()).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn own_options_bring_tls() {
    let builder = MariaDb::builder().tls().password(PASSWORD);
    let server = builder.flag("require-secure-transport=ON").start().unwrap();
    let trusted = std::path::PathBuf::from(server.ca());
    let tls = mysql_async::SslOpts::default().with_root_certs(vec![trusted.into()]);
    let url = format!("{}?tls-ca={}", server.url(), server.ca());
    locks_for(Options::from_opts(own(&server).ssl_opts(tls).into()), &url).await;
    let error = open_with(Options::from_opts(own(&server).into()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}
