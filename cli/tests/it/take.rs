//! `take`, `renew` and `release --grant`: one hold, several processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use fencelock_testbed::{Proxy, Redis};
use serde_json::Value;

use crate::fixture::{Fixture, Ran, finish, until};

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn take(fixture: &Fixture, options: &[&str]) -> Value {
    let mut words = vec!["take", "a", "--grant", "grant", "-n"];
    words.extend(options);
    let ran = fixture.run(&words);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    json(&ran)
}

fn renew(fixture: &Fixture) -> Ran {
    fixture.run(&["renew", "--grant", "grant"])
}

fn release(fixture: &Fixture) -> Ran {
    fixture.run(&["release", "--grant", "grant"])
}

/// Each of these commands meets the store anew, so they wait for it at the beginning as well.
#[test]
fn a_grant_is_renewed_and_released_once_its_store_is_back() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.port()).unwrap();
    let url = format!("redis://127.0.0.1:{}?connect-timeout=300ms", proxy.port());
    let fixture = Fixture::on(url);
    take(&fixture, &["--ttl", "1h"]);
    for word in ["renew", "release"] {
        proxy.refuse(true).unwrap();
        proxy.reset();
        let mut running = fixture.start(&[word, "--grant", "grant"]);
        std::thread::sleep(Duration::from_secs(1));
        assert!(running.runs());
        proxy.refuse(false).unwrap();
        let ran = running.end();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{word}: {ran:?}");
    }
}

/// One process takes, another one renews, and a third one releases, on any store. `behind` is the store itself.
fn hands_a_hold_on(fixture: &Fixture, behind: &Fixture) {
    let taken = take(fixture, &["--ttl", "1h", "--label", "by hand"]);
    assert_eq!(
        (&taken["ttl_ms"], &taken["label"]),
        (&3_600_000.into(), &"by hand".into())
    );
    assert!(taken["key"].is_null());
    let valid = taken["valid_ms"].as_u64().unwrap();
    assert!(valid > 3_500_000 && valid <= 3_564_000, "{taken}");
    let written: Value = serde_json::from_str(&fixture.read("grant")).unwrap();
    let key = written["key"].as_str().unwrap();
    assert!(key.len() >= 43);
    assert_eq!(written["claim"], taken["claim"]);
    let mode = fs::metadata(fixture.path("grant")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    // The store keeps it for the same time.
    let shown = behind.show("a");
    assert_eq!(shown["token"], taken["token"]);
    assert!(
        shown["holders"][0]["ttl_left_ms"].as_u64().unwrap() > 3_500_000,
        "{shown}"
    );
    let refused = fixture.run(&["take", "-n", "a"]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{refused:?}");
    let refused = fixture.run(&["take", "-w", "300ms", "-E", "9", "a"]);
    assert_eq!((refused.code, refused.out.as_str()), (9, ""), "{refused:?}");
    let renewed = renew(fixture);
    assert_eq!((renewed.code, renewed.err.as_str()), (0, ""), "{renewed:?}");
    let renewed = json(&renewed);
    assert_eq!(renewed["token"], taken["token"]);
    let valid = renewed["valid_ms"].as_u64().unwrap();
    assert!(valid > 3_500_000 && valid <= 3_564_000, "{renewed}");
    let sequencer = taken["sequencer"].as_str().unwrap();
    assert_eq!(fixture.run(&["check", sequencer]).code, 0);
    let released = release(fixture);
    assert_eq!(
        (released.code, released.err.as_str()),
        (0, ""),
        "{released:?}"
    );
    assert!(behind.show("a")["token"].is_null());
    // Both come too late.
    for again in [release(fixture), renew(fixture)] {
        assert_eq!((again.code, again.out.as_str()), (75, ""), "{again:?}");
        assert!(again.err.contains("lock a was lost"), "{again:?}");
        assert!(!again.err.contains(key), "{again:?}");
    }
    // The old grant does not affect the next hold.
    fs::copy(fixture.path("grant"), fixture.path("old")).unwrap();
    let next = take(fixture, &[]);
    assert!(next["token"].as_u64() > taken["token"].as_u64());
    for word in ["renew", "release"] {
        assert_eq!(fixture.run(&[word, "--grant", "old"]).code, 75);
    }
    assert_eq!(behind.show("a")["token"], next["token"]);
    assert_eq!(release(fixture).code, 0);
}

#[test]
fn on_a_file() {
    let fixture = Fixture::new();
    hands_a_hold_on(&fixture, &fixture);
}

#[cfg(feature = "redis")]
#[test]
fn on_redis() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let fixture = Fixture::on(crate::fixture::patient(&redis));
    hands_a_hold_on(&fixture, &fixture);
}

#[cfg(all(feature = "http", feature = "serve"))]
#[test]
fn through_the_service() {
    let behind = Fixture::new();
    let service = crate::service::Service::start(&behind, &[]);
    let fixture = Fixture::on(service.store());
    hands_a_hold_on(&fixture, &behind);
    // The grant belongs to the store, so it continues without the service.
    let taken = take(&fixture, &["--shared"]);
    assert_eq!(taken["mode"], "shared");
    let path = fixture.path("grant");
    assert_eq!(behind.run(&["renew", "--grant", &path]).code, 0);
    assert_eq!(release(&fixture).code, 0);
    assert!(!behind.read("serve").contains("key"));
}

#[cfg(all(feature = "http", feature = "serve", feature = "redis"))]
#[test]
fn through_the_service_before_redis() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let behind = Fixture::on(crate::fixture::patient(&redis));
    let service = crate::service::Service::start(&behind, &[]);
    hands_a_hold_on(&Fixture::on(service.store()), &behind);
}

