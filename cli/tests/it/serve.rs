//! `serve`, as its operator and plain clients see it.

use fencelock_testbed::Port;
use rustix::process::Signal;
use serde_json::json;

#[cfg(any(feature = "tls", feature = "etcd", feature = "redis"))]
use crate::fixture::until;
use crate::fixture::{Fixture, finish};
use crate::service::Service;

#[test]
fn a_plain_client_takes_and_releases() {
    let fixture = Fixture::new();
    let service = Service::start(&fixture, &[]);
    let store = service.ask("GET", "/v1/store", &[], "");
    assert_eq!(
        (store.status, &store.body["engine"]),
        (200, &json!("sqlite"))
    );
    let body = r#"{"name":"nightly","owner":"web1"}"#;
    let taken = service.ask("POST", "/v1/claims", &[], body);
    assert_eq!(taken.status, 201, "{taken:?}");
    // Clients without the service see the same lock.
    assert_eq!(fixture.show("nightly")["token"], taken.body["token"]);
    let second = service.ask("POST", "/v1/claims", &[], body);
    assert_eq!(second.status, 409, "{second:?}");
    assert!(
        second.body["type"].as_str().unwrap().ends_with("held"),
        "{second:?}"
    );
    let (claim, key) = (&taken.body["claim"], taken.body["key"].as_str().unwrap());
    let path = format!("/v1/claims/{}/release", claim.as_str().unwrap());
    let wrong = format!("Fencelock-Key: {}", "x".repeat(43));
    let refused = service.ask("POST", &path, &[&wrong], r#"{"name":"nightly"}"#);
    assert_eq!(refused.status, 403, "{refused:?}");
    let key = format!("Fencelock-Key: {key}");
    let released = service.ask("POST", &path, &[&key], r#"{"name":"nightly"}"#);
    assert_eq!(
        (released.status, &released.body["released"]),
        (200, &json!("released"))
    );
    assert!(fixture.show("nightly")["token"].is_null());
}

#[test]
fn a_signal_drains_it() {
    let fixture = Fixture::new();
    for (name, signal) in [("term", Signal::TERM), ("int", Signal::INT)] {
        let service = Service::start(&fixture, &["--drain", "5s"]);
        let body = format!(r#"{{"name":"{name}"}}"#);
        assert_eq!(service.ask("POST", "/v1/claims", &[], &body).status, 201);
        service.running().signal(signal);
        let ran = service.end();
        assert_eq!(ran.code, 0, "{}", fixture.read("serve"));
        assert!(fixture.read("serve").contains("draining"));
        // The hold of a client stays its own.
        assert!(!fixture.show(name)["token"].is_null());
    }
}

#[cfg(feature = "redis")]
#[test]
fn warnings_are_lines_on_standard_error() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    // A replica may stand still for half of that.
    let fixture = Fixture::on(format!("{}?claim-window=2s", redis.url()));
    let service = Service::start(&fixture, &[]);
    service.running().signal(Signal::STOP);
    std::thread::sleep(std::time::Duration::from_secs(3));
    service.running().signal(Signal::CONT);
    let warned = || {
        fixture
            .read("serve")
            .contains("WARN this process stood still")
    };
    until("the warning", warned);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let fixture = Fixture::new();
    let taken = Port::free().unwrap();
    let taken = format!("127.0.0.1:{}", taken.number());
    let listener = std::net::TcpListener::bind(&taken).unwrap();
    for (words, code, said) in [
        (&["serve", "--listen", "nowhere"][..], 64, "nowhere"),
        (&["serve", "--listen", "0.0.0.0:0"], 78, "--insecure"),
        (&["serve", "--listen", &taken], 78, taken.as_str()),
        (&["serve", "--config", "missing.toml"], 78, "missing.toml"),
        (&["serve", "--drain", "soon"], 64, "soon"),
    ] {
        let ran = fixture.run(words);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (code, ""),
            "{words:?} {ran:?}"
        );
        assert!(ran.err.contains(said), "{words:?} {ran:?}");
    }
    drop(listener);
    std::fs::write(fixture.path("bad.toml"), "[serve]\nlisten_on = 1\n").unwrap();
    let ran = fixture.run(&["serve", "--config", "bad.toml"]);
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.err.contains("listen_on"), "{ran:?}");
}

