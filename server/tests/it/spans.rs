//! The spans of `tracing`: their names, their parents, and that they contain no name of a lock and no key.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_default;
use tracing::{Event, Metadata, Subscriber};

use crate::client::{Client, one, raw, request};

#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    within: Option<u64>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// Keeps all spans of fencelock. The id of a span is its position in the list, from 1.
#[derive(Clone, Default)]
struct Spans {
    all: Arc<Mutex<Vec<Seen>>>,
    entered: Arc<Mutex<Vec<u64>>>,
}

impl Spans {
    fn named(&self, name: &str) -> Vec<Seen> {
        let all = self.all.lock().unwrap();
        all.iter()
            .filter(|seen| seen.name == name)
            .cloned()
            .collect()
    }

    /// The name of this span's parent.
    fn around(&self, seen: &Seen) -> Option<&'static str> {
        let all = self.all.lock().unwrap();
        seen.within.map(|id| all[id as usize - 1].name)
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "fencelock::spans"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut seen = Seen {
            name: attributes.metadata().name(),
            within: self.entered.lock().unwrap().last().copied(),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        let mut all = self.all.lock().unwrap();
        all.push(seen);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.all.lock().unwrap()[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        panic!("an event with the target of spans: {event:?}");
    }

    fn enter(&self, id: &Id) {
        self.entered.lock().unwrap().push(id.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.entered.lock().unwrap().pop();
    }
}

#[tokio::test]
async fn a_request_has_a_span_with_its_trace_and_each_call_of_the_store_one_in_it() {
    let spans = Spans::default();
    let _installed = set_default(spans.clone());
    let (at, client) = (one().await, Client::new());
    // Another test may be the first to use a span at this moment. Then `tracing` does not ask this subscriber.
    let begun = std::time::Instant::now();
    let all = ["http", "place", "renew", "withdraw"].map(|name| format!("fencelock.{name}"));
    while all.iter().any(|name| spans.named(name).is_empty()) {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", spans.all);
        tracing::callsite::rebuild_interest_cache();
        let id = client.claim();
        let token = client.take(&at, id, "tried").await;
        client.renew(&at, id, "tried", token).await.is(200);
        client.release(&at, id, "tried").await.is(200);
    }
    spans.all.lock().unwrap().clear();

    let (id, trace, parent) = (
        client.claim(),
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "00f067aa0ba902b7",
    );
    let traceparent = format!("00-{trace}-{parent}-01");
    let headers = [
        ("Fencelock-Key", client.key.secret()),
        ("traceparent", traceparent.as_str()),
    ];
    let put = request(
        "PUT",
        &format!("/v1/claims/{id}"),
        &headers,
        r#"{"name":"secret"}"#,
    );
    let token = raw(at.address(), &put).await.number("token");
    client.renew(&at, id, "secret", token).await.is(200);
    client.release(&at, id, "secret").await.is(200);

    let http = spans.named("fencelock.http");
    let field = |seen: &Seen, name: &str| seen.fields.get(name).cloned().unwrap_or_default();
    assert_eq!(field(&http[0], "trace_id"), trace);
    assert_eq!(field(&http[0], "parent_id"), parent);
    assert_eq!(field(&http[1], "trace_id"), "");
    let told: Vec<_> = ["method", "route", "status"]
        .iter()
        .map(|name| field(&http[1], name))
        .collect();
    assert_eq!(told, ["POST", "/v1/claims/{id}/renew", "200"]);
    for (name, within, with_token) in [
        ("fencelock.place", Some("fencelock.http"), true),
        ("fencelock.renew", None, true),
        ("fencelock.withdraw", Some("fencelock.http"), false),
    ] {
        let all = spans.named(name);
        assert_eq!(all.len(), 1, "{name}: {all:?}");
        assert_eq!(field(&all[0], "claim"), id.to_string(), "{name}");
        let told = field(&all[0], "token");
        assert_eq!(told == token.to_string(), with_token, "{name}: {told}");
        if within.is_some() {
            assert_eq!(spans.around(&all[0]), within, "{name}");
        }
    }
    let all = format!("{:?}", spans.all.lock().unwrap());
    for secret in ["secret", client.key.secret()] {
        assert!(!all.contains(secret), "{all}");
    }
}
