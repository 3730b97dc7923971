//! TLS to MariaDB.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::shared::tls::{self as shared, PASSWORD, Recorder, locks, not_let_in, opened};
use fencelock_testbed::{MariaDb, Proxy};

const STRATEGIES: [&str; 3] = ["lease", "get-lock", "for-update"];

fn server() -> MariaDb {
    MariaDb::builder().tls().password(PASSWORD).start().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_tls() {
    let builder = MariaDb::builder().tls().password(PASSWORD);
    let server = builder.flag("require-secure-transport=ON").start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = server.url_at(proxy.port(), "lock");
    for strategy in STRATEGIES {
        let url = format!("{url}?strategy={strategy}&tls-ca={}", server.ca());
        locks(&url, &proxy).await;
        let plain = format!("{}?strategy={strategy}", server.url());
        // On this machine TLS is off by default.
        let words = ["check user and password", "tls=require"];
        not_let_in(&plain, &words).await;
        not_let_in(&format!("{plain}&tls=off"), &words).await;
        drop(opened(&format!("{plain}&tls=prefer")).await);
    }
    server
        .sql("SET GLOBAL require_secure_transport = OFF")
        .unwrap();
    server.sql("ALTER USER 'lock'@'%' REQUIRE SSL").unwrap();
    not_let_in(&server.url(), &["check user and password", "tls=require"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked() {
    let right = server();
    let named = MariaDb::builder().tls_for("DNS:db.example");
    let named = named.start().unwrap();
    shared::certificates_are_checked((&right.url(), &right.ca()), (&named.url(), &named.ca()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_their_own_certificates() {
    let server = server();
    server
        .sql("ALTER USER 'lock'@'%' REQUIRE SUBJECT '/CN=lock'")
        .unwrap();
    let stranger = MariaDb::builder().tls().start().unwrap();
    shared::clients_show_their_own_certificates(
        (&server.url(), &server.ca()),
        server.certificate(),
        stranger.certificate(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_that_is_denied_on_the_way() {
    let server = server();
    let at = (&*server.url(), &*server.ca());
    shared::tls_that_is_denied_on_the_way(at, &STRATEGIES, hide, 0).await;
}

/// The bit in the second byte of the capabilities in the greeting.
const OFFER: u8 = 0x08;

/// Removes the offer of TLS from the greeting.
fn hide(client: &mut TcpStream, server: &mut TcpStream, _: &Recorder) -> std::io::Result<()> {
    let mut head = [0; 4];
    server.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut greeting = vec![0; length as usize];
    server.read_exact(&mut greeting)?;
    // The protocol's version, the server's up to a zero byte, the connection's number, a challenge and a zero byte.
    let version = greeting.iter().skip(1).position(|byte| *byte == 0).unwrap();
    let offers = &mut greeting[version + 2 + 4 + 9 + 1];
    assert_ne!(*offers & OFFER, 0, "the server itself offers no TLS");
    *offers &= !OFFER;
    client.write_all(&head)?;
    client.write_all(&greeting)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_read_on_the_way() {
    let server = server();
    shared::nothing_can_be_read_on_the_way((&server.url(), &server.ca()), &STRATEGIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls() {
    let server = MariaDb::builder().password(PASSWORD).start().unwrap();
    let other = MariaDb::builder().tls().start().unwrap();
    shared::a_server_without_tls(&server.url(), &other.ca()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_required_to_another_machine() {
    let server = server();
    shared::tls_is_required_to_another_machine((&server.url(), &server.ca())).await;
}
