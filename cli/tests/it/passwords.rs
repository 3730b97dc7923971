//! No output shows a password, whatever form the store's URL has.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixture::{Fixture, Ran, finish};

const SCHEMES: [&str; 14] = [
    "memory",
    "sqlite",
    "redis",
    "rediss",
    "valkey",
    "redis+unix",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "mysql",
    "postgres",
    "zookeeper",
    "etcd",
    "x",
];

/// A `fencelock` with this store, by option or by environment.
fn with_store(fixture: &Fixture, url: &str, words: &[&str], by_option: bool) -> Ran {
    let mut command = fixture.command(words);
    match by_option {
        true => command.args(["--store", url]),
        false => command.env("FENCELOCK_STORE", url),
    };
    finish(command)
}

fn hides(ran: &Ran, url: &str, secret: &str) {
    let said = format!("{}{}", ran.out, ran.err);
    assert!(!said.contains(secret), "{url}: {said}");
    assert!([64, 69, 77, 78].contains(&ran.code), "{url}: {ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{url}: {ran:?}");
}

#[test]
fn in_a_bad_url_are_not_quoted() {
    let fixture = Fixture::new();
    for (i, scheme) in SCHEMES.iter().enumerate() {
        for url in [
            format!("{scheme}://u:hunt/hunter2@h"),
            format!("{scheme}://u:hunter2?x@h"),
            format!("{scheme}:/u:hunter2@h"),
            format!("{scheme}://u@127.0.0.1:1/0?password=hunter2&connect-timeout=50ms"),
        ] {
            hides(
                &with_store(&fixture, &url, &["show", "a"], i % 2 == 0),
                &url,
                "hunter2",
            );
        }
    }
    let words = ["run", "-v", "a", "--", "true"];
    for url in [
        "u:hunter2@h:6379",
        "hunter2@h",
        ":hunter2@h",
        "//u:hunter2@h",
    ] {
        for words in [&words[..], &["doctor"], &["ls"], &["hold", "a"], &["bench"]] {
            hides(&with_store(&fixture, url, words, false), url, "hunter2");
        }
    }
}

#[test]
fn in_the_wrong_place_are_not_quoted() {
    let fixture = Fixture::new();
    let url = "redis://u:hunter2@h";
    for words in [
        &[url][..],
        &["schema", url],
        &["doctor", url],
        &["ls", "a", url],
    ] {
        hides(&fixture.run(words), url, "hunter2");
    }
}

/// Any password: it may be unencoded, and the text before it need not be a URL.
#[test]
fn of_any_kind_are_not_printed() {
    let fixture = Fixture::new();
    let urls = (
        prop::sample::select(&SCHEMES[..]),
        "(://|://|:/|:|//|)",
        "[a-z]{0,3}",
        ("[!-~]{0,4}", "[Q-Z]{6}", "[!-~]{0,4}"),
        "(127[.]0[.]0[.]1:1|127[.]0[.]0[.]1:1,127[.]0[.]0[.]2:1)",
        "(|/|/0|/db)",
        any::<bool>(),
    );
    let config = ProptestConfig {
        cases: 80,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let run = TestRunner::new(config).run(
        &urls,
        |(scheme, slashes, user, (begin, secret, end), hosts, path, by_option)| {
            let scheme = if slashes.contains(':') { scheme } else { "" };
            let options = "connect-timeout=50ms";
            let url =
                format!("{scheme}{slashes}{user}:{begin}{secret}{end}@{hosts}{path}?{options}");
            hides(
                &with_store(&fixture, &url, &["show", "a"], by_option),
                &url,
                &secret,
            );
            Ok(())
        },
    );
    run.unwrap();
}
