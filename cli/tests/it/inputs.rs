//! Bad input: one line that names it, the right code, and no effect.

use crate::fixture::{Fixture, finish};

/// Fails with `code` and one line that contains every one of `parts`.
fn refuses(fixture: &Fixture, words: &[&str], code: i32, parts: &[&str]) {
    let ran = fixture.run(words);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (code, ""),
        "{words:?}: {}",
        ran.err
    );
    assert_eq!(ran.err.lines().count(), 1, "{words:?}: {}", ran.err);
    assert!(ran.err.starts_with("fencelock: "), "{}", ran.err);
    for part in parts {
        assert!(
            ran.err.contains(part),
            "{words:?}: {part:?} is not in {}",
            ran.err
        );
    }
}

#[test]
fn names() {
    let fixture = Fixture::new();
    let long = "n".repeat(513);
    for subcommand in [
        &["run"][..],
        &["hold"],
        &["show"],
        &["release", "--token", "1"],
    ] {
        let rest: &[&str] = if subcommand[0] == "run" {
            &["--", "echo", "ran"]
        } else {
            &[]
        };
        let words = |name| [subcommand, &[name], rest].concat();
        refuses(&fixture, &words(""), 64, &["lock name \"\"", "empty"]);
        refuses(
            &fixture,
            &words(&long),
            64,
            &["lock name", "513 bytes", "512"],
        );
        refuses(&fixture, &words("a\nb"), 64, &["lock name", "U+000A"]);
    }
    // The longest name, and unusual ones.
    for name in [&"n".repeat(512), "a b/c", "ä{}:*?\"'$", "--odd"] {
        assert_eq!(
            fixture.run(&["run", "-n", "--", name, "true"]).code,
            0,
            "{name}"
        );
    }
}

#[test]
fn durations() {
    let fixture = Fixture::new();
    for option in [
        "--ttl",
        "--wait",
        "--lock-delay",
        "--max-hold",
        "--at-least",
        "--kill-after",
    ] {
        for bad in ["-1s", "x", "1w", ""] {
            let words = ["run", option, bad, "a", "--", "echo", "ran"];
            refuses(&fixture, &words, 64, &[option, &format!("{bad:?}")]);
        }
    }
    refuses(
        &fixture,
        &["run", "--ttl", "0", "a", "echo"],
        64,
        &["--ttl \"0\""],
    );
    refuses(
        &fixture,
        &["run", "--ttl", "0s", "a", "echo"],
        64,
        &["--ttl \"0s\""],
    );
    refuses(
        &fixture,
        &["run", "--ttl", "99999d", "a", "echo"],
        64,
        &["99999d"],
    );
    refuses(
        &fixture,
        &["run", "--ttl", "1us", "a", "echo"],
        64,
        &["--ttl \"1us\""],
    );
    assert_eq!(
        fixture.run(&["run", "--lock-delay", "0", "a", "true"]).code,
        0
    );
}

#[test]
fn command_lines() {
    let fixture = Fixture::new();
    let misspelt = ["run", "--waits", "1s", "a", "true"];
    refuses(&fixture, &misspelt, 64, &["see `fencelock run --help`"]);
    for words in [
        &[][..],
        &["frobnicate"],
        &["run"],
        &["run", "a"],
        &["run", "a", "-c", "true", "--", "true"],
        &["run", "-n", "-w", "5", "a", "true"],
        &["run", "-s", "-x", "a", "true"],
        &["run", "--bogus", "a", "true"],
        &["run", "-E", "256", "a", "true"],
        &["run", "-E", "x", "a", "true"],
        &["run", "--purpose", "fun", "a", "true"],
        &["release", "a"],
        &["release", "a", "--token", "x"],
        &["release", "a", "--token", "-1"],
        &["check"],
        &["check", "fl1:x:1:00:a"],
        &["check", "fl2:x:1:00000000000000000000000000000000:a"],
        &["check", "nonsense"],
        &["ls", "a", "b"],
    ] {
        refuses(&fixture, words, 64, &[]);
    }
    refuses(
        &fixture,
        &["run", "--bogus", "a", "true"],
        64,
        &["--bogus", "--help"],
    );
    refuses(
        &fixture,
        &["run", "--label", "a\tb", "a", "true"],
        64,
        &["label"],
    );
    refuses(
        &fixture,
        &["run", "--label", &"l".repeat(256), "a", "true"],
        64,
        &["label", "256"],
    );
    // Not UTF-8.
    use std::os::unix::ffi::OsStrExt;
    let mut command = fixture.command(&["run", "-n"]);
    command
        .arg(std::ffi::OsStr::from_bytes(b"\xff"))
        .arg("true");
    let ran = finish(command);
    assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{}", ran.err);
}

#[test]
fn stores() {
    let fixture = Fixture::new();
    let refuses = |url: &str, code, parts: &[&str]| {
        for words in [&["show", "a"][..], &["run", "a", "--", "echo", "ran"]] {
            let mut command = fixture.command(words);
            command.env("FENCELOCK_STORE", url);
            let ran = finish(command);
            assert_eq!(
                (ran.code, ran.out.as_str()),
                (code, ""),
                "{url}: {}",
                ran.err
            );
            assert_eq!(ran.err.lines().count(), 1, "{url}: {}", ran.err);
            for part in parts {
                assert!(
                    ran.err.contains(part),
                    "{url}: {part:?} is not in {}",
                    ran.err
                );
            }
        }
    };
    refuses("mongodb://host", 78, &["mongodb", "sqlite"]);
    refuses("nonsense", 78, &["nonsense", "sqlite:PATH"]);
    refuses(&format!("{}?bogus=1", fixture.store()), 78, &["bogus"]);
    refuses("memory:x", 78, &["memory"]);
}
