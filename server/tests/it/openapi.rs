//! The OpenAPI document describes what the service does.

use std::collections::BTreeSet;

use fencelock_server::Server;
use serde_json::{Value, json};

use crate::client::{Answer, Client, ask, one, raw, request};

async fn document(at: &Server) -> Value {
    ask(at, "GET", "/v1/openapi.json", "").await.is(200)
}

/// Pages for people, which are no part of the API.
const PAGES: [&str; 2] = ["/docs", "/docs/page.css"];

#[tokio::test]
async fn every_route_is_in_the_document_and_no_other() {
    let at = one().await;
    let document = document(&at).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut told = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            told.insert(format!("{method} {path}"));
        }
    }
    let router = include_str!("../../src/router.rs");
    let routes = router.split(".route(\"").skip(1).filter_map(|text| {
        let (path, rest) = text.split_once("\", ")?;
        let (method, _) = rest.split_once('(')?;
        (!PAGES.contains(&path)).then(|| format!("{method} {path}"))
    });
    assert_eq!(told, routes.collect());
    for route in told {
        let (method, path) = route.split_once(' ').unwrap();
        let path = path.replace("{id}", &Client::new().claim().to_string());
        // A stream would not end.
        let answer = ask(&at, &method.to_uppercase(), &path, "").await;
        assert!(![404, 405].contains(&answer.status), "{route}: {answer:?}");
    }
}

