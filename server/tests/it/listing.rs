//! Listings: what they show to principals that may not see every lock, and cursors that no listing made.

use std::collections::BTreeSet;
use std::sync::Arc;

use fencelock_core::Engine;
use fencelock_server::{Config, Right, Server};
use fencelock_testbed::{Dir, Etcd, Redis};
use serde_json::{Value, json};

use crate::client::{Client, ask, raw, replica_with, request};
use crate::rights::{User, user};

/// A service of this store with locks that a principal may see and locks that it may not see.
async fn serve(engine: Arc<dyn Engine>, boss: &User, some: &User) -> Server {
    let mut config = Config::default();
    config.principals = [boss, some].map(|user| user.principal.clone()).to_vec();
    config.anonymous = Vec::new();
    let at = replica_with(engine, config).await;
    for hidden in 0..5 {
        take(&at, boss, &format!("hidden-{hidden}")).await;
        take(&at, boss, &format!("zz/no/{hidden}")).await;
    }
    for name in SEEN {
        take(&at, boss, name).await;
    }
    at
}

/// The locks that the principal of [`some`] may see. Others are before, among and after them.
const SEEN: [&str; 5] = ["b/1", "zz/a", "zz/no/but/1", "zz/z", "zz/zz"];

fn some() -> User {
    user(
        "some",
        &[
            ("b/", &[Right::Look]),
            ("zz/", &[Right::Look]),
            ("zz/no/", &[]),
            ("zz/no/but/", &[Right::Look]),
        ],
    )
}

async fn take(at: &Server, user: &User, name: &str) {
    let client = Client::new();
    let headers = [
        ("Authorization", user.header.as_str()),
        ("Fencelock-Key", client.key.secret()),
        // On etcd a claim belongs to its replica.
        ("Fencelock-Replica", at.service().id()),
    ];
    let path = format!("/v1/claims/{}", client.claim());
    let body = json!({"name": name, "ttl_ms": 60_000}).to_string();
    raw(at.address(), &request("PUT", &path, &headers, &body))
        .await
        .is(200);
}

/// All names of a listing, page by page. No answer may show a lock that is hidden.
async fn walk(at: &Server, user: &User, prefix: &str, limit: usize) -> BTreeSet<String> {
    let headers = [("Authorization", user.header.as_str())];
    let (mut names, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/v1/locks?prefix={prefix}&limit={limit}{cursor}");
        let page = raw(at.address(), &request("GET", &path, &headers, "")).await;
        let body = page.is(200);
        for lock in body["locks"].as_array().unwrap() {
            names.insert(lock["name"].as_str().unwrap().to_owned());
        }
        let Some(next) = body["next"].as_str() else {
            return names;
        };
        for hidden in ["hidden", "no/0", "no/1", "no/2", "no/3", "no/4", "no%2F"] {
            let shown = next.replace("no/but", "").replace("no%2Fbut", "");
            assert!(!shown.contains(hidden), "prefix {prefix:?}: {next}");
        }
        let next = next.replace('%', "%25").replace('\0', "%00");
        cursor = format!("&cursor={next}");
    }
}

async fn shows_what_may_be_seen(engine: Arc<dyn Engine>) {
    let (boss, some) = (user("boss", &[("", Right::ALL)]), some());
    let at = serve(engine, &boss, &some).await;
    for limit in [1, 2, 100] {
        let seen = BTreeSet::from(SEEN.map(str::to_owned));
        assert_eq!(walk(&at, &some, "", limit).await, seen, "limit {limit}");
        for (prefix, count) in [
            ("hidden-", 0),
            ("zz/", 4),
            ("z", 4),
            ("zz/n", 1),
            ("b/1", 1),
        ] {
            let names = walk(&at, &some, prefix, limit).await;
            assert_eq!(names.len(), count, "{prefix} {limit}: {names:?}");
        }
    }
    let headers = [("Authorization", some.header.as_str())];
    for prefix in ["hidden-", "zz/no/0", "c"] {
        let path = format!("/v1/locks?prefix={prefix}&limit=1");
        let page = raw(at.address(), &request("GET", &path, &headers, "")).await;
        assert_eq!(page.is(200), json!({"locks": [], "next": null}), "{prefix}");
    }
    for cursor in ["", "x", "hidden-1", "9:", "0", "-1:", "1:%00", "1:hidden-1"] {
        let path = format!("/v1/locks?cursor={cursor}");
        let page = raw(at.address(), &request("GET", &path, &headers, "")).await;
        page.is_problem(400, "invalid");
    }
    let headers = [("Authorization", boss.header.as_str())];
    let path = "/v1/locks?limit=1000";
    let all = raw(at.address(), &request("GET", path, &headers, "")).await;
    assert_eq!(all.is(200)["next"], Value::Null);
    assert_eq!(walk(&at, &boss, "b/", 1).await.len(), 1);
}

#[tokio::test]
async fn a_listing_shows_no_hidden_name_on_sqlite() {
    let dir = Dir::new("listing").unwrap();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    shows_what_may_be_seen(fencelock::open_engine(&url).await.unwrap()).await;
}

#[tokio::test]
async fn a_listing_shows_no_hidden_name_on_etcd() {
    let etcd = Etcd::start().unwrap();
    shows_what_may_be_seen(fencelock::open_engine(etcd.url()).await.unwrap()).await;
}

#[tokio::test]
async fn a_listing_shows_no_hidden_name_on_redis() {
    let redis = Redis::start().unwrap();
    let url = crate::redis::patient(&redis.url());
    shows_what_may_be_seen(fencelock::open_engine(url).await.unwrap()).await;
}

/// A client's bad cursor is its own mistake: it is no failure of the store, and keeps nobody from taking locks.
#[tokio::test]
async fn a_bad_cursor_is_refused_and_the_breaker_stays_closed() {
    let etcd = Etcd::start().unwrap();
    let url = format!("{}?breaker=yes", etcd.url());
    let boss = user("boss", &[("", Right::ALL)]);
    let mut config = Config::default();
    config.principals = vec![boss.principal.clone()];
    let at = replica_with(fencelock::open_engine(&url).await.unwrap(), config).await;
    for cursor in ["", "a", "b", "%00", "fencelock/", "fencelock/base%00"] {
        for _ in 0..6 {
            let page = ask(&at, "GET", &format!("/v1/locks?cursor={cursor}"), "").await;
            page.is_problem(400, "invalid");
        }
        take(&at, &boss, &format!("n{cursor}")).await;
    }
}
