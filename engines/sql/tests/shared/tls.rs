//! TLS to a database server: servers that require it, wrong certificates, and proxies that hide it.

use std::time::Duration;

use fencelock_core::engine::Evict;
use fencelock_core::{Client, Error, Guard};
use fencelock_testbed::Proxy;

use super::open;
pub(crate) use super::soon;
pub(crate) use super::wire::{Meddle, Recorder, Wire};

/// The password of the user `lock`. It must never show.
pub(crate) const PASSWORD: &str = "hunter2";

pub(crate) async fn opened(url: &str) -> Client {
    open(url)
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// The error of a store that cannot be opened: one line, without the password.
async fn refused(url: &str) -> (Error, String) {
    let error = match open(url).await {
        Ok(_) => panic!("{url} can be opened"),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(!text.contains(PASSWORD) && !text.contains('\n'), "{text}");
    (error, text)
}

/// A store that cannot be opened because of its configuration. The error has these words.
pub(crate) async fn misconfigured(url: &str, words: &[&str]) {
    let (error, text) = refused(url).await;
    assert!(matches!(error, Error::Config { .. }), "{url}: {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {word}: {text}");
    }
}

/// The server refuses this user. The error has these words.
pub(crate) async fn not_let_in(url: &str, words: &[&str]) {
    let (error, text) = refused(url).await;
    assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {word}: {text}");
    }
}

pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    soon("a lock", client.lock(name).ttl(Duration::from_secs(20)))
        .await
        .unwrap()
}

