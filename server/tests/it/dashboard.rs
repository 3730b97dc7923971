//! The dashboard, as a browser requests it.

use std::path::Path;
use std::sync::Arc;

use fencelock_core::Memory;
use fencelock_server::{AuditLog, Config, Right, Server};
use fencelock_testbed::{Dir, Redis};
use serde_json::{Value, json};

use crate::client::{Answer, Client, ask, look, one, raw, replica, replica_with, request};
use crate::rights::{User, lines, serve, user};

const SAME: (&str, &str) = ("Sec-Fetch-Site", "same-origin");

async fn get(at: &Server, path: &str) -> Answer {
    ask(at, "GET", path, "").await
}

async fn get_as(at: &Server, path: &str, cookie: &str) -> Answer {
    raw(
        at.address(),
        &request("GET", path, &[("Cookie", cookie)], ""),
    )
    .await
}

/// Posts a form as a page of this service does, with the changes in `headers`.
async fn post(at: &Server, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
    let mut text = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    let length = form.len();
    let media = "application/x-www-form-urlencoded";
    text += &format!("Content-Type: {media}\r\nContent-Length: {length}\r\n\r\n{form}");
    raw(at.address(), text.as_bytes()).await
}

fn token_of(user: &User) -> String {
    user.header.trim_start_matches("Bearer ").to_owned()
}

