//! Several hosts, inspection, and stores that cannot be opened.

use std::time::{Duration, Instant};

use fencelock_core::{Client, Error};

use super::{inspect, open, token_of};

/// Two servers that both take writes would each grant the same lock.
pub(crate) async fn two_writers_are_refused(url: &str, ports: [u16; 2], word: &str) {
    let error = open(url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(word), "{text}");
    for port in ports {
        assert!(text.contains(&port.to_string()), "{text}");
    }
}

/// One of the hosts is silent.
pub(crate) async fn a_silent_host_is_passed_over(url: &str) -> Client {
    let begin = Instant::now();
    let client = open(url).await.unwrap();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    token_of(&client, "a").await;
    client
}

/// There are no tables. The user of `url` may create them, but the stranger may not.
pub(crate) async fn inspection_creates_nothing(url: &str, stranger: &str, schema: &str) {
    let client = inspect(url).await.unwrap();
    assert!(client.look("a").await.unwrap().holders.is_empty());
    assert!(client.list("").await.unwrap().is_empty());
    // A user who may create the tables does so with its first lock, so this is no finding.
    let findings = format!("{:?}", client.diagnose().await.unwrap());
    assert!(!findings.contains("fencelock schema"), "{findings}");
    assert!(client.try_lock("a").await.is_err());
    client.close().await.unwrap();
    let client = inspect(stranger).await.unwrap();
    let findings = format!("{:?}", client.diagnose().await.unwrap());
    assert!(findings.contains(schema), "{findings}");
    client.close().await.unwrap();
}

/// The server refuses this user.
pub(crate) async fn a_user_is_refused(url: &str, word: &str) {
    let error = open(url).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
    let text = error.to_string();
    assert!(text.contains(word) && !text.contains("secret"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

/// Another kind of server answers.
pub(crate) async fn another_server_is_explained(url: &str, word: &str) {
    let text = open(url).await.unwrap_err().to_string();
    assert!(text.contains(word), "{text}");
}