/// There a claim belongs to one replica, which the grant names.
#[cfg(all(feature = "http", feature = "serve", feature = "etcd"))]
#[test]
fn through_two_replicas_before_etcd() {
    use crate::service::Service;

    let etcd = fencelock_testbed::Etcd::builder().start().unwrap();
    let behind = [Fixture::on(etcd.url()), Fixture::on(etcd.url())];
    let replicas = behind.each_ref().map(|store| Service::start(store, &[]));
    let hosts = replicas
        .each_ref()
        .map(|replica| replica.store().replace("fencelock+http://", ""));
    // It draws which replica is asked first.
    let fixture = Fixture::on(format!("fencelock+http://{}", hosts.join(",")));
    hands_a_hold_on(&fixture, &behind[0]);
    take(&fixture, &["--ttl", "20s"]);
    let grant: Value = serde_json::from_str(&fixture.read("grant")).unwrap();
    let (_, home) = grant["home"].as_str().unwrap().split_once('@').unwrap();
    let home = hosts.iter().position(|host| host == home).unwrap();
    for replica in replicas.into_iter().skip(home).take(1) {
        drop(replica);
    }
    // The other replica cannot go on with it, and says nothing about it.
    let renewed = fixture.run(&["renew", "--grant", "grant", "-w", "1s"]);
    assert_eq!(renewed.code, 69, "{renewed:?}");
    assert!(!behind[0].show("a")["token"].is_null());
}

