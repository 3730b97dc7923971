//! Principals: tokens, rights, and what the audit log records of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Engine, Memory};
use fencelock_server::{AuditLog, BearerToken, Config, Grant, Principal, Right, Server, TokenHash};
use fencelock_testbed::Dir;
use serde_json::{Value, json};

use crate::client::{Answer, Client, raw, replica_with, request};

/// A principal with a token, and the header that it sends.
pub(crate) struct User {
    pub(crate) principal: Principal,
    pub(crate) header: String,
}

pub(crate) fn user(name: &str, rights: &[(&str, &[Right])]) -> User {
    let token = BearerToken::draw().unwrap();
    let mut principal = Principal::new(name);
    principal.tokens = vec![TokenHash {
        id: token.id().to_owned(),
        sha256: token.sha256(),
        not_after: None,
    }];
    let grant = |(prefix, rights): &(&str, &[Right])| Grant {
        prefix: (*prefix).to_owned(),
        rights: rights.to_vec(),
    };
    principal.rights = rights.iter().map(grant).collect();
    let header = format!("Bearer {}", token.secret());
    User { principal, header }
}

pub(crate) async fn serve(users: &[&User], change: impl FnOnce(&mut Config)) -> Server {
    serve_on(Arc::new(Memory::new()), users, change).await
}

pub(crate) async fn serve_on(
    engine: Arc<dyn Engine>,
    users: &[&User],
    change: impl FnOnce(&mut Config),
) -> Server {
    let mut config = Config::default();
    config.principals = users.iter().map(|user| user.principal.clone()).collect();
    config.anonymous = Vec::new();
    change(&mut config);
    replica_with(engine, config).await
}

impl User {
    pub(crate) async fn ask(&self, at: &Server, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("Authorization", self.header.as_str())];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        raw(at.address(), &request(method, path, &headers, &body)).await
    }

    pub(crate) async fn put(&self, at: &Server, client: &Client, body: &Value) -> Answer {
        let path = format!("/v1/claims/{}", client.claim());
        self.put_at(at, client, &path, body).await
    }

    pub(crate) async fn release(
        &self,
        at: &Server,
        client: &Client,
        path: &str,
        name: &str,
    ) -> Answer {
        let headers = [
            ("Authorization", self.header.as_str()),
            ("Fencelock-Key", client.key.secret()),
        ];
        let body = json!({ "name": name }).to_string();
        let path = format!("{path}/release");
        raw(at.address(), &request("POST", &path, &headers, &body)).await
    }

    pub(crate) async fn put_at(
        &self,
        at: &Server,
        client: &Client,
        path: &str,
        body: &Value,
    ) -> Answer {
        let headers = [
            ("Authorization", self.header.as_str()),
            ("Fencelock-Key", client.key.secret()),
        ];
        raw(
            at.address(),
            &request("PUT", path, &headers, &body.to_string()),
        )
        .await
    }
}

#[tokio::test]
async fn rights_are_by_prefix() {
    let billing = user("billing", &[("billing/", &[Right::Take, Right::Look])]);
    let watch = user("watch", &[("", &[Right::Look]), ("secret/", &[])]);
    let boss = user("boss", &[("", Right::ALL)]);
    let (at, client) = (
        serve(&[&billing, &watch, &boss], |_| {}).await,
        Client::new(),
    );
    let take = |name: &str| json!({"name": name, "owner": "w1"});
    let taken = billing.put(&at, &client, &take("billing/a")).await;
    let token = taken.is(200)["token"].as_u64().unwrap();
    billing
        .put(&at, &client, &take("billing"))
        .await
        .is_problem(403, "forbidden");
    watch
        .put(&at, &client, &take("billing/b"))
        .await
        .is_problem(403, "forbidden");
    watch
        .ask(&at, "POST", "/v1/claims", &take("billing/b"))
        .await
        .is_problem(403, "forbidden");
    boss.ask(&at, "POST", "/v1/claims", &take("secret/a"))
        .await
        .is(201);

    let lock = watch
        .ask(&at, "GET", "/v1/lock?name=billing/a", &Value::Null)
        .await
        .is(200);
    assert_eq!(lock["holders"][0]["owner"], "billing/w1");
    watch
        .ask(&at, "GET", "/v1/lock?name=secret/a", &Value::Null)
        .await
        .is_problem(403, "forbidden");
    let names = |answer: Answer| {
        let locks = answer.is(200)["locks"].as_array().unwrap().clone();
        let mut names: Vec<String> = locks
            .iter()
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names(watch.ask(&at, "GET", "/v1/locks", &Value::Null).await),
        ["billing/a"]
    );
    assert_eq!(
        names(boss.ask(&at, "GET", "/v1/locks", &Value::Null).await),
        ["billing/a", "secret/a"]
    );
    watch
        .ask(&at, "GET", "/v1/store/findings", &Value::Null)
        .await
        .is(200);
    billing
        .ask(&at, "GET", "/v1/store/findings", &Value::Null)
        .await
        .is_problem(403, "forbidden");
    billing
        .ask(&at, "GET", "/v1/store", &Value::Null)
        .await
        .is(200);

    let evict = json!({"name": "billing/a", "token": token, "how": "release"});
    billing
        .ask(&at, "POST", "/v1/evict", &evict)
        .await
        .is_problem(403, "forbidden");
    assert_eq!(
        boss.ask(&at, "POST", "/v1/evict", &evict).await.is(200)["done"],
        true
    );
    let attest = json!({"name": "secret/a", "owner": "boss/w1"});
    watch
        .ask(&at, "POST", "/v1/attest", &attest)
        .await
        .is_problem(403, "forbidden");
    assert!(!boss.ask(&at, "POST", "/v1/attest", &attest).await.is(200)["holder"].is_null());
}

