//! Typed options and configurations of the driver: their locks are those of the URL, and every option takes effect.

use std::time::Duration;

use fencelock_core::Error;
use fencelock_postgres::{Options, Strategy};
use fencelock_testbed::Postgres;
use tokio_postgres::Config;

use crate::shared::{locks_for, open_with, take};

const PASSWORD: &str = "s3cret";

fn server() -> Postgres {
    Postgres::builder().password(PASSWORD).start().unwrap()
}

fn own(server: &Postgres) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(server.port());
    config.user("lock").dbname("lock").password(PASSWORD);
    config
}

/// How many connections have this name.
fn named(server: &Postgres, name: &str) -> String {
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '{name} fencelock-%'"
    );
    server.psql("postgres", &count).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_url_lock_the_same() {
    let server = server();
    let host = format!("127.0.0.1:{}", server.port());
    let options = Options::new([host]).user("lock").password(PASSWORD);
    let options = options
        .database("lock")
        .response_timeout(Duration::from_secs(3));
    let url = server.url();
    let client = locks_for(options.clone(), &url).await;
    assert!(client.promises().shared);
    let advisory = options.clone().strategy(Strategy::Advisory);
    let client = locks_for(advisory, &format!("{url}?strategy=advisory")).await;
    let _held = take(&client, "b").await;
    let locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    assert_ne!(server.psql("lock", locked).unwrap(), "0");
    let error = open_with(options.password("wr0ng")).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_and_settings_of_the_driver_are_used() {
    let server = server();
    let mut config = own(&server);
    config.application_name("bookkeeping");
    let options = Options::from_config(config.clone());
    assert!(!format!("{options:?}").contains(PASSWORD));
    let _client = locks_for(options, &server.url()).await;
    assert_ne!(named(&server, "bookkeeping"), "0");
    config.password("wr0ng");
    let error = open_with(Options::from_config(config)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_configurations_of_two_hosts() {
    let server = server();
    let mut down = own(&server);
    let free = fencelock_testbed::Port::free().unwrap();
    let mut gone = Config::new();
    gone.host("127.0.0.1").port(free.number());
    gone.user("lock").dbname("lock").password(PASSWORD);
    down.application_name("the other");
    let options = Options::from_config(gone).other_host(down);
    let _client = locks_for(options, &server.url()).await;
    assert_ne!(named(&server, "the other"), "0");
}
