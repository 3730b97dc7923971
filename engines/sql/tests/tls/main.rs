//! TLS to MariaDB and PostgreSQL: servers that insist on it, certificates that are not theirs, and a way that hides it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod way;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::engine::Evict;
use fencelock_core::{Client, Error, Guard, StoreUrl};
use fencelock_testbed::{MariaDb, Postgres, Proxy};
use tokio::time::timeout;
use way::Way;

/// Far beyond what anything here takes.
const LIMIT: Duration = Duration::from_secs(30);
/// Of the user `lock`. Nobody else may ever see it.
const PASSWORD: &str = "hunter2";

const MARIADB: [&str; 3] = ["lease", "get-lock", "for-update"];
const POSTGRES: [&str; 3] = ["lease", "for-update", "advisory"];

async fn open(url: &str) -> Result<Client, Error> {
    let url = StoreUrl::parse(url)?;
    match url.scheme.as_str() {
        "mysql" => Client::builder(fencelock_sql::mysql::connect(url).await?).build(),
        _ => Client::builder(Arc::new(fencelock_sql::Postgres::open(url).await?)).build(),
    }
}

async fn opened(url: &str) -> Client {
    open(url)
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// The error of a store that cannot be opened, as one line that is nobody's password.
async fn refused(url: &str) -> (Error, String) {
    let error = match open(url).await {
        Ok(_) => panic!("{url} can be opened"),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(!text.contains(PASSWORD) && !text.contains('\n'), "{text}");
    (error, text)
}

/// That a store cannot be opened because of how it is configured, and what the error says.
async fn misconfigured(url: &str, words: &[&str]) {
    let (error, text) = refused(url).await;
    assert!(matches!(error, Error::Config { .. }), "{url}: {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {word}: {text}");
    }
}

/// That the server lets this user not in, and what the error says.
async fn not_let_in(url: &str, words: &[&str]) {
    let (error, text) = refused(url).await;
    assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {word}: {text}");
    }
}

async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let done = timeout(LIMIT, future).await;
    done.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

