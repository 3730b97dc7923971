//! TLS to PostgreSQL.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::shared::tls::{
    self as shared, PASSWORD, Recorder, locks, not_let_in, opened, soon, take,
};
use fencelock_testbed::{Postgres, Proxy};

use crate::until;

const STRATEGIES: [&str; 2] = ["lease", "advisory"];

fn server() -> Postgres {
    let builder = Postgres::builder().tls().password(PASSWORD);
    builder.start().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_insists() {
    let builder = Postgres::builder().tls().password(PASSWORD);
    let rule = "hostssl all all 127.0.0.1/32 scram-sha-256";
    let server = builder.rule(rule).start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = server.url_at(proxy.port(), "lock");
    for strategy in STRATEGIES {
        let url = format!(
            "{url}?strategy={strategy}&sslmode=verify-full&sslrootcert={}",
            server.ca()
        );
        locks(&url, &proxy).await;
        let plain = format!("{}?strategy={strategy}", server.url());
        not_let_in(&plain, &["no encryption", "tls=require"]).await;
        not_let_in(&format!("{plain}&sslmode=disable"), &["tls=require"]).await;
        drop(opened(&format!("{plain}&tls=prefer")).await);
    }
    // The listener also uses TLS, even after its connection was cut.
    let client = opened(&format!("{url}?tls-ca={}", server.ca())).await;
    let listens = || {
        let ask = "SELECT min(pid) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE ssl AND query LIKE 'LISTEN%'";
        server.psql("postgres", ask).unwrap()
    };
    let held = take(&client, "a").await;
    let waits = tokio::spawn({
        let client = opened(&format!("{url}?tls-ca={}", server.ca())).await;
        async move { (take(&client, "a").await.token(), client) }
    });
    until("it listens", async || !listens().is_empty()).await;
    let before = listens();
    proxy.reset();
    until("it listens anew", async || {
        !["", &before].contains(&&*listens())
    })
    .await;
    held.release().await.unwrap();
    soon("the notification", waits).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked() {
    let right = server();
    let named = Postgres::builder().tls_for("DNS:db.example");
    let named = named.start().unwrap();
    shared::certificates_are_checked((&right.url(), &right.ca()), (&named.url(), &named.ca()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_their_own_certificates() {
    let rule = "hostssl all all 127.0.0.1/32 cert";
    let server = Postgres::builder().tls().rule(rule).start().unwrap();
    let stranger = Postgres::builder().tls().start().unwrap();
    shared::clients_show_their_own_certificates(
        (&server.url(), &server.ca()),
        server.certificate(),
        stranger.certificate(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_that_is_hidden_on_the_way() {
    let server = server();
    let at = (&*server.url(), &*server.ca());
    shared::tls_that_is_hidden_on_the_way(at, &STRATEGIES, hide, ASK.len()).await;
}

/// The client's request for TLS.
const ASK: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Answers the client that there is no TLS.
fn hide(client: &mut TcpStream, _: &mut TcpStream, record: &Recorder) -> std::io::Result<()> {
    let mut asked = [0; ASK.len()];
    client.read_exact(&mut asked)?;
    record(&asked);
    assert_eq!(asked, ASK, "the client does not ask for TLS");
    client.write_all(b"N")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_read_on_the_way() {
    let server = server();
    shared::nothing_can_be_read_on_the_way((&server.url(), &server.ca()), &STRATEGIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_none() {
    let server = Postgres::builder().password(PASSWORD).start().unwrap();
    let other = Postgres::builder().tls().start().unwrap();
    shared::a_server_that_has_none(&server.url(), &other.ca()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_machine() {
    let server = server();
    shared::another_machine((&server.url(), &server.ca())).await;
}
