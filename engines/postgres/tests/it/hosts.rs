//! Several hosts, inspection, and stores that cannot be opened.

use super::shared::hosts::{
    a_silent_host_is_passed_over, a_user_is_refused, another_server_is_explained,
    inspection_creates_nothing, two_writers_are_refused,
};
use super::shared::inspect;
use super::*;

const TABLES: &str = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencelock%'";

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_take_writes_are_refused() {
    let (one, two) = (Postgres::start().unwrap(), Postgres::start().unwrap());
    let ports = [one.port(), two.port()];
    let both =
        |[one, two]: [u16; 2]| format!("postgres://lock@127.0.0.1:{one},127.0.0.1:{two}/lock");
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", both(ports));
        two_writers_are_refused(&url, ports, "take writes").await;
    }
    assert_eq!(one.psql("lock", TABLES).unwrap(), "0");
    // Two names of one server count as one server.
    let url = format!(
        "postgres://lock@127.0.0.1:{0},localhost:{0}/lock",
        one.port()
    );
    token_of(&open(&url).await.unwrap(), "a").await;
    two.pause().unwrap();
    let client = a_silent_host_is_passed_over(&both([two.port(), one.port()])).await;
    // When the host is back, the client notices it with its next connection.
    two.resume().unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%'";
    until("it is noticed", async || {
        one.psql("lock", end).unwrap();
        matches!(client.try_lock("b").await, Err(Error::Config { .. }))
    })
    .await;
}

/// Inspection creates nothing and writes nothing, so it also works where no lock can be taken.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_needs_no_right_to_write() {
    let server = Postgres::start().unwrap();
    server.psql("lock", "CREATE ROLE stranger LOGIN").unwrap();
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let stranger = url.replacen("//lock@", "//stranger@", 1);
        inspection_creates_nothing(&url, &stranger, "fencelock schema postgres").await;
    }
    assert_eq!(server.psql("lock", TABLES).unwrap(), "0");

    let replica = server.replica().unwrap();
    let held = open(&server.url()).await.unwrap().lock("a").await.unwrap();
    // A user with SELECT at the primary, and any user at a replica.
    let reader = "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader";
    server.psql("lock", reader).unwrap();
    for url in [
        format!("postgres://reader@127.0.0.1:{}/lock", server.port()),
        replica.url(),
    ] {
        let client = inspect(&url).await.unwrap();
        until("the hold shows", async || {
            client.look("a").await.unwrap().token() == Some(held.token())
        })
        .await;
        assert_eq!(client.list("").await.unwrap().len(), 1);
        let findings = format!("{:?}", client.diagnose().await.unwrap());
        assert!(
            findings.contains("INSERT") || findings.contains("recovery"),
            "{findings}"
        );
        client.close().await.unwrap();
    }
    let client = inspect(&format!("{}?strategy=advisory", replica.url())).await;
    let client = client.unwrap();
    assert!(client.look("a").await.unwrap().holders.is_empty());
    client.close().await.unwrap();
    // A lock cannot be taken there; the error names the host.
    let error = open(&replica.url()).await.unwrap_err().to_string();
    let asked = format!("connecting to 127.0.0.1:{}", replica.port());
    assert!(error.contains(&asked), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_open_names_the_remedy() {
    let server = Postgres::builder().password("secret").start().unwrap();
    let at = |who: &str, database: &str| {
        format!("postgres://{who}@127.0.0.1:{}/{database}", server.port())
    };
    for (user, word) in [
        ("lock", "password-file"),
        ("lock:wrong", "check user and password"),
        ("nobody:wrong", "check user and password"),
    ] {
        a_user_is_refused(&at(user, "lock"), word).await;
    }
    let asked = format!("connecting to 127.0.0.1:{}", server.port());
    a_user_is_refused(&at("lock:wrong", "lock"), &asked).await;
    let error = open(&at("lock:secret", "nowhere")).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("create it"), "{error}");
    // Another kind of server: one that waits for more bytes, and one that sends first.
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = format!("postgres://lock@127.0.0.1:{}/lock", redis.port());
    another_server_is_explained(&url, "is it a PostgreSQL server?").await;
    let asked = format!("connecting to 127.0.0.1:{}", redis.port());
    another_server_is_explained(&url, &asked).await;
    let maria = fencelock_testbed::MariaDb::start().unwrap();
    let url = format!("postgres://lock@127.0.0.1:{}/lock", maria.port());
    another_server_is_explained(&url, "is not a PostgreSQL server").await;
}