async fn take(client: &Client, name: &str) -> Guard {
    soon("a lock", client.lock(name).ttl(Duration::from_secs(20)))
        .await
        .unwrap()
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < LIMIT, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes, waits, hands over, evicts; and all of it again after the connections were cut.
async fn locks(url: &str, cut: &Proxy) {
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

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_that_insists() {
    let builder = MariaDb::builder().tls().password(PASSWORD);
    let server = builder.flag("require-secure-transport=ON").start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = server.url_at(proxy.port(), "lock");
    for strategy in MARIADB {
        let url = format!("{url}?strategy={strategy}&tls-ca={}", server.ca());
        locks(&url, &proxy).await;
        let plain = format!("{}?strategy={strategy}", server.url());
        // On the machine itself nobody asks for TLS unprompted.
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
async fn postgres_that_insists() {
    let builder = Postgres::builder().tls().password(PASSWORD);
    let rule = "hostssl all all 127.0.0.1/32 scram-sha-256";
    let server = builder.rule(rule).start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = server.url_at(proxy.port(), "lock");
    for strategy in POSTGRES {
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
    // Who listens does so with TLS, too, also after that connection was cut.
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
    until("it listens", || !listens().is_empty()).await;
    let before = listens();
    proxy.reset();
    until("it listens anew", || !["", &before].contains(&&*listens())).await;
    held.release().await.unwrap();
    soon("the notification", waits).await.unwrap();
}

/// Each is a server whose certificate is wrong in its own way.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked() {
    let right = MariaDb::builder().tls().password(PASSWORD).start().unwrap();
    let other = MariaDb::builder()
        .tls_for("DNS:db.example")
        .start()
        .unwrap();
    let postgres = Postgres::builder()
        .tls()
        .password(PASSWORD)
        .start()
        .unwrap();
    let named = Postgres::builder()
        .tls_for("DNS:db.example")
        .start()
        .unwrap();
    for (url, ca, named, its_ca) in [
        (right.url(), right.ca(), other.url(), other.ca()),
        (postgres.url(), postgres.ca(), named.url(), named.ca()),
    ] {
        drop(opened(&format!("{url}?tls-ca={ca}")).await);
        let by_name = url.replace("127.0.0.1", "localhost");
        drop(opened(&format!("{by_name}?tls-ca={ca}")).await);
        // Another authority; and none that this machine knows.
        misconfigured(
            &format!("{url}?tls-ca={its_ca}"),
            &["authority", "tls-ca=FILE"],
        )
        .await;
        misconfigured(&format!("{url}?tls=require"), &["tls-ca=FILE"]).await;
        let words = ["is for db.example, and not for 127.0.0.1"];
        misconfigured(&format!("{named}?tls-ca={its_ca}"), &words).await;
        // Whoever only wants not to be overheard does not look.
        drop(opened(&format!("{named}?tls=prefer")).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_their_own_certificates() {
    let server = MariaDb::builder().tls().password(PASSWORD).start().unwrap();
    server
        .sql("ALTER USER 'lock'@'%' REQUIRE SUBJECT '/CN=lock'")
        .unwrap();
    let rule = "hostssl all all 127.0.0.1/32 cert";
    let postgres = Postgres::builder().tls().rule(rule).start().unwrap();
    let stranger = MariaDb::builder().tls().start().unwrap();
    for (url, ca, (cert, key)) in [
        (server.url(), server.ca(), server.certificate()),
        (postgres.url(), postgres.ca(), postgres.certificate()),
    ] {
        let without = format!("{url}?tls-ca={ca}");
        let client = opened(&format!("{without}&tls-cert={cert}&tls-key={key}")).await;
        drop(take(&client, "a").await);
        not_let_in(&without, &["give tls-cert and tls-key"]).await;
        let (other, its_key) = stranger.certificate();
        misconfigured(
            &format!("{without}&tls-cert={other}&tls-key={its_key}"),
            &["does not take the certificate of tls-cert"],
        )
        .await;
        misconfigured(
            &format!("{without}&tls-cert={cert}&tls-key={its_key}"),
            &["tls-cert and tls-key"],
        )
        .await;
    }
}

/// Somebody on the way says that the server has no TLS: nothing of worth is sent to him.
#[tokio::test(flavor = "multi_thread")]
async fn tls_that_is_hidden_on_the_way() {
    let server = MariaDb::builder().tls().password(PASSWORD).start().unwrap();
    let postgres = Postgres::builder()
        .tls()
        .password(PASSWORD)
        .start()
        .unwrap();
    for (url, ca, hide, strategies, sent) in [
        (
            server.url(),
            server.ca(),
            Way::hiding_mysql as fn(u16) -> Way,
            MARIADB,
            0,
        ),
        // The eight bytes that ask for TLS.
        (
            postgres.url(),
            postgres.ca(),
            Way::hiding_postgres,
            POSTGRES,
            8,
        ),
    ] {
        for strategy in strategies {
            let way = hide(port(&url));
            let url = way.url(&url, strategy);
            misconfigured(&format!("{url}&tls-ca={ca}"), &["offers no TLS", "tls=off"]).await;
            let heard = way.heard();
            assert!(!heard.is_empty());
            for heard in heard {
                assert_eq!(heard.len(), sent, "{:?}", String::from_utf8_lossy(&heard));
            }
            // Whom that does not trouble, he hears: he would have heard the others, too.
            drop(opened(&format!("{url}&tls=prefer")).await);
            assert!(way.hears("SELECT"), "{url}");
        }
    }
}

/// Only who connects to whom can be seen on the way, and how much they talk.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_read_on_the_way() {
    let server = MariaDb::builder().tls().password(PASSWORD).start().unwrap();
    let postgres = Postgres::builder()
        .tls()
        .password(PASSWORD)
        .start()
        .unwrap();
    for (url, ca, strategies) in [
        (server.url(), server.ca(), MARIADB),
        (postgres.url(), postgres.ca(), POSTGRES),
    ] {
        for strategy in strategies {
            for (tls, open) in [
                (format!("tls-ca={ca}"), false),
                ("tls=prefer".into(), false),
                ("tls=off".into(), true),
            ] {
                let way = Way::listening(port(&url));
                let url = format!("{}&{tls}", way.url(&url, strategy));
                let client = opened(&url).await;
                take(&client, "a-name").await.release().await.unwrap();
                client.close().await.unwrap();
                for word in ["SELECT", "lock", "fencelock"] {
                    assert_eq!(way.hears(word), open, "{url}: {word}");
                }
                assert!(
                    open || !way.hears("a-name") && !way.hears(PASSWORD),
                    "{url}"
                );
            }
        }
    }
}

/// Servers without any TLS, which is how the defaults of this machine meet them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_none() {
    let server = MariaDb::builder().password(PASSWORD).start().unwrap();
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    for url in [server.url(), postgres.url()] {
        for way in ["", "?tls=off", "?tls=prefer"] {
            drop(opened(&format!("{url}{way}")).await);
        }
    }
    let ca = MariaDb::builder().tls().start().unwrap();
    for url in [server.url(), postgres.url()] {
        let url = format!("{url}?tls=require&tls-ca={}", ca.ca());
        misconfigured(
            &url,
            &["offers no TLS", "no password and no statement was sent"],
        )
        .await;
    }
}

/// 0.0.0.0 leads to this machine, too, but says nothing of it: it is one like any other.
#[tokio::test(flavor = "multi_thread")]
async fn another_machine() {
    let server = MariaDb::builder().tls().password(PASSWORD).start().unwrap();
    let postgres = Postgres::builder()
        .tls()
        .password(PASSWORD)
        .start()
        .unwrap();
    for (url, ca) in [(server.url(), server.ca()), (postgres.url(), postgres.ca())] {
        let url = url.replace("127.0.0.1", "0.0.0.0");
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
    }
    let client = opened(&server.url()).await;
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