#[test]
fn without_a_file_the_key_is_printed() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["take", "b", "--grant", "-"]);
    assert!(json(&ran)["key"].is_string());
    assert!(!fs::exists(fixture.path("-")).unwrap());
    let ran = fixture.run(&["take", "a"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(json(&ran)["key"].is_string());
    for (words, code) in [
        (["renew", "--grant", "-"], 0),
        (["release", "--grant", "-"], 0),
        (["release", "--grant", "-"], 75),
    ] {
        fs::write(fixture.path("in"), &ran.out).unwrap();
        let mut command = fixture.command(&words);
        command.stdin(Stdio::from(fs::File::open(fixture.path("in")).unwrap()));
        let ended = finish(command);
        assert_eq!(ended.code, code, "{words:?} {ended:?}");
    }
}

#[test]
fn what_has_ended_is_lost() {
    let fixture = Fixture::new();
    take(&fixture, &["--ttl", "200ms"]);
    until("its lease has ended", || {
        fixture.show("a")["token"].is_null()
    });
    for late in [renew(&fixture), release(&fixture)] {
        assert_eq!((late.code, late.out.as_str()), (75, ""), "{late:?}");
        assert!(late.err.contains("lock a was lost"), "{late:?}");
    }
    // By force, without a grant.
    let token = take(&fixture, &[])["token"].to_string();
    assert_eq!(fixture.run(&["release", "a", "--token", &token]).code, 0);
    assert_eq!(renew(&fixture).code, 75);
}

/// The first request to release had no answer, but it changed nothing: the lock was another client's by then.
#[test]
fn a_release_that_comes_too_late_is_a_loss_also_if_it_is_repeated() {
    let fixture = Fixture::new();
    take(&fixture, &["--ttl", "200ms"]);
    until("its lease has ended", || {
        fixture.show("a")["token"].is_null()
    });
    let other = fixture.run(&["take", "a", "--grant", "other", "-n"]);
    assert_eq!(other.code, 0, "{other:?}");
    let file = rusqlite::Connection::open(fixture.path("locks.db")).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = format!("{}?response-timeout=300ms", fixture.store());
    let mut command = fixture.command(&["release", "--grant", "grant", "-w", "20"]);
    command.env("FENCELOCK_STORE", store);
    let running = crate::fixture::Running::start(command);
    // Its first request ends meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    file.execute_batch("ROLLBACK").unwrap();
    let late = running.end();
    assert_eq!(late.code, 75, "{late:?}");
}

#[test]
fn a_renewal_reports_a_request_to_release() {
    let fixture = Fixture::new();
    let token = take(&fixture, &[])["token"].to_string();
    let asked = fixture.run(&["release", "a", "--token", &token, "--ask"]);
    assert_eq!(asked.code, 0, "{asked:?}");
    let renewed = renew(&fixture);
    assert_eq!((renewed.code, &json(&renewed)["asked"]), (0, &true.into()));
}

#[test]
fn a_broken_grant_is_refused_and_not_repeated() {
    let fixture = Fixture::new();
    take(&fixture, &[]);
    let good = fixture.read("grant");
    let key = json(&Ran {
        code: 0,
        out: good.clone(),
        err: String::new(),
    });
    let key = key["key"].as_str().unwrap();
    for bad in [
        String::new(),
        good[..good.len() / 2].to_owned(),
        good.replace("\"key\"", "\"token\""),
        good.replace(key, &key.chars().rev().collect::<String>()),
        good.replace("\"ttl_ms\":30000", "\"ttl_ms\":1"),
        good.replace("\"ttl_ms\":30000", "\"ttl_ms\":99999999999999"),
        format!("\"{key}\""),
    ] {
        assert_ne!(bad, good);
        fs::write(fixture.path("grant"), &bad).unwrap();
        for refused in [renew(&fixture), release(&fixture)] {
            assert_eq!(
                (refused.code, refused.out.as_str()),
                (64, ""),
                "{bad} {refused:?}"
            );
            assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
            assert!(!refused.err.contains(&key[..10]), "{refused:?}");
        }
    }
    for file in ["missing", "."] {
        let refused = fixture.run(&["renew", "--grant", file]);
        assert_eq!(refused.code, 64, "{refused:?}");
    }
    assert!(!fixture.show("a")["token"].is_null());
}

#[test]
fn what_cannot_be_written_is_not_taken() {
    let fixture = Fixture::new();
    std::os::unix::fs::symlink("elsewhere", fixture.path("link")).unwrap();
    for file in ["no/such/folder", ".", "link", "/dev/null"] {
        let refused = fixture.run(&["take", "a", "--grant", file]);
        assert_eq!(refused.code, 64, "{refused:?}");
    }
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert!(!fs::exists(fixture.path("elsewhere")).unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = fixture.command(&["take", "a"]);
    command.stdout(writer);
    let ran = finish(command);
    assert_eq!(ran.code, 70, "{ran:?}");
    assert!(fixture.show("a")["token"].is_null());
}

/// The claim holds, but with another grant. So the old grant is lost, and the lock stays.
#[test]
fn a_grant_with_another_token_releases_nothing() {
    let fixture = Fixture::new();
    let taken = take(&fixture, &[]);
    let good = fixture.read("grant");
    let token = taken["token"].to_string();
    for bad in [
        good.replace(&format!(":{token},"), ":1,"),
        good.replace("\"exclusive\"", "\"shared\""),
    ] {
        assert_ne!(bad, good);
        fs::write(fixture.path("grant"), &bad).unwrap();
        let refused = release(&fixture);
        assert_eq!(refused.code, 75, "{bad} {refused:?}");
        assert_eq!(fixture.show("a")["token"], taken["token"]);
    }
    fs::write(fixture.path("grant"), &good).unwrap();
    assert_eq!(release(&fixture).code, 0);
}

/// Otherwise, a `take` inside a `run` of the same lock would hand out the hold of that `run`.
#[test]
fn a_part_of_another_hold_is_not_detached() {
    let fixture = Fixture::new();
    let take = format!("{} take a --grant grant", env!("CARGO_BIN_EXE_fencelock"));
    let ran = fixture.run(&["run", "a", "-c", &take]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.err.contains("fencelock run"), "{ran:?}");
    assert_eq!(fixture.read("grant"), "");
}

#[test]
fn memory_refuses() {
    refuses(&Fixture::on("memory:".to_owned()));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_refuses() {
    let etcd = fencelock_testbed::Etcd::builder().start().unwrap();
    refuses(&Fixture::on(etcd.url()));
}

fn refuses(fixture: &Fixture) {
    let refused = fixture.run(&["take", "a", "--grant", "grant"]);
    assert_eq!(
        (refused.code, refused.out.as_str()),
        (64, ""),
        "{refused:?}"
    );
    assert!(refused.err.contains("fencelock run"), "{refused:?}");
    assert_eq!(fixture.read("grant"), "");
    let like = Fixture::new();
    take(&like, &[]);
    for word in ["renew", "release"] {
        let refused = fixture.run(&[word, "--grant", &like.path("grant")]);
        assert_eq!(refused.code, 64, "{refused:?}");
    }
}
