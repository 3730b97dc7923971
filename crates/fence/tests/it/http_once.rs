//! The fence before an HTTP service whose clients repeat requests: an `Idempotency-Key` is handled once.

use std::time::Duration;

use fencelock_fence::http::{Answers, FenceLayer};

use crate::exclusive;
use crate::http_gone::{Service, answer, wait};

const KEY: &str = "Idempotency-Key: \"pay-1\"\r\n";

fn layer() -> FenceLayer {
    FenceLayer::for_lock(exclusive(1).name.as_str()).answer_once(Answers::in_memory(1 << 20))
}

#[tokio::test]
async fn the_second_request_gets_the_first_answer() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(10);
    let first = answer(service.send(33, KEY, "pay").await).await;
    assert!(
        first.starts_with("http/1.1 200 ") && first.ends_with("pay was written"),
        "{first}"
    );
    assert!(!first.contains("idempotent-replayed"), "{first}");
    // From the same holder, with and without quotes; from the next holder; and from the first holder again, which is
    // late now.
    for (token, key) in [(33, "Idempotency-Key: pay-1\r\n"), (34, KEY), (33, KEY)] {
        let again = answer(service.send(token, key, "pay").await).await;
        assert!(
            again.starts_with("http/1.1 200 ") && again.ends_with("pay was written"),
            "{again}"
        );
        assert!(again.contains("idempotent-replayed: true"), "{again}");
    }
    assert_eq!(service.logged(), ["pay begins", "pay writes"]);
    // Another key is another operation. Without a key there is no operation.
    for more in ["Idempotency-Key: pay-2\r\n", "", ""] {
        let other = answer(service.send(34, more, "more").await).await;
        assert!(other.starts_with("http/1.1 200 "), "{other}");
    }
    assert_eq!(service.logged().len(), 8);
}

/// The client disconnected before the answer, so it does not know that the operation was done.
#[tokio::test]
async fn the_operation_of_a_disconnected_client_is_not_done_again() {
    let service = Service::start(layer(), None).await;
    let first = service.send(33, KEY, "pay").await;
    wait(&service.begun).await;
    drop(first);
    let again = service.send(33, KEY, "pay").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    service.go_on.add_permits(2);
    let again = answer(again).await;
    assert!(again.ends_with("pay was written"), "{again}");
    assert_eq!(service.logged(), ["pay begins", "pay writes"]);
}

#[tokio::test]
async fn a_second_request_while_the_first_runs_gets_409() {
    let service = Service::start(layer().wait_at_most(Duration::from_millis(200)), None).await;
    let first = service.send(33, KEY, "pay").await;
    wait(&service.begun).await;
    let again = answer(service.send(33, KEY, "pay").await).await;
    assert!(again.starts_with("http/1.1 409 "), "{again}");
    assert!(again.contains("\r\nretry-after: 1\r\n"), "{again}");
    service.go_on.add_permits(1);
    assert!(answer(first).await.ends_with("pay was written"));
    assert_eq!(service.logged(), ["pay begins", "pay writes"]);
}

/// Nobody knows whether the handler has written, so the operation is not done again.
#[tokio::test]
async fn a_panic_counts_as_an_answer() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(10);
    for _ in 0..2 {
        let told = answer(service.send(33, KEY, "panic").await).await;
        assert!(told.starts_with("http/1.1 500 "), "{told}");
        assert!(told.contains("urn:fencelock:failed"), "{told}");
    }
    assert_eq!(service.logged(), ["panic begins"]);
}

#[tokio::test]
async fn a_key_belongs_to_one_operation() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(10);
    answer(service.send(33, KEY, "pay").await).await;
    let mut other = tokio::net::TcpStream::connect(&service.address)
        .await
        .unwrap();
    let request = format!(
        "POST /ledger HTTP/1.1\r\nHost: ledger\r\nConnection: close\r\nFencelock-Sequencer: {}\r\n{KEY}\
         Content-Length: 0\r\n\r\n",
        exclusive(33)
    );
    tokio::io::AsyncWriteExt::write_all(&mut other, request.as_bytes())
        .await
        .unwrap();
    let other = answer(other).await;
    assert!(other.starts_with("http/1.1 422 "), "{other}");
    assert!(other.contains("put /ledger"), "{other}");
    let long = format!("Idempotency-Key: {}\r\n", "x".repeat(256));
    for bad in ["Idempotency-Key:\r\n", &long, &format!("{KEY}{KEY}")] {
        let told = answer(service.send(33, bad, "pay").await).await;
        assert!(told.starts_with("http/1.1 400 "), "{told}");
    }
    assert_eq!(service.logged(), ["pay begins", "pay writes"]);
}

/// A refusal is not an answer of the service: the operation is done when its holder passes.
#[tokio::test]
async fn a_refused_operation_is_done_later() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(10);
    answer(service.send(34, "", "other").await).await;
    let late = answer(service.send(33, KEY, "pay").await).await;
    assert!(late.starts_with("http/1.1 412 "), "{late}");
    let done = answer(service.send(35, KEY, "pay").await).await;
    assert!(done.starts_with("http/1.1 200 "), "{done}");
    let late = answer(service.send(33, KEY, "pay").await).await;
    assert!(late.starts_with("http/1.1 200 "), "{late}");
    assert_eq!(
        service
            .logged()
            .iter()
            .filter(|what| *what == "pay writes")
            .count(),
        1
    );
}

/// The oldest answers are dropped first. The last one is always kept.
#[tokio::test]
async fn the_size_is_bounded() {
    let layer = FenceLayer::for_lock(exclusive(1).name.as_str()).answer_once(Answers::in_memory(1));
    let service = Service::start(layer, None).await;
    service.go_on.add_permits(10);
    let send = async |key: &str| {
        answer(
            service
                .send(33, &format!("Idempotency-Key: {key}\r\n"), key)
                .await,
        )
        .await
    };
    send("a").await;
    assert!(send("a").await.contains("idempotent-replayed"));
    send("b").await;
    assert!(send("b").await.contains("idempotent-replayed"));
    assert!(!send("a").await.contains("idempotent-replayed"));
}