/// The descriptions are those of Rust types, whose links lead nowhere for readers of the document.
#[tokio::test]
async fn no_description_has_a_link_of_rust() {
    let text = document(&one().await).await.to_string();
    assert!(text.contains("Up to `MOST_IN_BATCH` requests"), "{text}");
    for link in ["crate::", "[`", "`]"] {
        assert!(!text.contains(link), "{link}");
    }
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let at = one().await;
    let document = document(&at).await;
    let text = document.to_string();
    let references = text.split("\"$ref\":\"").skip(1);
    let mut count = 0;
    for reference in references {
        let path = reference.split('"').next().unwrap();
        let found = document.pointer(path.trim_start_matches('#'));
        assert!(found.is_some(), "{path}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}

#[tokio::test]
async fn answers_about_claims_are_as_documented() {
    let (at, client, stranger) = (one().await, Client::new(), Client::new());
    let document = document(&at).await;
    let fits = |method: &str, path: &str, answer: &Answer| fits(&document, method, path, answer);
    let (id, waits) = (client.claim(), client.claim());
    let put = async |client: &Client, id, body| {
        fits("put", "/v1/claims/{id}", &client.put(&at, id, body).await);
    };

    let body = json!({"name": "a", "owner": "web1", "label": "nightly"});
    let taken = client.put(&at, id, body).await;
    fits("put", "/v1/claims/{id}", &taken);
    let token = taken.number("token");
    put(&client, waits, json!({"name": "a", "wait_ms": 0})).await;
    put(&client, client.claim(), json!({"name": "a"})).await;
    put(&client, client.claim(), json!({"nam": "a"})).await;
    put(&stranger, id, json!({"name": "a"})).await;

    let renew = "/v1/claims/{id}/renew";
    fits("post", renew, &client.renew(&at, id, "a", token).await);
    let unknown = client.claim();
    fits("post", renew, &client.renew(&at, unknown, "a", token).await);
    let many = json!({"claims": [
        {"claim": id.to_string(), "name": "a", "token": token},
        {"claim": client.claim().to_string(), "name": "a", "token": token},
    ]});
    let renewed = client.ask(&at, "POST", "/v1/renewals", &many).await;
    fits("post", "/v1/renewals", &renewed);

    let (free, queued) = (client.claim().to_string(), client.claim().to_string());
    let batch = json!({"claims": [
        {"claim": free, "take": {"name": "free"}},
        {"claim": queued, "take": {"name": "a", "queue": true}},
        {"claim": client.claim().to_string(), "take": {"name": "a"}},
        {"claim": client.claim().to_string(), "release": {"name": "a"}},
    ]});
    let answers = client.ask(&at, "POST", "/v1/batch", &batch).await;
    assert_eq!(answers.lines().len(), 4);
    fits("post", "/v1/batch", &answers);
    let neither = json!({"claims": [{"claim": free}]});
    let refused = client.ask(&at, "POST", "/v1/batch", &neither).await;
    fits("post", "/v1/batch", &refused);

    let release = "/v1/claims/{id}/release";
    fits("post", release, &client.release(&at, waits, "a").await);
    fits("post", release, &client.release(&at, id, "a").await);
}

#[tokio::test]
async fn answers_about_locks_are_as_documented() {
    let at = one().await;
    let document = document(&at).await;
    let asked = async |method: &str, path: &str, body: &str| {
        let answer = ask(&at, method, path, body).await;
        let route = path.split('?').next().unwrap();
        fits(&document, &method.to_lowercase(), route, &answer);
        answer
    };

    let taken = asked("POST", "/v1/claims", r#"{"name":"b","owner":"web2"}"#).await;
    asked("POST", "/v1/claims", r#"{"name":"b"}"#).await;
    asked("POST", "/v1/claims", "[]").await;
    asked("GET", "/v1/lock?name=b", "").await;
    asked("GET", "/v1/lock", "").await;
    asked("GET", "/v1/locks?limit=1", "").await;
    asked("GET", "/v1/locks?limit=0", "").await;
    let check = json!({"sequencer": taken.get("sequencer")}).to_string();
    asked("POST", "/v1/check", &check).await;
    asked("POST", "/v1/check", r#"{"sequencer":"x"}"#).await;
    asked("POST", "/v1/attest", r#"{"name":"b","owner":"web2"}"#).await;
    let evict = json!({"name": "b", "token": taken.number("token"), "how": "release"}).to_string();
    asked("POST", "/v1/evict", &evict).await;
    for path in ["/v1/store", "/v1/store/findings", "/healthz", "/readyz"] {
        asked("GET", path, "").await;
    }
    asked("GET", "/metrics", "").await;

    let elsewhere = [("Origin", "https://elsewhere.example")];
    let foreign = request("GET", "/v1/store", &elsewhere, "");
    let answer = raw(at.address(), &foreign).await;
    fits(&document, "get", "/v1/store", &answer);
}

#[tokio::test]
async fn the_page_shows_every_route_and_loads_nothing_foreign() {
    let at = one().await;
    let document = document(&at).await;
    let page = ask(&at, "GET", "/docs", "").await;
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.text.contains(&format!("{path}</code>")), "{path}");
    }
    assert!(!page.text.contains("<script") && !page.text.contains("://"));
    for link in page.text.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert!(page.text.contains(&format!("id=\"{id}\"")), "{id}");
    }
    assert_eq!(ask(&at, "GET", "/docs/page.css", "").await.status, 200);
}

/// Panics unless the document has this answer for this route.
#[track_caller]
fn fits(document: &Value, method: &str, path: &str, answer: &Answer) {
    let told = &document["paths"][path][method]["responses"][answer.status.to_string()];
    assert!(
        told.is_object(),
        "{method} {path}: not documented: {answer:?}"
    );
    let media = answer.header("content-type").unwrap_or_default();
    let media = media.split(';').next().unwrap();
    let content = &told["content"][media];
    assert!(content.is_object(), "{method} {path}: {media}: {answer:?}");
    if media == "application/x-ndjson" {
        for line in answer.lines() {
            let wrong = wrong(document, &content["schema"], &line, "line");
            assert_eq!(wrong, None, "{method} {path}: {answer:?}");
        }
    } else if media.ends_with("json") {
        let wrong = wrong(document, &content["schema"], &answer.body(), "body");
        assert_eq!(wrong, None, "{method} {path}: {answer:?}");
    }
    if media == "application/problem+json" {
        let body = answer.body();
        let kind = body["type"].as_str().unwrap().rsplit(':').next().unwrap();
        let description = told["description"].as_str().unwrap();
        assert!(
            description.contains(&format!("`{kind}`")),
            "{method} {path}: {kind}"
        );
    }
}

/// How a value differs from a schema.
fn wrong(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(path) = schema["$ref"].as_str() {
        let found = document.pointer(path.trim_start_matches('#')).unwrap();
        return wrong(document, found, value, at);
    }
    if let Some(all) = schema["allOf"].as_array() {
        return all
            .iter()
            .find_map(|schema| wrong(document, schema, value, at));
    }
    if let Some(one) = schema["oneOf"].as_array() {
        let fit = one
            .iter()
            .filter(|schema| wrong(document, schema, value, at).is_none());
        return (fit.count() != 1).then(|| format!("{at}: {value} fits not one of {one:?}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Some(format!("{at}: {value} is none of {words:?}"));
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    if !kinds.is_empty() && !kinds.iter().any(is) {
        return Some(format!("{at}: {value} is no {kinds:?}"));
    }
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if value.is_object() && value.get(name).is_none() {
            return Some(format!("{at}: no {name}"));
        }
    }
    let members = value.as_object().into_iter().flatten();
    for (name, member) in members {
        let known = &schema["properties"][name];
        if known.is_null() && schema["properties"].is_object() {
            return Some(format!("{at}: {name} is not documented"));
        }
        if let Some(found) = wrong(document, known, member, &format!("{at}.{name}")) {
            return Some(found);
        }
    }
    let items = value.as_array().into_iter().flatten().enumerate();
    let mut items = items
        .map(|(number, item)| wrong(document, &schema["items"], item, &format!("{at}[{number}]")));
    items.find_map(|found| found)
}
