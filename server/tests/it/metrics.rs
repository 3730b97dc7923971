//! The content of `/metrics` after real requests.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_server::{Config, Server};
use serde_json::json;

use crate::bound::memory;
use crate::client::{Client, ask, replica, replica_with, until, waiters};

async fn scrape(at: &Server) -> String {
    let scraped = ask(at, "GET", "/metrics", "").await;
    assert_eq!(scraped.status, 200);
    let media = scraped.header("content-type").unwrap();
    assert!(media.starts_with("text/plain; version=0.0.4"), "{media}");
    scraped.text
}

/// The value of the series with this name and these labels. The series may have more labels.
#[track_caller]
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let found = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        let is_it = rest.is_some_and(|rest| rest.starts_with([' ', '{']));
        is_it && labels.iter().all(|label| line.contains(label))
    });
    let values = found.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    values.sum()
}

/// The counts after the requests of [`requests_grants_and_ends_are_counted`], with some of their labels.
const COUNTS: &str = r#"
fencelock_served_grants_total{lock="orders/*",how="at_once",mode="exclusive"} 1
fencelock_served_grants_total{lock="orders/*",how="waited"} 1
fencelock_served_grants_total{lock="other"} 1
fencelock_http_refusals_total{reason="held"} 1
fencelock_http_refusals_total{reason="lost"} 1
fencelock_served_renewals_total{outcome="kept"} 1
fencelock_served_renewals_total{outcome="lost"} 1
fencelock_served_releases_total{outcome="released"} 1
fencelock_served_losses_total 1
fencelock_served_evictions_total{how="release",outcome="done"} 1
fencelock_served_wait_seconds_count{lock="orders/*"} 2
fencelock_served_wait_seconds_bucket{lock="orders/*",le="0.0005"} 1
fencelock_served_hold_seconds_count{lock="orders/*"} 1
fencelock_open_polls 0
fencelock_draining 0
fencelock_audit_lines_dropped_total 0
fencelock_build_info{engine="memory",binding="store"} 1
fencelock_http_requests_total{route="/v1/claims/{id}/renew",method="POST",status="200"} 1
fencelock_http_requests_total{route="/v1/claims/{id}/renew",status="410"} 1
fencelock_http_requests_total{route="other",status="404"} 1
fencelock_http_request_seconds_count{route="/v1/claims/{id}/renew"} 2
fencelock_http_request_seconds_bucket{route="/v1/claims/{id}/renew",le="+Inf"} 2
fencelock_store_calls_total{call="renew",outcome="ok"} 2
fencelock_store_calls_total{call="withdraw",outcome="ok"} 1
fencelock_store_call_seconds_count{call="evict"} 1
"#;

#[tokio::test]
async fn requests_grants_and_ends_are_counted() {
    let mut config = Config::trusting();
    config.metrics = vec!["orders/*".to_owned(), "nightly".to_owned()];
    let (at, client) = (
        replica_with(Arc::new(Memory::new()), config).await,
        Client::new(),
    );
    let (holds, waits) = (client.claim(), client.claim());
    let token = client.take(&at, holds, "orders/1").await;
    client.renew(&at, holds, "orders/1", token).await.is(200);
    client.take(&at, client.claim(), "secret").await;
    let busy = client.put(&at, client.claim(), json!({"name": "orders/1"}));
    busy.await.is_problem(409, "held");
    let wait = async {
        loop {
            let answer = client.poll(&at, waits, "orders/1", 60_000).await;
            if answer.status != 202 {
                return answer;
            }
        }
    };
    let release = async {
        until(&at, "orders/1", "waited for", |lock| waiters(lock) == 1).await;
        let open = scrape(&at).await;
        assert_eq!(value(&open, "fencelock_open_polls", &[]), 1.0);
        client.release(&at, holds, "orders/1").await.is(200);
    };
    let (held, ()) = tokio::join!(wait, release);
    let token = held.number("token");
    let evict = json!({"name": "orders/1", "token": token, "how": "release"});
    client.ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    let lost = client.renew(&at, waits, "orders/1", token).await;
    lost.is_problem(410, "lost");
    ask(&at, "GET", "/nowhere/secret", "").await.is(404);

    let text = scrape(&at).await;
    for line in COUNTS.trim().lines() {
        let (counted, want) = line.rsplit_once(' ').unwrap();
        let (name, labels) = counted.split_once('{').unwrap_or((counted, "}"));
        let labels: Vec<&str> = labels.trim_end_matches('}').split_terminator(',').collect();
        assert_eq!(
            value(&text, name, &labels),
            want.parse::<f64>().unwrap(),
            "{line}\n{text}"
        );
    }
    assert!(!text.contains("secret"), "{text}");
    at.service().refuse_new();
    let text = scrape(&at).await;
    assert_eq!(value(&text, "fencelock_draining", &[]), 1.0);
}

#[tokio::test]
async fn what_is_in_the_store_is_counted_by_pattern() {
    let memory = Memory::new();
    let before = replica(Arc::new(memory.another())).await;
    let client = Client::new();
    for name in ["orders/1", "orders/2", "nightly", "secret"] {
        client.hold(&before, client.claim(), name).await;
    }
    client
        .poll(&before, client.claim(), "orders/1", 0)
        .await
        .is(202);
    let mut config = Config::trusting();
    let patterns = ["orders/2", "orders/*", "nightly"];
    config.metrics = patterns.map(str::to_owned).to_vec();
    let at = replica_with(Arc::new(memory), config).await;
    let read = async {
        loop {
            let text = scrape(&at).await;
            if text.contains("fencelock_store_waiting{lock=\"nightly\"}") {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(10), read).await;
    let text = read.expect("the store is read at the beginning");
    let counted = |name: &str, lock: &str| value(&text, name, &[&format!("lock=\"{lock}\"")]);
    for (lock, holding, waiting) in [
        ("orders/2", 1.0, 0.0),
        ("orders/*", 1.0, 1.0),
        ("nightly", 1.0, 0.0),
    ] {
        assert_eq!(counted("fencelock_store_holding", lock), holding, "{lock}");
        assert_eq!(counted("fencelock_store_waiting", lock), waiting, "{lock}");
    }
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn two_services_in_one_process_count_apart() {
    let (one, other) = crate::client::two().await;
    let client = Client::new();
    client.take(&one, client.claim(), "a").await;
    let grants = "fencelock_served_grants_total";
    assert_eq!(value(&scrape(&one).await, grants, &[]), 1.0);
    assert_eq!(value(&scrape(&other).await, grants, &[]), 0.0);
}

#[tokio::test]
async fn claims_of_a_replica_are_counted_by_state() {
    let ((at, _), client) = (memory().await, Client::new());
    let first = client.claim();
    let put = crate::bound::put(&at, &client, first, json!({"name": "a"}));
    put.await.is(200);
    let waits = json!({"name": "a", "queue": true});
    crate::bound::put(&at, &client, client.claim(), waits)
        .await
        .is(202);
    let text = scrape(&at).await;
    for (state, count) in [("holding", 1.0), ("waiting", 1.0), ("ending", 0.0)] {
        let label = format!("state=\"{state}\"");
        let found = value(&text, "fencelock_bound_claims", &[&label]);
        assert_eq!(found, count, "{state}\n{text}");
    }
}

#[tokio::test]
async fn the_event_loop_is_timed() {
    let at = crate::client::one().await;
    let timed = async {
        while value(
            &scrape(&at).await,
            "fencelock_event_loop_lag_seconds_count",
            &[],
        ) < 2.0
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let timed = tokio::time::timeout(std::time::Duration::from_secs(20), timed).await;
    timed.expect("no tick");
}
