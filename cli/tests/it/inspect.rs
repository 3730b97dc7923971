//! `show`, `ls`, `check`, `release`, `completions`, `man`.

use serde_json::{Value, json};

use crate::fixture::Fixture;

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
fn a_free_lock_is_shown_as_free() {
    let fixture = Fixture::new();
    let free = json!({"name": "a", "token": null, "holders": [], "waiters": []});
    assert_eq!(fixture.show("a"), free);
    let shown = fixture.run(&["show", "a"]);
    assert_eq!((shown.code, shown.out.as_str()), (0, "a: free\n"));
    let listed = fixture.run(&["ls", "--json"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, "[]\n"));
    assert_eq!(fixture.run(&["ls"]).out, "");
}

#[test]
fn a_held_lock_is_shown_with_holder_and_waiters() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--label", "nightly", "--ttl", "20s", "a"]);
    let granted = hold.json();
    let _waiter = fixture.start(&["run", "--shared", "a", "true"]);
    fixture.await_waiters("a", 1);
    let shown = fixture.show("a");
    assert_eq!(keys(&shown), ["holders", "name", "token", "waiters"]);
    assert_eq!(
        (&shown["name"], &shown["token"]),
        (&json!("a"), &granted["token"])
    );
    let holder = &shown["holders"][0];
    assert_eq!(
        keys(holder),
        [
            "foreign",
            "held_ms",
            "label",
            "mode",
            "owner",
            "token",
            "ttl_left_ms"
        ]
    );
    assert_eq!(holder["owner"], granted["owner"]);
    assert_eq!(holder["token"], granted["token"]);
    assert_eq!(holder["mode"], "exclusive");
    assert_eq!(holder["label"], "nightly");
    let left = holder["ttl_left_ms"].as_u64().unwrap();
    assert!((1..=20_000).contains(&left), "{left}");
    assert!(holder["held_ms"].as_u64().unwrap() < 20_000);
    let waiter = &shown["waiters"][0];
    assert_eq!(keys(waiter), ["label", "mode", "owner"]);
    assert_eq!(waiter["mode"], "shared");
    assert!(waiter["owner"].as_str().unwrap().contains('#'));

    let text = fixture.run(&["show", "a"]).out;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    let token = format!("token {}", granted["token"]);
    assert!(
        lines[0].contains(&token) && lines[0].contains("(nightly)"),
        "{text}"
    );
    assert!(lines[1].contains("waiting, place 1: shared"), "{text}");
}

#[test]
fn ls_lists_what_is_held_by_name_and_prefix() {
    let fixture = Fixture::new();
    let _all = ["job/b", "job/a", "other"].map(|name| {
        let mut hold = fixture.start(&["hold", name]);
        hold.line();
        hold
    });
    let names = |words: &[&str]| {
        let listed: Value = serde_json::from_str(&fixture.run(words).out).unwrap();
        let all = listed.as_array().unwrap().iter();
        all.map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&["ls", "--json"]), ["job/a", "job/b", "other"]);
    assert_eq!(names(&["ls", "job/", "--json"]), ["job/a", "job/b"]);
    assert_eq!(names(&["ls", "--json", "none"]), [""; 0]);
    assert_eq!(fixture.run(&["ls", "job/"]).out.lines().count(), 2);
    let listed: Value = serde_json::from_str(&fixture.run(&["ls", "other", "--json"]).out).unwrap();
    assert_eq!(keys(&listed[0]), ["holders", "name", "token", "waiters"]);
}

#[test]
fn check_distinguishes_grants() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "a"]);
    let granted = hold.json();
    let sequencer = granted["sequencer"].as_str().unwrap();
    let checked = fixture.run(&["check", sequencer]);
    assert_eq!(
        (checked.code, checked.out.as_str(), checked.err.as_str()),
        (0, "", "")
    );
    let token = granted["token"].as_u64().unwrap();
    let claim = sequencer.split(':').nth(3).unwrap();
    for other in [
        sequencer.replace(&format!(":{token}:"), &format!(":{}:", token + 1)),
        sequencer.replace(claim, &"0".repeat(32)),
        sequencer.replace("fl1:x", "fl1:s"),
        sequencer.replace(":a", ":b"),
    ] {
        let checked = fixture.run(&["check", &other]);
        assert_eq!((checked.code, checked.out.as_str()), (1, ""), "{other}");
        assert_eq!(checked.err.lines().count(), 1);
    }
    assert_eq!(hold.end().code, 0);
    assert_eq!(fixture.run(&["check", sequencer]).code, 1);
}