/// Logs in, and returns the cookie as the browser sends it.
async fn log_in(at: &Server, user: &User) -> String {
    let form = format!("token={}&to=%2Fdashboard%2Fstore", token_of(user));
    let answer = post(at, "/dashboard/login", &[SAME], &form).await;
    assert_eq!(answer.status, 303, "{answer:?}");
    assert_eq!(answer.header("location"), Some("/dashboard/store"));
    let cookie = answer.header("set-cookie").unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_hold_is_shown_with_its_holder_and_its_queue() {
    let (at, client) = (one().await, Client::new());
    let name = "jobs/<b>\"nightly\" & 'more'</b>";
    let body = json!({"name": name, "owner": "web<1>", "label": "<i>note</i>"});
    let token = client.put(&at, client.claim(), body).await.number("token");
    client.hold(&at, client.claim(), "other").await;
    let body = json!({"name": name, "owner": "web2", "queue": true});
    client.put(&at, client.claim(), body).await.is(202);

    let all = get(&at, "/dashboard").await;
    assert_eq!(all.status, 200);
    assert!(all.text.contains("other") && all.text.contains(&token.to_string()));
    assert!(all.text.contains("web&lt;1&gt;") && !all.text.contains("<b>"));
    let some = get(&at, "/dashboard?prefix=jobs%2F").await;
    assert!(some.text.contains("web&lt;1&gt;") && !some.text.contains(">other<"));
    let none = get(&at, "/dashboard?prefix=nobody%2F").await;
    assert!(none.text.contains("No lock that you may look at"));

    let link = some.text.split("href=\"/dashboard/lock?name=").nth(1);
    let link = link.unwrap().split('"').next().unwrap();
    let lock = get(&at, &format!("/dashboard/lock?name={link}")).await;
    assert_eq!(lock.status, 200, "{lock:?}");
    for shown in ["web&lt;1&gt;", "web2", "&lt;i&gt;note", "1 waiting"] {
        assert!(lock.text.contains(shown), "{shown}: {}", lock.text);
    }
    assert!(!lock.text.contains("<i>"), "{}", lock.text);
    // The script requests only the part that changes.
    let part = [("Fencelock-Part", "1")];
    let part = raw(at.address(), &request("GET", "/dashboard", &part, "")).await;
    assert!(part.text.contains("other") && !part.text.contains("<nav"));
}

#[tokio::test]
async fn without_look_a_page_is_empty_and_without_evict_it_has_no_button() {
    let reader = user("reader", &[("a/", &[Right::Look])]);
    let boss = user("boss", &[("", Right::ALL)]);
    let (at, client) = (serve(&[&reader, &boss], |_| {}).await, Client::new());
    let mut tokens = Vec::new();
    for name in ["a/one", "b/two"] {
        let headers = [
            ("Authorization", boss.header.as_str()),
            ("Fencelock-Key", client.key.secret()),
        ];
        let path = format!("/v1/claims/{}", client.claim());
        let body = json!({"name": name}).to_string();
        let taken = raw(at.address(), &request("PUT", &path, &headers, &body)).await;
        tokens.push(taken.is(200)["token"].as_u64().unwrap());
    }
    let nobody = get(&at, "/dashboard/lock?name=a%2Fone").await;
    assert_eq!(nobody.status, 303);
    let back = "/dashboard/login?to=%2Fdashboard%2Flock%3Fname%3Da%252Fone";
    assert_eq!(nobody.header("location"), Some(back));

    let cookie = log_in(&at, &reader).await;
    let all = get_as(&at, "/dashboard", &cookie).await;
    assert!(all.text.contains("a/one") && !all.text.contains("b/two"));
    let hidden = get_as(&at, "/dashboard/lock?name=b%2Ftwo", &cookie).await;
    assert_eq!(hidden.status, 403);
    assert_eq!(get_as(&at, "/dashboard/hour", &cookie).await.status, 403);
    let lock = get_as(&at, "/dashboard/lock?name=a%2Fone", &cookie).await;
    assert!(lock.text.contains("boss") && !lock.text.contains("/dashboard/evict"));
    let deed = format!("name=a%2Fone&token={}&how=release", tokens[0]);
    let confirm = get_as(&at, &format!("/dashboard/evict?{deed}"), &cookie).await;
    assert_eq!(confirm.status, 403);
    let headers = [SAME, ("Cookie", cookie.as_str())];
    let refused = post(&at, "/dashboard/evict", &headers, &deed).await;
    assert_eq!(refused.status, 403);
    let cookie = log_in(&at, &boss).await;
    let lock = get_as(&at, "/dashboard/lock?name=a%2Fone", &cookie).await;
    assert!(lock.text.contains("/dashboard/evict") && lock.text.contains(&tokens[0].to_string()));
}

#[tokio::test]
async fn an_eviction_is_confirmed_done_and_audited() {
    let boss = user("boss", &[("", Right::ALL)]);
    let dir = Dir::new("audit").unwrap();
    let file = dir.join("audit.jsonl");
    let log = AuditLog::new(&file);
    let at = serve(&[&boss], |config| config.audit = Some(log)).await;
    let cookie = log_in(&at, &boss).await;
    let body = json!({"name": "a"}).to_string();
    let headers = [("Authorization", boss.header.as_str())];
    let taken = raw(
        at.address(),
        &request("POST", "/v1/claims", &headers, &body),
    )
    .await;
    let token = taken.is(201)["token"].as_u64().unwrap();

    for (how, told) in [
        ("ask", "asked"),
        ("release", "evicted"),
        ("release", "gone"),
    ] {
        let deed = format!("name=a&token={token}&how={how}");
        let confirm = get_as(&at, &format!("/dashboard/evict?{deed}"), &cookie).await;
        assert!(
            confirm
                .text
                .contains(&format!("the holder with token {token}"))
        );
        let headers = [SAME, ("Cookie", cookie.as_str())];
        let done = post(&at, "/dashboard/evict", &headers, &deed).await;
        assert_eq!(done.status, 303, "{done:?}");
        let next = format!("/dashboard/lock?name=a&told={told}");
        assert_eq!(done.header("location"), Some(next.as_str()));
    }
    let lock = get_as(&at, "/dashboard/lock?name=a&told=evicted", &cookie).await;
    assert!(lock.text.contains("Nobody holds it") && lock.text.contains("was taken from"));
    let hour = get_as(&at, "/dashboard/hour", &cookie).await;
    for word in [">login<", ">request-release<", ">evict<"] {
        assert!(hour.text.contains(word), "{word}: {}", hour.text);
    }
    // The login has one line, and each action has two. The result of the last action is written while its answer is
    // sent.
    let told = lines(Path::new(&file), 7).await;
    assert_eq!(told.len(), 7, "{told:?}");
    let lines = std::fs::read_to_string(&file).unwrap();
    assert!(!lines.contains(&token_of(&boss)) && lines.contains("\"do\":\"login\""));
    assert_eq!(lines.matches("\"do\":\"evict\"").count(), 4, "{lines}");
}

#[tokio::test]
async fn the_cookie_counts_on_the_dashboard_alone() {
    let boss = user("boss", &[("", Right::ALL)]);
    let at = serve(&[&boss], |_| {}).await;
    let form = format!("token={}", token_of(&boss));
    let good = post(&at, "/dashboard/login", &[SAME], &form).await;
    assert_eq!(good.header("location"), Some("/dashboard"));
    let cookie = good.header("set-cookie").unwrap();
    for flag in ["Path=/dashboard;", "HttpOnly", "SameSite=Strict"] {
        assert!(cookie.contains(flag), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(get_as(&at, "/dashboard", cookie).await.status, 200);
    get_as(&at, "/v1/locks", cookie)
        .await
        .is_problem(401, "unauthorized");
    let out = post(&at, "/dashboard/logout", &[SAME, ("Cookie", cookie)], "").await;
    let gone = out.header("set-cookie").unwrap();
    assert!(
        gone.starts_with("fencelock=;") && gone.contains("Max-Age=0"),
        "{gone}"
    );

    let wrong = post(&at, "/dashboard/login", &[SAME], "token=flk_no").await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (403, None));
    for headers in [
        vec![],
        vec![("Sec-Fetch-Site", "cross-site")],
        vec![("Sec-Fetch-Site", "none")],
    ] {
        for path in ["/dashboard/login", "/dashboard/logout", "/dashboard/evict"] {
            let foreign = post(&at, path, &headers, &form).await;
            foreign.is_problem(403, "forbidden");
            assert_eq!(foreign.header("set-cookie"), None);
        }
    }
    let elsewhere = format!("{form}&to=https%3A%2F%2Felsewhere.example%2Fdashboard");
    let stays = post(&at, "/dashboard/login", &[SAME], &elsewhere).await;
    assert_eq!(stays.header("location"), Some("/dashboard"));
}

#[tokio::test]
async fn behind_tls_the_cookie_is_secure() {
    let boss = user("boss", &[("", Right::ALL)]);
    let advertise = Some("https://locks.example".to_owned());
    let at = serve(&[&boss], |config| config.advertise = advertise).await;
    let form = format!("token={}", token_of(&boss));
    let good = post(&at, "/dashboard/login", &[SAME], &form).await;
    assert!(good.header("set-cookie").unwrap().contains("; Secure"));
}

#[tokio::test]
async fn a_store_that_does_not_answer_shows_as_such() {
    let redis = Redis::start().unwrap();
    let url = format!("{}?response-timeout=2s", redis.url());
    let engine = fencelock::open_engine(url).await.unwrap();
    let (at, client) = (replica(engine).await, Client::new());
    client.take(&at, client.claim(), "a").await;
    redis.pause().unwrap();
    let lost = get(&at, "/dashboard").await;
    assert_eq!(lost.status, 503);
    assert!(lost.text.contains("The store does not answer"), "{lost:?}");
    // On each page, until the store answers.
    let hour = get(&at, "/dashboard/hour").await;
    assert!(hour.text.contains("The store does not answer"));
    // Everybody may ask this, so it does not say where the store is.
    let ready = async || ask(&at, "GET", "/readyz", "").await;
    while ready().await.status == 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let unready = ready().await;
    unready.is_problem(503, "unavailable");
    let detail = unready.get("detail").as_str().unwrap().to_owned();
    assert!(
        detail.contains("the store has failed every call for"),
        "{detail}"
    );
    assert!(!detail.contains("redis"), "{detail}");
    redis.resume().unwrap();
    let back = get(&at, "/dashboard").await;
    assert_eq!(back.status, 200, "{back:?}");
    assert!(!back.text.contains("does not answer</strong>"), "{back:?}");
}

#[tokio::test]
async fn the_last_hour_counts_grants_refusals_and_losses() {
    let (at, client) = (one().await, Client::new());
    let (first, second) = (client.claim(), client.claim());
    client.hold(&at, first, "a").await;
    client
        .put(&at, client.claim(), json!({"name": "a"}))
        .await
        .is_problem(409, "held");
    client.poll(&at, second, "a", 0).await.is(202);
    client.release(&at, first, "a").await.is(200);
    let token = client.poll(&at, second, "a", 0).await.is(200)["token"].clone();
    let evict = json!({"name": "a", "token": token, "how": "release"}).to_string();
    ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    client
        .renew(&at, second, "a", token.as_u64().unwrap())
        .await
        .is_problem(410, "lost");
    let hour = get(&at, "/dashboard/hour").await.text;
    let count = |row: &str| {
        let rest = hour
            .split_once(&format!("{row}</th><td class=\"number\">"))
            .unwrap()
            .1;
        rest.split('<').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(
        (count("Granted at once"), count("Granted after a wait")),
        (1, 1)
    );
    assert_eq!(count("Refused: held by others"), 1);
    assert!(count("Lost") >= 1);
}

#[tokio::test]
async fn pages_load_nothing_foreign() {
    let mut config = Config::trusting();
    config.audit = None;
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let paths = [
        "/dashboard",
        "/dashboard/lock?name=a",
        "/dashboard/hour",
        "/dashboard/store",
        "/dashboard/login",
    ];
    for path in paths {
        let page = get(&at, path).await;
        assert_eq!(page.status, 200, "{page:?}");
        let policy = page.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
        assert!(
            !page.text.contains("style=") && !page.text.contains(" onclick"),
            "{path}"
        );
        for link in page
            .text
            .split("src=\"")
            .skip(1)
            .chain(page.text.split("href=\"").skip(1))
        {
            assert!(link.starts_with("/dashboard"), "{path}: {link}");
        }
    }
    for (file, media) in [
        ("page.css", "text/css"),
        ("page.js", "text/javascript"),
        ("icon.svg", "image/svg+xml"),
    ] {
        let found = get(&at, &format!("/dashboard/{file}")).await;
        assert!(found.header("content-type").unwrap().starts_with(media));
        assert!(found.text.len() < 10 * 1024, "{file}");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/page.js");
    assert!(!std::fs::read_to_string(source).unwrap().contains("://"));
    ask(&at, "GET", "/dashboard/nothing", "")
        .await
        .is_problem(404, "not-found");
    let _: Value = look(&at, "a").await;
}
