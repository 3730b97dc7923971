//! `hold`, for scripts that do the work themselves.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Fixture, until};

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[test]
fn it_prints_the_grant_and_releases_when_its_input_ends() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--ttl", "20s", "a b"]);
    let granted = hold.json();
    assert_eq!(
        keys(&granted),
        ["mode", "name", "owner", "sequencer", "token", "ttl_ms"]
    );
    assert_eq!(
        (&granted["name"], &granted["mode"]),
        (&json!("a b"), &json!("exclusive"))
    );
    assert_eq!(granted["ttl_ms"], 20_000);
    let sequencer = granted["sequencer"].as_str().unwrap();
    assert!(sequencer.starts_with(&format!("fl1:x:{}:", granted["token"])));
    assert_eq!(fixture.run(&["check", sequencer]).code, 0);
    // Its input is ignored; only the end of the input counts.
    hold.type_in("anything\n");
    assert_eq!(fixture.show("a b")["token"], granted["token"]);
    hold.end_input();
    let ran = hold.end();
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    assert_eq!(fixture.run(&["check", sequencer]).code, 1);
    assert!(fixture.show("a b")["token"].is_null());
}

#[test]
fn it_releases_on_a_signal() {
    let fixture = Fixture::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut hold = fixture.start(&["hold", "a"]);
        hold.line();
        hold.signal(signal);
        until("it has ended", || !hold.runs());
        assert_eq!(hold.end().code, 0);
        assert!(fixture.show("a")["token"].is_null());
    }
}

#[test]
fn it_reports_a_loss() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--ttl", "3s", "a"]);
    let token = hold.json()["token"].to_string();
    assert_eq!(fixture.run(&["release", "a", "--token", &token]).code, 0);
    let lost = hold.json();
    assert_eq!(keys(&lost), ["lost", "reason"]);
    assert_eq!(lost["lost"], true);
    assert!(!lost["reason"].as_str().unwrap().is_empty());
    until("it has ended", || !hold.runs());
    assert_eq!(hold.end().code, 75);
}

#[test]
fn it_reports_a_loss_after_a_stop() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--ttl", "500ms", "a"]);
    let first = hold.json()["token"].as_u64().unwrap();
    hold.signal(Signal::STOP);
    let mut next = fixture.start(&["hold", "a"]);
    assert!(next.json()["token"].as_u64().unwrap() > first);
    hold.signal(Signal::CONT);
    assert_eq!(hold.json()["lost"], true);
    until("it has ended", || !hold.runs());
    assert_eq!(hold.end().code, 75);
    // The next holder is not affected.
    assert_eq!(fixture.show("a")["holders"].as_array().unwrap().len(), 1);
}

#[test]
fn it_holds_beyond_its_first_lease() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--ttl", "2400ms", "a"]);
    let token = &hold.json()["token"];
    std::thread::sleep(Duration::from_millis(3200));
    assert_eq!(&fixture.show("a")["token"], token);
    assert_eq!(hold.end().code, 0);
}

#[test]
fn it_ends_after_max_hold() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--max-hold", "200ms", "a"]);
    hold.line();
    let lost = hold.json();
    assert_eq!(lost["lost"], true);
    assert!(lost["reason"].as_str().unwrap().contains("--max-hold"));
    until("it has ended", || !hold.runs());
    assert_eq!(hold.end().code, 75);
    assert!(fixture.show("a")["token"].is_null());
}

#[test]
fn it_reports_a_request_to_release() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--ttl", "3s", "a"]);
    let token = hold.json()["token"].to_string();
    assert_eq!(
        fixture
            .run(&["release", "a", "--token", &token, "--ask"])
            .code,
        0
    );
    assert_eq!(hold.json(), json!({"asked": true}));
    // Its user decides whether to release.
    assert_eq!(fixture.show("a")["token"].to_string(), token);
    assert_eq!(hold.end().code, 0);
}

#[test]
fn without_a_reader_it_does_not_hold() {
    let fixture = Fixture::new();
    let mut command = fixture.command(&["hold", "a"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer);
    let ran = crate::fixture::finish(command);
    assert_eq!(ran.code, 70, "{}", ran.err);
    assert!(fixture.show("a")["token"].is_null());
}

#[cfg(feature = "redis")]
#[test]
fn it_reports_a_loss_that_only_the_release_finds() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let fixture = Fixture::on(crate::fixture::patient(&redis));
    // It renews only after ten seconds, and the store does not notify it of the deletion.
    let mut hold = fixture.start(&["hold", "--ttl", "30s", "a"]);
    hold.line();
    redis.command::<()>(&["DEL", "a"]).unwrap();
    hold.end_input();
    let lost = hold.json();
    assert_eq!(lost["lost"], true);
    let ran = hold.end();
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(ran.err.contains("lock a"), "{}", ran.err);
}