#[tokio::test]
async fn a_renewal_and_a_release_need_the_right_too() {
    let (one, other) = (
        user("one", &[("", Right::ALL)]),
        user("other", &[("b/", Right::ALL)]),
    );
    let (at, client) = (serve(&[&one, &other], |_| {}).await, Client::new());
    let id = client.claim();
    let path = format!("/v1/claims/{id}");
    let taken = one.put_at(&at, &client, &path, &json!({"name": "a"})).await;
    let body = json!({"name": "a", "token": taken.is(200)["token"]});
    let headers = [
        ("Authorization", other.header.as_str()),
        ("Fencelock-Key", client.key.secret()),
    ];
    for (path, body) in [
        (format!("{path}/renew"), body),
        (format!("{path}/release"), json!({"name": "a"})),
        (
            "/v1/renewals".to_owned(),
            json!({"claims": [{"claim": id, "name": "a", "token": 1}]}),
        ),
    ] {
        let refused = raw(
            at.address(),
            &request("POST", &path, &headers, &body.to_string()),
        )
        .await;
        refused.is_problem(403, "forbidden");
    }
}

/// A caller that has lost its right to one lock must not lose the others by that.
#[tokio::test]
async fn a_refused_renewal_does_not_end_the_others_of_its_request() {
    let user = user("user", &[("b/", Right::ALL)]);
    let (at, client) = (serve(&[&user], |_| {}).await, Client::new());
    let (held, refused) = (client.claim(), client.claim());
    let path = format!("/v1/claims/{held}");
    let taken = user
        .put_at(&at, &client, &path, &json!({"name": "b/y"}))
        .await;
    let token = taken.is(200)["token"].clone();
    let headers = [
        ("Authorization", user.header.as_str()),
        ("Fencelock-Key", client.key.secret()),
    ];
    let body = json!({"claims": [
        {"claim": refused, "name": "a/x", "token": 1},
        {"claim": held, "name": "b/y", "token": token},
    ]});
    let bytes = request("POST", "/v1/renewals", &headers, &body.to_string());
    let renewed = raw(at.address(), &bytes).await.is(200);
    let claims = &renewed["claims"];
    assert_eq!(claims[0]["state"], "unknown", "{renewed}");
    assert!(claims[0]["detail"].to_string().contains("a/x"), "{renewed}");
    assert_eq!(claims[1]["state"], "held", "{renewed}");
}