/// Takes, waits, hands over and evicts, and repeats all of this after the connections were cut.
pub(crate) async fn locks(url: &str, cut: &Proxy) {
    let (one, two) = (opened(url).await, opened(url).await);
    for round in ["first", "after a cut"] {
        let held = take(&one, "a").await;
        assert!(
            matches!(two.try_lock("a").await, Err(Error::Held { .. })),
            "{url} {round}"
        );
        let waits = tokio::spawn({
            let two = two.clone();
            async move { take(&two, "a").await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waits.is_finished(), "{url} {round}: it is held twice");
        let before = held.token();
        held.release().await.unwrap();
        let handed = soon("what was handed over", waits).await.unwrap();
        assert!(handed.token() > before, "{url} {round}");
        let evicted = one
            .evict("a", handed.token(), Evict::Release)
            .await
            .unwrap();
        assert!(evicted, "{url} {round}");
        soon("the loss", handed.lost()).await;
        drop(handed);
        cut.reset();
    }
    one.close().await.unwrap();
    two.close().await.unwrap();
}

/// A server with the right certificate, and one whose certificate is for db.example.
pub(crate) async fn certificates_are_checked(right: (&str, &str), named: (&str, &str)) {
    let ((url, ca), (named, its_ca)) = (right, named);
    drop(opened(&format!("{url}?tls-ca={ca}")).await);
    let by_name = url.replace("127.0.0.1", "localhost");
    drop(opened(&format!("{by_name}?tls-ca={ca}")).await);
    // Another authority, and the authorities of this machine.
    misconfigured(
        &format!("{url}?tls-ca={its_ca}"),
        &["authority", "tls-ca=FILE"],
    )
    .await;
    misconfigured(&format!("{url}?tls=require"), &["tls-ca=FILE"]).await;
    let words = ["is for db.example, and not for 127.0.0.1"];
    misconfigured(&format!("{named}?tls-ca={its_ca}"), &words).await;
    // A client that only prefers TLS does not check the certificate.
    drop(opened(&format!("{named}?tls=prefer")).await);
}

/// A server that requires a client certificate. The certificate and its key, and those of a client of another server.
pub(crate) async fn clients_show_their_own_certificates(
    (url, ca): (&str, &str),
    (cert, key): (String, String),
    (other, its_key): (String, String),
) {
    let without = format!("{url}?tls-ca={ca}");
    let client = opened(&format!("{without}&tls-cert={cert}&tls-key={key}")).await;
    drop(take(&client, "a").await);
    not_let_in(&without, &["give tls-cert and tls-key"]).await;
    misconfigured(
        &format!("{without}&tls-cert={other}&tls-key={its_key}"),
        &["does not accept the certificate of tls-cert"],
    )
    .await;
    misconfigured(
        &format!("{without}&tls-cert={cert}&tls-key={its_key}"),
        &["tls-cert and tls-key"],
    )
    .await;
}

/// A proxy says that the server has no TLS. The client sends it only `sent` bytes, none of them secret.
pub(crate) async fn tls_that_is_denied_on_the_way(
    (url, ca): (&str, &str),
    strategies: &[&str],
    hide: Meddle,
    sent: usize,
) {
    for strategy in strategies {
        let wire = Wire::to(port(url), hide);
        let url = wire.url(url, strategy);
        misconfigured(&format!("{url}&tls-ca={ca}"), &["offers no TLS", "tls=off"]).await;
        let sent_by = wire.sent();
        assert!(!sent_by.is_empty());
        for bytes in sent_by {
            assert_eq!(bytes.len(), sent, "{:?}", String::from_utf8_lossy(&bytes));
        }
        // A client that only prefers TLS goes on without it, which shows that the proxy would also have recorded the data of
        // the other clients.
        drop(opened(&format!("{url}&tls=prefer")).await);
        assert!(wire.has_sent("SELECT"), "{url}");
    }
}

/// A proxy can read nothing of an encrypted connection.
pub(crate) async fn nothing_can_be_read_on_the_way((url, ca): (&str, &str), strategies: &[&str]) {
    for strategy in strategies {
        for (tls, open) in [
            (format!("tls-ca={ca}"), false),
            ("tls=prefer".into(), false),
            ("tls=off".into(), true),
        ] {
            let wire = Wire::listening(port(url));
            let url = format!("{}&{tls}", wire.url(url, strategy));
            let client = opened(&url).await;
            take(&client, "a-name").await.release().await.unwrap();
            client.close().await.unwrap();
            for word in ["SELECT", "lock", "fencelock"] {
                assert_eq!(wire.has_sent(word), open, "{url}: {word}");
            }
            assert!(
                open || !wire.has_sent("a-name") && !wire.has_sent(PASSWORD),
                "{url}"
            );
        }
    }
}

/// A server without TLS, which is allowed on this machine unless the URL asks for TLS.
pub(crate) async fn a_server_without_tls(url: &str, ca: &str) {
    for way in ["", "?tls=off", "?tls=prefer"] {
        drop(opened(&format!("{url}{way}")).await);
    }
    misconfigured(
        &format!("{url}?tls=require&tls-ca={ca}"),
        &["offers no TLS", "no password and no statement was sent"],
    )
    .await;
}

/// 0.0.0.0 leads to this machine, but counts as another one.
pub(crate) async fn tls_is_required_to_another_machine((local, ca): (&str, &str)) {
    let url = local.replace("127.0.0.1", "0.0.0.0");
    misconfigured(&url, &["tls-ca=FILE"]).await;
    let words = ["is for localhost, ", "and not for 0.0.0.0"];
    misconfigured(&format!("{url}?tls-ca={ca}"), &words).await;
    for (tls, said) in [
        ("off", "is not encrypted"),
        ("prefer", "checks no certificate"),
    ] {
        let client = opened(&format!("{url}?tls={tls}")).await;
        let findings = client.diagnose().await.unwrap();
        let found = findings.iter().find(|finding| finding.what.contains(said));
        let found = found.unwrap_or_else(|| panic!("{url} {tls}: {findings:?}"));
        assert!(
            found.what.starts_with("0.0.0.0 is another machine"),
            "{found:?}"
        );
        assert!(found.change.contains("tls=require"), "{found:?}");
    }
    let client = opened(local).await;
    let findings = client.diagnose().await.unwrap();
    assert!(
        !findings
            .iter()
            .any(|finding| finding.what.contains("another machine"))
    );
}

fn port(url: &str) -> u16 {
    let (_, rest) = url.rsplit_once(':').unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}
