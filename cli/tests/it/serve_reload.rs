//! What `serve` does at its start and on SIGHUP, as its operator sees it.

use rustix::process::Signal;

use crate::fixture::{Fixture, until};
use crate::service::Service;

/// A file with one principal, who may do everything, and the header of a request of theirs.
fn principal(fixture: &Fixture, name: &str) -> (String, String) {
    let printed = fixture.run(&["serve", "token", name]);
    let (token, principal) = printed.out.split_once('\n').unwrap();
    let all = principal.replace("[\"take\", \"look\"]", "[\"take\", \"look\", \"evict\"]");
    (all, format!("Authorization: Bearer {token}"))
}

/// Waits for the answer to a SIGHUP: what the service has said since.
fn reload(fixture: &Fixture, service: &Service, ends: &str) -> String {
    let before = fixture.read("serve").len();
    service.running().signal(Signal::HUP);
    until("it answers the SIGHUP", || {
        fixture.read("serve")[before..].contains(ends)
    });
    fixture.read("serve")[before..].to_owned()
}

/// An empty file may be one that is being written. Nobody outside may be let in by it, whatever else the service was told.
#[test]
fn a_file_without_principals_takes_none_away() {
    let fixture = Fixture::new();
    let (text, known) = principal(&fixture, "billing");
    for options in [&["--insecure"][..], &[]] {
        std::fs::write(fixture.path("serve.toml"), &text).unwrap();
        let words = [options, &["--config", "serve.toml"]].concat();
        let service = Service::start(&fixture, &words);
        let take = |header: &str| {
            let body = r#"{"name":"a","ttl_ms":100,"wait_ms":5000}"#;
            service.ask("POST", "/v1/claims", &[header], body).status
        };
        assert_eq!((take("X: nobody"), take(&known)), (401, 201));
        std::fs::write(fixture.path("serve.toml"), "").unwrap();
        let said = reload(&fixture, &service, "earlier principals");
        assert!(said.contains("it names no principal"), "{said}");
        assert_eq!((take("X: nobody"), take(&known)), (401, 201));
        // Nor at the next time.
        reload(&fixture, &service, "earlier principals");
        assert_eq!(take("X: nobody"), 401);
    }
}

/// Principals that came with a SIGHUP are not taken away by an empty file either.
#[test]
fn principals_of_a_reload_stay_too() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("serve.toml"), "").unwrap();
    let service = Service::start(&fixture, &["--config", "serve.toml"]);
    let store = || service.ask("GET", "/v1/store", &[], "").status;
    assert_eq!(store(), 200);
    let (text, _) = principal(&fixture, "billing");
    std::fs::write(fixture.path("serve.toml"), text).unwrap();
    reload(&fixture, &service, "reloaded");
    assert_eq!(store(), 401);
    std::fs::write(fixture.path("serve.toml"), "").unwrap();
    reload(&fixture, &service, "earlier principals");
    assert_eq!(store(), 401);
}

#[test]
fn an_audit_log_that_cannot_be_opened_again_is_reported() {
    let fixture = Fixture::new();
    let (text, known) = principal(&fixture, "billing");
    std::fs::create_dir(fixture.path("logs")).unwrap();
    let log = fixture.path("logs/audit.jsonl");
    let text = format!("[serve.audit]\nfile = {log:?}\n{text}");
    std::fs::write(fixture.path("serve.toml"), text).unwrap();
    let service = Service::start(&fixture, &["--config", "serve.toml"]);
    let said = reload(&fixture, &service, "reloaded principals");
    assert!(!said.contains("audit log"), "{said}");

    std::fs::rename(fixture.path("logs"), fixture.path("old")).unwrap();
    let said = reload(&fixture, &service, "reloaded principals");
    let warning = "warning: the audit log cannot be opened again, and its earlier file goes on";
    assert!(said.contains(warning) && said.contains(&log), "{said}");
    std::fs::create_dir_all(&log).unwrap();
    let said = reload(&fixture, &service, "reloaded principals");
    assert!(said.contains(warning) && said.contains(&log), "{said}");
    // Evictions are still written, to the earlier file.
    let taken = service.ask("POST", "/v1/claims", &[&known], r#"{"name":"a"}"#);
    let token = &taken.body["token"];
    let evict = format!(r#"{{"name":"a","token":{token},"how":"release"}}"#);
    let evicted = service.ask("POST", "/v1/evict", &[&known], &evict);
    assert_eq!(evicted.status, 200, "{evicted:?}");
    assert!(fixture.read("old/audit.jsonl").contains("\"evict\""));
}

/// Each connection is a descriptor, and the usual soft limit is 1024.
#[test]
fn it_raises_its_soft_limit_of_descriptors() {
    let fixture = Fixture::new();
    for (hard, warns) in [(400, true), (700, false)] {
        std::fs::write(
            fixture.path("serve.toml"),
            "[serve.limits]\nconnections = 400\n",
        )
        .unwrap();
        let limits = format!("ulimit -S -n 100; ulimit -H -n {hard}");
        let words = ["serve", "--listen", "127.0.0.1:0", "--config", "serve.toml"];
        let service = Service::run_after(&fixture, &limits, &words);
        let pid = service.running().pid();
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let soft = files.unwrap().split_whitespace().nth(3).unwrap().to_owned();
        assert_eq!(soft, hard.to_string(), "{limits}");
        let said = fixture.read("serve");
        let warning = format!("may have {hard} files open");
        assert_eq!(said.contains(&warning), warns, "{said}");
    }
}