/// Their bodies may be long, so nobody who may do nothing here can make the service keep them.
#[tokio::test]
async fn a_caller_without_rights_is_refused_before_the_body_of_many_claims() {
    let user = user("user", &[("", Right::ALL)]);
    let (at, client) = (serve(&[&user], |_| {}).await, Client::new());
    for path in ["/v1/renewals", "/v1/batch"] {
        let key = client.key.secret();
        // The body never comes.
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nFencelock-Key: {key}\r\n\
             Content-Length: 100000\r\n\r\n",
            at.address()
        );
        let refused = raw(at.address(), head.as_bytes()).await;
        refused.is_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn bad_credentials_are_no_credentials() {
    let good = user("good", &[("", Right::ALL)]);
    let mut old = user("old", &[("", Right::ALL)]);
    old.principal.tokens[0].not_after = Some(1);
    let at = serve(&[&good, &old], |config| {
        config.anonymous = vec![Grant::on_all(&[Right::Look])];
    })
    .await;
    let other = BearerToken::draw().unwrap().secret();
    let id = &good.header[11..19];
    let stolen = format!("Bearer flk_{id}_{}", "A".repeat(43));
    for header in [
        old.header.as_str(),
        &format!("Bearer {other}"),
        &stolen,
        "Bearer x",
        "Basic eDp5",
        "",
    ] {
        let headers = [("Authorization", header)];
        let refused = raw(at.address(), &request("GET", "/v1/store", &headers, "")).await;
        refused.is_problem(401, "unauthorized");
        assert!(
            refused
                .header("www-authenticate")
                .unwrap()
                .starts_with("Bearer")
        );
        assert!(!refused.text.contains("flk_"));
    }
    let twice = [
        ("Authorization", good.header.as_str()),
        ("Authorization", good.header.as_str()),
    ];
    raw(at.address(), &request("GET", "/v1/store", &twice, ""))
        .await
        .is_problem(400, "invalid");
    // Anonymous clients may look, and must log in to take.
    let headers: [(&str, &str); 0] = [];
    raw(
        at.address(),
        &request("GET", "/v1/lock?name=a", &headers, ""),
    )
    .await
    .is(200);
    let take = request("POST", "/v1/claims", &headers, r#"{"name":"a"}"#);
    raw(at.address(), &take)
        .await
        .is_problem(401, "unauthorized");
}

#[tokio::test]
async fn a_principal_without_rights_learns_nothing() {
    let at = serve(&[], |_| {}).await;
    let headers: [(&str, &str); 0] = [];
    for path in [
        "/v1/store",
        "/v1/store/findings",
        "/v1/locks",
        "/v1/lock?name=a",
    ] {
        raw(at.address(), &request("GET", path, &headers, ""))
            .await
            .is_problem(401, "unauthorized");
    }
    raw(at.address(), &request("GET", "/healthz", &headers, ""))
        .await
        .is(200);
}

#[tokio::test]
async fn rights_are_reloaded_and_a_bad_file_changes_nothing() {
    let (one, two) = (
        user("one", &[("", Right::ALL)]),
        user("two", &[("", Right::ALL)]),
    );
    let at = serve(&[&one], |_| {}).await;
    let ask = async |user: &User| user.ask(&at, "GET", "/v1/store", &Value::Null).await.status;
    assert_eq!((ask(&one).await, ask(&two).await), (200, 401));
    let bad = Principal::new("a/b");
    assert!(at.service().reload(&[bad], &[]).is_err());
    assert_eq!((ask(&one).await, ask(&two).await), (200, 401));
    at.service()
        .reload(std::slice::from_ref(&two.principal), &[])
        .unwrap();
    assert_eq!((ask(&one).await, ask(&two).await), (401, 200));
}

pub(crate) async fn lines(file: &Path, count: usize) -> Vec<Value> {
    let read = async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if text.lines().count() >= count && text.ends_with('\n') {
                return text
                    .lines()
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read)
        .await
        .expect("lines are missing")
}

#[tokio::test]
async fn the_audit_log_names_who_did_what_and_no_secret() {
    let dir = Dir::new("audit").unwrap();
    let file = dir.path().join("audit.jsonl");
    let (boss, other) = (user("boss", &[("", Right::ALL)]), user("other", &[]));
    let at = serve(&[&boss, &other], |config| {
        let mut log = AuditLog::new(&file);
        log.grants = true;
        config.audit = Some(log);
    })
    .await;
    let taken = boss
        .ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await
        .is(201);
    other
        .ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await
        .is_problem(403, "forbidden");
    other
        .ask(&at, "GET", "/v1/store/findings", &Value::Null)
        .await
        .is_problem(403, "forbidden");
    let evict = json!({"name": "a", "token": taken["token"], "how": "release"});
    boss.ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    let lines = lines(&file, 5).await;
    let all: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| {
            (
                line["do"].as_str().unwrap(),
                line["principal"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        all,
        [
            ("grant", "boss"),
            ("refused", "other"),
            ("refused", "other"),
            ("evict", "boss"),
            ("evict", "boss")
        ]
    );
    assert_eq!(
        (&lines[0]["claim"], &lines[0]["token"]),
        (&taken["claim"], &taken["token"])
    );
    assert_eq!(
        (&lines[3]["outcome"], &lines[4]["outcome"]),
        (&Value::Null, &json!("done"))
    );
    let address: std::net::SocketAddr = lines[0]["peer"].as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback());
    assert_eq!(lines[0]["replica"], at.service().id());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(taken["key"].as_str().unwrap()) && !text.contains("flk_"));

    // A file that was moved away is created again.
    std::fs::rename(&file, dir.path().join("old")).unwrap();
    at.service()
        .reload(std::slice::from_ref(&boss.principal), &[])
        .unwrap();
    assert_eq!(crate::rights::lines(&file, 1).await[0]["do"], "reload");
}

/// A disk that was full leaves half of a line at the end of the log.
#[tokio::test]
async fn a_line_after_a_torn_one_can_be_read() {
    let dir = Dir::new("torn").unwrap();
    let file = dir.path().join("audit.jsonl");
    std::fs::write(&file, r#"{"at":"2026-01-01T00:00:00.000Z","repl"#).unwrap();
    let boss = user("boss", &[("", Right::ALL)]);
    let at = serve(&[&boss], |config| config.audit = Some(AuditLog::new(&file))).await;
    let evict = json!({"name": "a", "token": 1, "how": "release"});
    boss.ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    let text = std::fs::read_to_string(&file).unwrap();
    let before: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&before["do"], &before["name"]),
        (&json!("evict"), &json!("a"))
    );
}

#[tokio::test]
async fn no_holder_is_evicted_if_the_audit_log_cannot_be_written() {
    let boss = user("boss", &[("", Right::ALL)]);
    let at = serve(&[&boss], |config| {
        config.audit = Some(AuditLog::new("/dev/full"))
    })
    .await;
    let taken = boss
        .ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await
        .is(201);
    let evict = json!({"name": "a", "token": taken["token"], "how": "release"});
    let refused = boss.ask(&at, "POST", "/v1/evict", &evict).await;
    refused.is_problem(503, "unavailable");
    assert_eq!(refused.get("title"), "The audit log cannot be written");
    let lock = boss
        .ask(&at, "GET", "/v1/lock?name=a", &Value::Null)
        .await
        .is(200);
    assert_eq!(lock["token"], taken["token"]);
}

#[tokio::test]
async fn a_wait_ends_with_the_right() {
    let all = [("", Right::ALL)];
    let [gone, less, stays] = ["gone", "less", "stays"].map(|name| user(name, &all));
    let at = serve(&[&gone, &less, &stays], |_| {}).await;
    let take = |wait_ms: u64| json!({"name": "a", "ttl_ms": 60_000, "wait_ms": wait_ms});
    let held = stays.ask(&at, "POST", "/v1/claims", &take(0)).await.is(201);
    let waits = async |user: &User| user.ask(&at, "POST", "/v1/claims", &take(20_000)).await;
    let client = Client::new();
    let path = format!("/v1/claims/{}", client.claim());
    let polls = async {
        let poll = json!({"name": "a", "queue": true, "wait_ms": 60_000});
        loop {
            let answer = gone.put_at(&at, &client, &path, &poll).await;
            if answer.status != 202 {
                return answer;
            }
        }
    };
    let reload = async {
        while at.service().polls() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut looks = less.principal.clone();
        looks.rights[0].rights = vec![Right::Look];
        let principals = [looks, stays.principal.clone()];
        at.service().reload(&principals, &[]).unwrap();
        // The client that keeps the right gets the lock next.
        let path = format!("/v1/claims/{}/release", held["claim"].as_str().unwrap());
        let headers = [
            ("Authorization", stays.header.as_str()),
            ("Fencelock-Key", held["key"].as_str().unwrap()),
        ];
        let release = request("POST", &path, &headers, r#"{"name":"a"}"#);
        raw(at.address(), &release).await.is(200);
    };
    let (of_gone, of_less, of_stays, polled, ()) =
        tokio::join!(waits(&gone), waits(&less), waits(&stays), polls, reload);
    of_gone.is_problem(401, "unauthorized");
    of_less.is_problem(403, "forbidden");
    polled.is_problem(401, "unauthorized");
    of_stays.is(201);
}

/// Anybody can send requests that are refused.
#[tokio::test]
async fn refused_strangers_do_not_fill_the_audit_log() {
    let dir = Dir::new("audit").unwrap();
    let file = dir.join("audit.jsonl");
    let boss = user("boss", &[("", Right::ALL)]);
    let log = AuditLog::new(&file);
    let at = serve(&[&boss], |config| config.audit = Some(log)).await;
    let stranger = user("stranger", &[]);
    let body = json!({"name": "a"});
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        let refused = stranger.ask(&at, "POST", "/v1/claims", &body).await;
        refused.is_problem(401, "unauthorized");
    }
    let took = begun.elapsed().as_secs_f64();
    // A line that somebody awaits comes after them.
    let taken = boss
        .ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await;
    let token = taken.is(201)["token"].clone();
    let evict = json!({"name": "a", "token": token, "how": "release"});
    boss.ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines = text.matches("bad token").count();
    assert!(
        lines > 0 && (lines as f64) <= 11.0 + 10.0 * took,
        "{lines} in {took} s"
    );
    assert!(text.contains("evict"), "{text}");
}
