//! Everything that a client may send.

use std::time::Duration;

use fencelock_core::ClaimIds;
use fencelock_server::Config;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Client, answer, ask, look, one, raw, replica_with, request};

#[tokio::test]
async fn a_malformed_body_is_invalid() {
    let (at, client) = (one().await, Client::new());
    let key = [("Fencelock-Key", client.key.secret())];
    for body in [
        "{",
        "[]",
        r#"["a"]"#,
        "null",
        "\"a\"",
        "{}",
        r#"{"name":"a"} x"#,
        r#"{"name":"a","name":"b"}"#,
        r#"{"name":1}"#,
        r#"{"name":null}"#,
        r#"{"name":["a"]}"#,
        r#"{"name":""}"#,
        r#"{"name":"a\u0000"}"#,
        r#"{"name":"a\n"}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":"a","ttl_ms":"1"}"#,
        r#"{"name":"a","ttl_ms":-1}"#,
        r#"{"name":"a","ttl_ms":1.5}"#,
        r#"{"name":"a","ttl_ms":99999999999999999999}"#,
        r#"{"name":"a","mode":"other"}"#,
        r#"{"name":"a","mode":"permit"}"#,
        r#"{"name":"a","permit_count":1}"#,
        r#"{"name":"a","mode":"permit","permit_count":0}"#,
        r#"{"name":"a","owner":"a\nb"}"#,
        r#"{"name":"a","label":"\u0007"}"#,
        r#"{"name":"a","unknown":1}"#,
        r#"{"name":"a","queue":1}"#,
    ] {
        let path = format!("/v1/claims/{}", client.claim());
        let refused = raw(at.address(), &request("PUT", &path, &key, body)).await;
        refused.is_problem(400, "invalid");
    }
    let long = |what: &str, bytes: usize| json!({"name": "a", what: "ü".repeat(bytes / 2)});
    for body in [
        long("owner", 202),
        long("label", 256),
        json!({"name": "ü".repeat(257)}),
    ] {
        client
            .put(&at, client.claim(), body)
            .await
            .is_problem(400, "invalid");
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = format!(r#"{{"name":{}}}"#, &deep[..8000]);
    let refused = raw(
        at.address(),
        &request(
            "PUT",
            &format!("/v1/claims/{}", client.claim()),
            &key,
            &deep,
        ),
    )
    .await;
    refused.is_problem(400, "invalid");
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn what_is_not_utf8_is_invalid() {
    let (at, client) = (one().await, Client::new());
    let mut bytes = client.bytes(
        "PUT",
        &format!("/v1/claims/{}", client.claim()),
        &json!({"name": "aa"}),
    );
    let name = bytes.len() - 4;
    bytes[name] = 0xff;
    raw(at.address(), &bytes).await.is_problem(400, "invalid");
}

#[tokio::test]
async fn names_of_every_script_are_names() {
    let (at, client) = (one().await, Client::new());
    for name in [
        "a/b?c#d&e=f%41+g",
        " ",
        "..",
        "../../etc/passwd",
        "ночь",
        "夜間バッチ",
        "ليل",
        "é",
        "e\u{301}",
        "🔒",
        "{}[]()*'\";:<>|\\^`~$@!,",
        "\u{202e}abc",
    ] {
        let id = client.claim();
        let taken = client.put(&at, id, json!({"name": name})).await;
        let token = taken.is(200)["token"].as_u64().unwrap();
        // Percent-encoded byte by byte.
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let lock = look(&at, &encoded).await;
        assert_eq!(
            (&lock["name"], &lock["token"]),
            (&json!(name), &json!(token))
        );
        let body = json!({"sequencer": taken.get("sequencer")}).to_string();
        assert_eq!(
            ask(&at, "POST", "/v1/check", &body).await.is(200)["held"],
            true
        );
        assert_eq!(
            client.release(&at, id, name).await.is(200)["released"],
            "released"
        );
    }
    // The same letter written in two ways is two names.
    client.take(&at, client.claim(), "é").await;
    client.take(&at, client.claim(), "e\u{301}").await;
    let longest = "n".repeat(512);
    client.take(&at, client.claim(), &longest).await;
    assert_eq!(look(&at, &longest).await["name"], longest);
}

#[tokio::test]
async fn a_look_needs_a_name_and_takes_no_nonsense() {
    let at = one().await;
    for query in [
        "",
        "?name=",
        "?name=a&name=b",
        "?name=%zz",
        "?name=%ff",
        "?name=%00",
        "?name=a&more=1",
        "?name=a&seen=x&wait_ms=1",
        "?name=a&seen=-1&wait_ms=1",
        "?name=a&seen=0&wait_ms=1",
        "?name=a&seen=9007199254740992&wait_ms=1",
        "?name=a&wait_ms=5",
        "?name=a&seen=none&wait_ms=60001",
        "?name=a&seen=none&wait_ms=x",
    ] {
        ask(&at, "GET", &format!("/v1/lock{query}"), "")
            .await
            .is_problem(400, "invalid");
    }
}

#[tokio::test]
async fn tokens_are_above_zero_and_below_two_to_the_fifty_third() {
    let (at, client) = (one().await, Client::new());
    for token in [0, 1u64 << 53, u64::MAX] {
        let id = client.claim();
        client
            .renew(&at, id, "a", token)
            .await
            .is_problem(400, "invalid");
        let body = json!({"name": "a", "token": token, "how": "ask"});
        let evicted = ask(&at, "POST", "/v1/evict", &body.to_string()).await;
        match token {
            // No claim has it, and a library may name the token below a holder's.
            0 => assert_eq!(evicted.is(200)["done"], false),
            _ => evicted.is_problem(400, "invalid"),
        }
    }
}

#[tokio::test]
async fn only_the_key_of_a_claim_speaks_for_it() {
    let (at, client, other) = (one().await, Client::new(), Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    other
        .put(&at, id, json!({"name": "a"}))
        .await
        .is_problem(403, "wrong-key");
    other
        .renew(&at, id, "a", token)
        .await
        .is_problem(403, "wrong-key");
    other
        .release(&at, id, "a")
        .await
        .is_problem(403, "wrong-key");
    let path = format!("/v1/claims/{id}");
    let body = r#"{"name":"a"}"#;
    raw(at.address(), &request("PUT", &path, &[], body))
        .await
        .is_problem(403, "wrong-key");
    let secret = client.key.secret();
    let twice = [("Fencelock-Key", secret), ("Fencelock-Key", secret)];
    raw(at.address(), &request("PUT", &path, &twice, body))
        .await
        .is_problem(400, "invalid");
    for bad in ["", "short", &"a".repeat(87), &format!("{secret} {secret}")] {
        let answer = raw(
            at.address(),
            &request("PUT", &path, &[("Fencelock-Key", bad)], body),
        )
        .await;
        answer.is_problem(400, "invalid");
        assert!(!answer.text.contains(secret));
    }
    for id in [
        "x",
        "0123",
        &"G".repeat(32),
        &id.to_string().to_uppercase(),
        "%ff",
    ] {
        let path = format!("/v1/claims/{id}");
        let answer = raw(
            at.address(),
            &request("PUT", &path, &[("Fencelock-Key", secret)], body),
        )
        .await;
        answer.is_problem(400, "invalid");
    }
    assert_eq!(look(&at, "a").await["token"], token);
    let _ = ClaimIds::new();
}

#[tokio::test]
async fn unknown_paths_and_methods_have_different_problems() {
    let at = one().await;
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/store/",
        "/v2/store",
        "/v1/claims/a/b/c",
        "/V1/store",
    ] {
        ask(&at, "GET", path, "").await.is_problem(404, "not-found");
    }
    for (method, path, allowed) in [
        ("POST", "/v1/store", "GET,HEAD"),
        ("DELETE", "/v1/claims", "POST"),
        ("GET", "/v1/renewals", "POST"),
        ("TRACE", "/v1/lock", "GET,HEAD"),
        ("GET", "/v1/claims/00000000000000000000000000000000", "PUT"),
    ] {
        let refused = ask(&at, method, path, "").await;
        refused.is_problem(405, "method-not-allowed");
        assert_eq!(refused.header("allow"), Some(allowed));
    }
}

#[tokio::test]
async fn a_body_must_say_that_it_is_json() {
    let (at, client) = (one().await, Client::new());
    let path = format!("/v1/claims/{}", client.claim());
    let put = async |media: &str| {
        let body = r#"{"name":"a"}"#;
        let secret = client.key.secret();
        let text = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nFencelock-Key: {secret}\r\n{media}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        raw(at.address(), text.as_bytes()).await
    };
    for media in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/jsonx\r\n",
        "Content-Type: multipart/form-data\r\n",
    ] {
        put(media).await.is_problem(415, "not-json");
    }
    put("Content-Type: application/json\r\nContent-Type: application/json\r\n")
        .await
        .is_problem(400, "invalid");
    put("Content-Type: Application/JSON; charset=utf-8\r\n")
        .await
        .is(200);
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let (at, client) = (one().await, Client::new());
    let fits = format!("{{\"name\":\"a\"{}}}", " ".repeat((16 << 10) - 12));
    let key = [("Fencelock-Key", client.key.secret())];
    let put = |body: &str| request("PUT", &format!("/v1/claims/{}", client.claim()), &key, body);
    raw(at.address(), &put(&fits)).await.is(200);
    raw(at.address(), &put(&format!("{fits} ")))
        .await
        .is_problem(413, "too-large");
    let chunked = format!(
        "PUT /v1/claims/{} HTTP/1.1\r\nHost: localhost\r\nFencelock-Key: {}\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n8000\r\n{}\r\n0\r\n\r\n",
        client.claim(),
        client.key.secret(),
        " ".repeat(0x8000)
    );
    raw(at.address(), chunked.as_bytes())
        .await
        .is_problem(413, "too-large");
    let long = "n".repeat(4096);
    ask(&at, "GET", &format!("/v1/lock?name={long}"), "")
        .await
        .is_problem(413, "too-large");
    let many: Vec<(String, String)> = (0..70)
        .map(|n| (format!("X-{n}"), "1".to_owned()))
        .collect();
    let many: Vec<(&str, &str)> = many
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    raw(at.address(), &request("GET", "/v1/store", &many, ""))
        .await
        .is_problem(413, "too-large");
    let wide = "v".repeat(17 << 10);
    raw(
        at.address(),
        &request("GET", "/v1/store", &[("X-Wide", &wide)], ""),
    )
    .await
    .is_problem(413, "too-large");
    // The body of renewals may be longer.
    let spaces = format!("{{\"claims\":[]{}}}", " ".repeat(900 << 10));
    raw(
        at.address(),
        &request("POST", "/v1/renewals", &key, &spaces),
    )
    .await
    .is(200);
    let spaces = format!("{{\"claims\":[]{}}}", " ".repeat(1 << 20));
    raw(
        at.address(),
        &request("POST", "/v1/renewals", &key, &spaces),
    )
    .await
    .is_problem(413, "too-large");
}

#[tokio::test]
async fn a_slow_body_or_head_ends_the_connection() {
    let mut config = Config::default();
    config.limits.body_timeout = Duration::from_millis(300);
    config.limits.header_timeout = Duration::from_millis(300);
    let memory = std::sync::Arc::new(fencelock_core::Memory::new());
    let (at, client) = (replica_with(memory, config).await, Client::new());
    let bytes = client.bytes(
        "PUT",
        &format!("/v1/claims/{}", client.claim()),
        &json!({"name": "a"}),
    );
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    stream.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    let refused = answer(&mut stream).await;
    refused.is_problem(400, "invalid");
    assert_eq!(refused.header("connection"), Some("close"));
    // Half a head: the service closes the connection.
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    stream.write_all(&bytes[..20]).await.unwrap();
    let mut rest = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    let end = tokio::time::timeout(Duration::from_secs(20), end).await;
    end.expect("the connection stays open").unwrap();
}

/// Each head has its own time. The idle time of a connection does not count.
#[tokio::test]
async fn a_slow_head_ends_a_connection_that_was_of_use_before() {
    let mut config = Config::default();
    config.limits.header_timeout = Duration::from_millis(300);
    let memory = std::sync::Arc::new(fencelock_core::Memory::new());
    let (at, client) = (replica_with(memory, config).await, Client::new());
    let path = format!("/v1/claims/{}", client.claim());
    let take = client.bytes("PUT", &path, &json!({"name": "a"}));
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    for _ in 0..2 {
        stream.write_all(&take).await.unwrap();
        answer(&mut stream).await.is(200);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    // A head in two parts that arrives in time.
    stream.write_all(&take[..20]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.write_all(&take[20..]).await.unwrap();
    answer(&mut stream).await.is(200);
    // On one connection nothing more arrives, on the other one a byte at a time.
    let mut other = TcpStream::connect(at.address()).await.unwrap();
    other.write_all(&take).await.unwrap();
    answer(&mut other).await.is(200);
    stream.write_all(&take[..20]).await.unwrap();
    let slowly = async {
        for byte in take.iter().cycle() {
            if other.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut rest = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    let both = async { tokio::join!(slowly, end) };
    let both = tokio::time::timeout(Duration::from_secs(20), both).await;
    let (_, end) = both.expect("a connection stays open");
    end.unwrap();
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_and_an_idle_one_stays() {
    let mut config = Config::default();
    config.limits.header_timeout = Duration::from_millis(300);
    let memory = std::sync::Arc::new(fencelock_core::Memory::new());
    let (at, client) = (replica_with(memory, config).await, Client::new());
    let mut idle = TcpStream::connect(at.address()).await.unwrap();
    let take = |id| {
        let path = format!("/v1/claims/{id}");
        client.bytes("PUT", &path, &json!({"name": "a"}))
    };
    let id = client.claim();
    idle.write_all(&take(id)).await.unwrap();
    answer(&mut idle).await.is(200);
    let mut silent = TcpStream::connect(at.address()).await.unwrap();
    let mut rest = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut rest);
    let end = tokio::time::timeout(Duration::from_secs(20), end).await;
    end.expect("the connection stays open").unwrap();
    // The other connection has been silent for longer by now.
    idle.write_all(&take(id)).await.unwrap();
    answer(&mut idle).await.is(200);
}

#[tokio::test]
async fn bytes_that_are_not_http_do_no_harm() {
    let (at, client) = (one().await, Client::new());
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        vec![0; 100_000],
        vec![b'A'; 200_000],
    ] {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
    }
    client.take(&at, client.claim(), "a").await;
}

#[tokio::test]
async fn no_header_can_be_injected() {
    let (at, client) = (one().await, Client::new());
    let evil = "a\r\nSet-Cookie: evil=1\r\n\r\n";
    let refused = client.put(&at, client.claim(), json!({"name": evil})).await;
    refused.is_problem(400, "invalid");
    assert_eq!(refused.header("set-cookie"), None);
    let encoded = "a%0d%0aSet-Cookie:%20evil=1";
    for path in [format!("/v1/lock?name={encoded}"), format!("/{encoded}")] {
        let refused = ask(&at, "GET", &path, "").await;
        assert!(matches!(refused.status, 400 | 404), "{refused:?}");
        assert_eq!(refused.header("set-cookie"), None);
        assert!(!refused.text.contains("\r\n"));
    }
    let _: Value = look(&at, "a").await;
}