#[test]
fn a_printed_token_can_be_used() {
    let fixture = Fixture::new();
    let printed = fixture.run(&["serve", "token", "billing"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let (token, config) = printed.out.split_once('\n').unwrap();
    assert!(token.starts_with("flk_") && !config.contains(token));
    std::fs::write(fixture.path("serve.toml"), config).unwrap();
    let service = Service::start(&fixture, &["--config", "serve.toml"]);
    let body = r#"{"name":"billing/run"}"#;
    let nobody = service.ask("POST", "/v1/claims", &[], body);
    assert_eq!(nobody.status, 401, "{nobody:?}");
    let bearer = format!("Authorization: Bearer {token}");
    let taken = service.ask("POST", "/v1/claims", &[&bearer], body);
    assert_eq!(taken.status, 201, "{taken:?}");
    assert!(!fixture.read("serve").contains(token));
}

/// A file without principals may be a file that is being written. It must not open the service to strangers.
#[cfg(feature = "tls")]
#[test]
fn principals_that_are_gone_from_the_file_stay_if_other_machines_reach_the_service() {
    let fixture = Fixture::new();
    let printed = fixture.run(&["serve", "token", "billing"]);
    let (token, principal) = printed.out.split_once('\n').unwrap();
    let tls = format!(
        "[serve.tls]\ncert = {:?}\nkey = {:?}\n",
        fixture.path("server.crt"),
        fixture.path("server.key")
    );
    let mut openssl = std::process::Command::new("openssl");
    openssl
        .args(
            "req -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split(' '),
        )
        .args("-subj /CN=localhost -keyout server.key -out server.crt".split(' '))
        .current_dir(fixture.path(""));
    assert_eq!(finish(openssl).code, 0);
    let file = fixture.path("serve.toml");
    std::fs::write(&file, format!("{tls}{principal}")).unwrap();
    // In this form the address counts as one that other machines can reach, but none can.
    let address = "[::ffff:127.0.0.1]:0";
    let words = ["serve", "--listen", address, "--config", "serve.toml"];
    let service = Service::run(&fixture, &words);
    let port = service.address().rsplit(':').next().unwrap().to_owned();
    let take = |bearer: &str| {
        let mut curl = std::process::Command::new("curl");
        curl.args("-sk -o /dev/null -w %{http_code} -H Content-Type:application/json".split(' '))
            .args(["-H", bearer, "-d", r#"{"name":"a","ttl_ms":100}"#])
            .arg(format!("https://127.0.0.1:{port}/v1/claims"));
        finish(curl).out
    };
    let known = format!("Authorization: Bearer {token}");
    assert_eq!(take("X: nobody"), "401");
    std::fs::write(&file, tls).unwrap();
    service.running().signal(Signal::HUP);
    until("it says why not", || {
        let said = fixture.read("serve");
        said.contains("name principals") && said.contains("earlier principals")
    });
    assert_eq!(take("X: nobody"), "401");
    assert_eq!(take(&known), "201");
}

#[test]
fn clients_may_speak_http_2() {
    let fixture = Fixture::new();
    let service = Service::start(&fixture, &["--drain", "10s"]);
    let take = |name: &str| {
        let mut curl = std::process::Command::new("curl");
        curl.args("-s --http2-prior-knowledge -o /dev/null -w".split(' '))
            .args(["%{http_version}:%{http_code}", "-H"])
            .args(["Content-Type: application/json", "-d"])
            .arg(format!(r#"{{"name":"{name}","wait_ms":20000}}"#))
            .arg(format!(
                "{}/v1/claims",
                service.store().replace("fencelock+", "")
            ));
        curl
    };
    assert_eq!(finish(take("a")).out, "2:201");
    // The end of the replica answers waiting requests, and then the connection ends.
    let mut waits = take("a");
    waits.stdout(std::process::Stdio::piped());
    let waits = waits.spawn().unwrap();
    fixture.await_waiters("a", 1);
    service.running().signal(Signal::TERM);
    let told = waits.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8(told).unwrap(), "2:503");
    assert_eq!(service.end().code, 0);
}

/// On etcd a claim belongs to the replica that took it.
#[cfg(feature = "etcd")]
#[test]
fn holds_that_end_with_it_show_in_its_exit_code() {
    let etcd = fencelock_testbed::Etcd::start().unwrap();
    let fixture = Fixture::on(etcd.url());
    for (name, code) in [(None, 0), (Some("a"), 75)] {
        let service = Service::start(&fixture, &["--drain", "1s"]);
        if let Some(name) = name {
            let body = format!(r#"{{"name":"{name}"}}"#);
            assert_eq!(service.ask("POST", "/v1/claims", &[], &body).status, 201);
        }
        service.running().signal(Signal::TERM);
        assert_eq!(service.end().code, code, "{}", fixture.read("serve"));
        // Its client may believe in it until its lease is over, so nobody else may get the lock before.
        assert_eq!(fixture.show("a")["token"].is_null(), name.is_none());
    }
    assert!(fixture.read("serve").contains("1 holds ended"));
}

/// The second signal ends the replica at once.
#[cfg(feature = "etcd")]
#[test]
fn holds_that_end_with_a_second_signal_show_in_its_exit_code() {
    let etcd = fencelock_testbed::Etcd::start().unwrap();
    let fixture = Fixture::on(etcd.url());
    for (name, signal) in [("a", Signal::TERM), ("b", Signal::INT)] {
        let service = Service::start(&fixture, &["--drain", "100s"]);
        let body = format!(r#"{{"name":"{name}"}}"#);
        assert_eq!(service.ask("POST", "/v1/claims", &[], &body).status, 201);
        service.running().signal(signal);
        until("it drains", || fixture.read("serve").contains("draining"));
        service.running().signal(signal);
        assert_eq!(service.end().code, 75, "{}", fixture.read("serve"));
        assert!(fixture.read("serve").contains("1 holds ended"));
        assert!(!fixture.show(name)["token"].is_null());
    }
}

/// On etcd a replica that is about to end asks the holders to go.
#[cfg(feature = "etcd")]
#[test]
fn a_command_learns_that_its_replica_is_about_to_end() {
    let etcd = fencelock_testbed::Etcd::start().unwrap();
    let fixture = Fixture::on(etcd.url());
    let service = Service::start(&fixture, &["--drain", "15s"]);
    let client = Fixture::on(service.store());
    let mut run = client.start(&["run", "--ttl", "3s", "a", "--", "sleep", "60"]);
    fixture.await_holder("a");
    service.running().signal(Signal::TERM);
    run.says("a replica of the lock service that is about to end");
    assert_eq!(run.end().code, 128 + Signal::TERM.as_raw());
    // Nothing was left.
    assert_eq!(service.end().code, 0, "{}", fixture.read("serve"));
    assert!(fixture.show("a")["token"].is_null());
}

/// The first block of the page starts the service. The other blocks are those of one client.
#[cfg(feature = "redis")]
#[test]
fn the_commands_of_the_page_run() {
    const PAGE: &str = include_str!("../../../docs/service.md");
    let blocks = PAGE.split("```sh\n").skip(1);
    let mut blocks = blocks.map(|block| block.split("```").next().unwrap());
    let (build, start) = blocks.next().unwrap().split_once('\n').unwrap();
    assert_eq!(build, "cargo build --release --features serve");
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = crate::fixture::patient(&redis);
    let start = start.replace("redis://127.0.0.1:6379", &url);
    let mut words = start.split_whitespace();
    assert_eq!(words.next(), Some("fencelock"));
    let words: Vec<&str> = words
        .map(|word| match word {
            "127.0.0.1:7420" => "127.0.0.1:0",
            word => word,
        })
        .collect();
    // Another store than that of the page would do nothing.
    let fixture = Fixture::on("memory:".to_owned());
    let service = Service::run(&fixture, &words);
    let shell = |block: &str, grant: &serde_json::Value| {
        let mut command = std::process::Command::new("bash");
        let text = |member: &str| grant[member].as_str().unwrap_or_default().to_owned();
        command
            .args(["-euo", "pipefail", "-c"])
            .arg(block.replace("127.0.0.1:7420", service.address()))
            .env("CLAIM", text("claim"))
            .env("KEY", text("key"));
        let ran = finish(command);
        serde_json::from_str::<serde_json::Value>(&ran.out)
            .unwrap_or_else(|error| panic!("{block}\n{error}: {ran:?}"))
    };
    let taken = shell(blocks.next().unwrap(), &json!({}));
    assert!(taken["key"].is_string(), "{taken}");
    let released = shell(blocks.next().unwrap(), &taken);
    assert_eq!(released["released"], "released", "{released}");
    let shown = shell(blocks.next().unwrap(), &taken);
    assert_eq!(
        (&shown["name"], &shown["holders"]),
        (&json!("nightly"), &json!([]))
    );
    assert_eq!(blocks.next(), None);
}
