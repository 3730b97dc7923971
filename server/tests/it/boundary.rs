//! Who may reach the service at all. Loopback is no protection: a web page in a browser can reach it.

use std::sync::Arc;

use fencelock_core::Memory;
use fencelock_server::{Config, Server};

use crate::client::{Answer, one, raw, replica_with};

async fn get(at: &Server, headers: &str) -> Answer {
    let text = format!("GET /v1/store HTTP/1.1\r\n{headers}\r\n");
    raw(at.address(), text.as_bytes()).await
}

#[tokio::test]
async fn the_host_must_be_this_service() {
    let at = one().await;
    let port = at.address().port();
    for host in [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        &format!("127.0.0.1:{port}"),
        "127.9.9.9",
        "[::1]:80",
    ] {
        get(&at, &format!("Host: {host}\r\n")).await.is(200);
    }
    for host in [
        "evil.example",
        "evil.example:7420",
        "localhost.evil.example",
        "10.0.0.1",
        "127.0.0.1.evil.example",
    ] {
        get(&at, &format!("Host: {host}\r\n"))
            .await
            .is_problem(403, "forbidden");
    }
    for host in [
        "",
        "Host: \r\n",
        "Host: a b\r\n",
        "Host: u@localhost\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
    ] {
        get(&at, host).await.is_problem(400, "invalid");
    }
    // The host of an absolute URL counts, not the header.
    let text = "GET http://evil.example/v1/store HTTP/1.1\r\nHost: localhost\r\n\r\n";
    raw(at.address(), text.as_bytes())
        .await
        .is_problem(403, "forbidden");
}

#[tokio::test]
async fn an_operator_may_name_more_hosts() {
    let mut config = Config::default();
    config.advertise = Some("https://gw-1.example:7420".to_owned());
    config.hosts = vec!["locks.example".to_owned()];
    let at = replica_with(Arc::new(Memory::new()), config).await;
    for host in ["gw-1.example", "GW-1.example:7420", "locks.example:80"] {
        let answer = get(&at, &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.is(200)["advertise"], "https://gw-1.example:7420");
    }
    get(&at, "Host: gw-2.example\r\n")
        .await
        .is_problem(403, "forbidden");
}

#[tokio::test]
async fn pages_of_other_sites_may_do_nothing() {
    let at = one().await;
    for origin in [
        "http://evil.example",
        "null",
        "http://localhost:1",
        "https://localhost.evil.example",
        "file://",
        "x",
    ] {
        let answer = get(&at, &format!("Host: localhost\r\nOrigin: {origin}\r\n")).await;
        answer.is_problem(403, "forbidden");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    get(&at, "Host: localhost:80\r\nOrigin: http://localhost:80\r\n")
        .await
        .is(200);
    let preflight = "OPTIONS /v1/claims HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\
                     Access-Control-Request-Method: POST\r\n\r\n";
    raw(at.address(), preflight.as_bytes())
        .await
        .is_problem(403, "forbidden");
}
