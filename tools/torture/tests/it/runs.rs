//! Short runs on every kind of store that can be started here. The long ones are in docs/torture-results.md.

use std::fs;
use std::sync::Mutex;

use fencelock_testbed::Dir;
use fencelock_torture::history::{End, History, Rule};
use fencelock_torture::{Verdict, check};
use serde_json::Value;

use crate::torture;

/// A run with all faults.
fn run(kind: &str, seconds: u32) -> (History, Verdict) {
    let (time, seed) = (format!("{seconds}s"), seconds.to_string());
    let ran = torture(&["--start", kind, "--time", &time, "--seed", &seed, "--json"]);
    let (out, err) = (
        String::from_utf8(ran.stdout).unwrap(),
        String::from_utf8(ran.stderr).unwrap(),
    );
    let output: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"));
    let history: History = serde_json::from_value(output["history"].clone()).unwrap();
    let verdict = check(&history);
    let broken: Vec<String> = verdict.broken().map(ToString::to_string).collect();
    assert_eq!(broken, [""; 0], "{kind}, seed {seed}");
    assert_eq!(history.troubles, [""; 0], "{kind}, seed {seed}");
    assert_eq!(ran.status.code(), Some(0), "{kind}: {err}");
    // The run proves something only if enough has happened.
    println!(
        "{kind}: {} grants, {} faults",
        verdict.grants, verdict.faults
    );
    assert!(verdict.grants > 20, "{kind}: {} grants", verdict.grants);
    assert!(verdict.faults > 0, "{kind}: {} faults", verdict.faults);
    assert!(verdict.writes > 20, "{kind}: {} writes", verdict.writes);
    let released = history.attempts.iter().filter(|a| a.end == End::Released);
    assert!(released.count() > 10, "{kind}");
    (history, verdict)
}

#[test]
fn every_kind_of_store_keeps_its_promises() {
    let listed = torture(&["--list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let kinds = listed
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    let kinds: Vec<String> = kinds
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect();
    assert!(kinds.len() >= 15, "{kinds:?}");
    // Four at a time: they mostly wait.
    let queue = Mutex::new(kinds.iter());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(kind) = { queue.lock().unwrap().next() } {
                    run(kind, 5);
                }
            });
        }
    });
}

/// A run without faults keeps order, loses nothing, and refuses no write.
#[test]
fn without_faults_nothing_is_lost() {
    let ran = torture(&[
        "--start", "redis", "--faults", "none", "--time", "2s", "--grants", "2000", "--json",
    ]);
    assert_eq!(ran.status.code(), Some(0));
    let output: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let verdict = &output["verdict"];
    assert_eq!(verdict["faults"], 0, "{verdict}");
    assert!(verdict["grants"].as_u64().unwrap() > 100, "{verdict}");
    assert_eq!(verdict["violations"].as_array().unwrap().len(), 0);
}

/// A store that was not started here: only clients and their connections have faults.
#[test]
fn the_servers_of_an_external_store_have_no_faults() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let up = redis.command::<String>(&["PING"]).unwrap();
    assert_eq!(up, "PONG");
    let ran = torture(&[
        "--store",
        &redis.url(),
        "--time",
        "3s",
        "--seed",
        "3",
        "--json",
    ]);
    let output: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", output["verdict"]);
    let faults = output["history"]["faults"].as_array().unwrap();
    assert!(faults.len() > 2, "{faults:?}");
    let of_workers = |fault: &Value| fault["whom"].as_str().unwrap().starts_with("worker");
    assert!(faults.iter().all(of_workers), "{faults:?}");
    let cut = [
        "reset",
        "partition",
        "hold",
        "delay",
        "lose-requests",
        "lose-answers",
    ];
    let of_network = |fault: &&Value| cut.contains(&fault["what"].as_str().unwrap());
    assert!(faults.iter().any(|fault| of_network(&fault)), "{faults:?}");
}

/// The same history is checked again, and a modified one is detected.
#[test]
fn a_history_is_checked_again() {
    let dir = Dir::new("torture").unwrap();
    let (file, page) = (dir.join("history.json"), dir.join("page.html"));
    let ran = torture(&[
        "--start",
        "redis",
        "--faults",
        "pause-client",
        "--time",
        "2s",
        "--json",
        "--html",
        &page,
    ]);
    assert_eq!(ran.status.code(), Some(0));
    fs::write(&file, &ran.stdout).unwrap();
    let again = torture(&["--check", &file]);
    assert_eq!(again.status.code(), Some(0));
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("every promise was kept"), "{text}");
    let shown = fs::read_to_string(&page).unwrap();
    assert!(shown.contains("fencelock torture: redis") && !shown.contains("/*DATA*/"));

    let mut output: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let attempts = output["history"]["attempts"].as_array_mut().unwrap();
    let granted: Vec<usize> = (0..attempts.len())
        .filter(|n| attempts[*n]["token"].is_u64())
        .collect();
    let (one, other) = (granted[0], *granted.last().unwrap());
    attempts[other]["name"] = attempts[one]["name"].clone();
    attempts[other]["token"] = attempts[one]["token"].clone();
    fs::write(&file, output.to_string()).unwrap();
    let doctored = torture(&["--check", &file]);
    assert_eq!(doctored.status.code(), Some(1));
    let text = String::from_utf8(doctored.stdout).unwrap();
    assert!(text.contains("A PROMISE WAS BROKEN"), "{text}");
    assert!(text.contains(Rule::TokenOnce.as_str()), "{text}");
}

#[test]
fn bad_options_are_named() {
    for (words, part) in [
        (vec!["--start", "postgre"], "redis-volatile"),
        (vec!["--faults", "fire"], "kill-client"),
        (vec!["--check", "/nonexistent"], "/nonexistent"),
        (vec!["--store", "gopher:x"], "gopher"),
    ] {
        let ran = torture(&words);
        assert!(!ran.status.success(), "{words:?}");
        let text = String::from_utf8(ran.stderr).unwrap();
        assert!(text.contains(part), "{words:?}: {text}");
    }
}