#[test]
fn release_is_fenced_by_the_token() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "a"]);
    let token = hold.json()["token"].as_u64().unwrap();
    let other = fixture.run(&["release", "a", "--token", &(token + 1).to_string()]);
    assert_eq!((other.code, other.out.as_str()), (1, ""));
    assert!(
        other.err.contains(&(token + 1).to_string()),
        "{}",
        other.err
    );
    assert_eq!(fixture.show("a")["token"], token);
    let right = fixture.run(&["release", "a", "--token", &token.to_string()]);
    assert_eq!((right.code, right.err.as_str()), (0, ""));
    assert!(fixture.show("a")["token"].is_null());
    let again = fixture.run(&["release", "a", "--token", &token.to_string()]);
    assert_eq!(again.code, 1);
    let free = fixture.run(&["release", "a", "--token", &token.to_string(), "--ask"]);
    assert_eq!(free.code, 1);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let fixture = Fixture::new();
    for words in [
        &["ls", "--json"][..],
        &["show", "a"],
        &["doctor"],
        &["--help"],
    ] {
        let mut command = fixture.command(words);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer);
        let ran = crate::fixture::finish(command);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
    }
}

#[test]
fn completions_and_the_manual_are_printed() {
    let fixture = Fixture::new();
    for shell in ["bash", "zsh", "fish"] {
        let printed = fixture.run(&["completions", shell]);
        assert_eq!(printed.code, 0);
        assert!(
            printed.out.contains("fencelock") && printed.out.contains("max-hold"),
            "{shell}"
        );
        assert!(!printed.out.contains("__supervisor"), "{shell}");
    }
    assert_eq!(fixture.run(&["completions", "tcl"]).code, 64);
    let page = fixture.run(&["man"]);
    assert_eq!(page.code, 0);
    for part in [
        ".TH",
        "FENCELOCK RUN",
        "EXIT STATUS",
        "FENCELOCK_STORE",
        "kill\\-after",
    ] {
        assert!(page.out.contains(part), "{part}");
    }
    // A closed pipe is no failure.
    let piped = format!(
        "{} man | head -1 > /dev/null",
        env!("CARGO_BIN_EXE_fencelock")
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &format!("set -o pipefail; {piped}")]);
    assert_eq!(crate::fixture::finish(command).code, 0);
}

#[test]
fn help_and_version_exit_with_0() {
    let fixture = Fixture::new();
    for words in [
        &["--help"][..],
        &["run", "--help"],
        &["help", "hold"],
        &["--version"],
    ] {
        let printed = fixture.run(words);
        assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{words:?}");
        assert!(printed.out.contains("fencelock"), "{words:?}");
    }
}

#[test]
fn bench_measures_the_default_store() {
    let fixture = Fixture::new();
    let words = [
        "bench",
        "--only",
        "pairs",
        "--workers",
        "1",
        "--rounds",
        "1",
    ];
    let command = || {
        let mut command = fixture.command(&words);
        command
            .args(["--period", "100ms"])
            .env("FENCELOCK_STORE", "")
            .env("XDG_STATE_HOME", fixture.path("."));
        command
    };
    let measured = crate::fixture::finish(command());
    assert_eq!(measured.code, 0, "{}", measured.err);
    let files = std::fs::read_dir(fixture.path("fencelock")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(files.iter().any(|file| file == "locks.db"), "{files:?}");
    assert!(
        !files
            .iter()
            .any(|file| file.to_string_lossy().contains("bare")),
        "{files:?}"
    );
    // A closed pipe is no failure.
    let mut unread = command();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    unread.stdout(writer);
    let ran = crate::fixture::finish(unread);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn bench_measures_and_prints_json() {
    let fixture = Fixture::new();
    let words = [
        "bench",
        "--only",
        "pairs",
        "--workers",
        "1",
        "--rounds",
        "1",
        "--json",
    ];
    let mut command = fixture.command(&words);
    command.args(["--period", "100ms"]);
    let measured = crate::fixture::finish(command);
    assert_eq!(measured.code, 0, "{}", measured.err);
    let sections: Value = serde_json::from_str(&measured.out).unwrap();
    assert_eq!(sections.as_array().unwrap().len(), 1, "{sections}");
    assert_eq!(fixture.run(&["ls"]).out, "");
}

/// Inspection needs no file, creates no file, and needs no right to write.
#[test]
fn inspection_creates_nothing() {
    let fixture = Fixture::new();
    let token = "fl1:x:1:00000000000000000000000000000000:a";
    for (words, code) in [
        (&["ls"][..], 0),
        (&["show", "a"], 0),
        (&["doctor"], 0),
        (&["check", token], 1),
    ] {
        let ran = fixture.run(words);
        assert_eq!(ran.code, code, "{words:?}: {ran:?}");
        let files = std::fs::read_dir(fixture.path(".")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert!(files.is_empty(), "{words:?} made {files:?}");
    }
    // A release writes.
    assert_eq!(fixture.run(&["release", "a", "--token", "1"]).code, 1);
    assert_eq!(fixture.run(&["run", "-n", "a", "--", "true"]).code, 0);
    assert_eq!(fixture.run(&["show", "a"]).out, "a: free\n");
}
