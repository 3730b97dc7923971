//! A set of stores by its URL.

use fencelock_testbed::{Dir, Redlock};

use crate::fixture::{Fixture, Ran};

fn files(dir: &Dir, ids: &[(&str, &str)]) -> String {
    let shards = ids
        .iter()
        .map(|(id, file)| format!("{id}=sqlite%3A{}", dir.join(file)));
    format!(
        "shards:?set=orders&{}",
        shards.collect::<Vec<_>>().join("&")
    )
}

fn refused(ran: &Ran, what: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (78, ""), "{}", ran.err);
    assert!(ran.err.contains(what), "{}", ran.err);
}

#[test]
fn a_set_is_made_and_used() {
    let dir = Dir::new("shards").unwrap();
    let url = files(&dir, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let fixture = Fixture::on(url.clone());
    let early = fixture.run(&["run", "x", "--", "echo", "ran"]);
    refused(&early, "`fencelock shards init`");
    assert_eq!(fixture.run(&["shards", "init"]).code, 0);
    let bad_name = "shards:?set=a%20b&a=memory:&b=memory:";
    for command in [&["shards", "init"][..], &["ls"]] {
        let bad = fixture.run(&[command, &["--store", bad_name]].concat());
        assert_eq!(bad.code, 78, "{bad:?}");
        assert!(bad.err.contains("name of a set \"a b\""), "{bad:?}");
    }
    let names: Vec<_> = (0..12).map(|number| format!("job/{number}")).collect();
    let mut holders: Vec<_> = names
        .iter()
        .map(|name| fixture.start(&["hold", name]))
        .collect();
    for holder in &mut holders {
        holder.line();
    }
    let listed = fixture.run(&["ls"]);
    for name in &names {
        assert!(listed.out.contains(name), "{}", listed.out);
        let second = fixture.run(&["run", "-n", name, "--", "echo", "ran"]);
        assert_eq!((second.code, second.out.as_str()), (1, ""));
    }
    let doctor = fixture.run(&["doctor"]);
    assert!(
        doctor.out.contains("shards:orders"),
        "{}{}",
        doctor.out,
        doctor.err
    );
    let nested = fixture.run(&[
        "run",
        "x",
        "-c",
        "fencelock=$FENCELOCK_TOKEN; test -n \"$fencelock\"",
    ]);
    assert_eq!(nested.code, 0, "{}", nested.err);
}

#[test]
fn swapped_urls_and_shards_by_themselves_are_refused() {
    let dir = Dir::new("shards").unwrap();
    let fixture = Fixture::on(files(&dir, &[("a", "1"), ("b", "2")]));
    assert_eq!(fixture.run(&["shards", "init"]).code, 0);
    let run = |url: String| Fixture::on(url).run(&["run", "x", "--", "echo", "ran"]);
    let swapped = run(files(&dir, &[("a", "2"), ("b", "1")]));
    refused(&swapped, "two URLs are swapped");
    let more = run(files(&dir, &[("a", "1"), ("b", "2"), ("c", "3")]));
    refused(&more, "all programs must name the same");
    let alone = format!("sqlite:{}", dir.join("1"));
    refused(&run(alone.clone()), "outside-set=yes");
    let meant = run(format!("{alone}?outside-set=yes"));
    assert_eq!(
        (meant.code, meant.out.as_str()),
        (0, "ran\n"),
        "{}",
        meant.err
    );
    refused(
        &Fixture::on(alone).run(&["shards", "init"]),
        "it is one store",
    );
}

/// Redlock keeps no record itself.
#[test]
fn the_record_of_a_shard_is_in_another_store() {
    let dir = Dir::new("shards").unwrap();
    let groups = [Redlock::start(3).unwrap(), Redlock::start(3).unwrap()];
    let keeper = format!("sqlite:{}", dir.join("keeper"));
    let encoded = |text: &str| {
        text.replace('%', "%25")
            .replace(':', "%3A")
            .replace('&', "%26")
    };
    let set = |at: [usize; 2], record: &str| {
        let shards = at.iter().zip(["a", "b"]).map(|(at, id)| {
            let url = format!("{}?node-timeout=250ms{record}", groups[*at].url());
            format!("{id}={}", encoded(&url))
        });
        let shards: Vec<_> = shards.collect();
        format!("shards:?set=orders&{}", shards.join("&"))
    };
    let kept = format!("&record={}", encoded(&keeper));
    let fixture = Fixture::on(set([0, 1], ""));
    let without = fixture.run(&["shards", "init"]);
    assert_eq!(without.code, 64, "{}", without.err);
    assert!(without.err.contains("record="), "{}", without.err);
    let fixture = Fixture::on(set([0, 1], &kept));
    let made = fixture.run(&["shards", "init"]);
    assert_eq!(made.code, 0, "{}", made.err);
    for number in 0..8 {
        let name = format!("job/{number}");
        let ran = fixture.run(&["run", "-n", &name, "--", "echo", "ran"]);
        assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    }
    let swapped = Fixture::on(set([1, 0], &kept));
    refused(
        &swapped.run(&["run", "x", "--", "echo", "ran"]),
        "two URLs are swapped",
    );
    let alone = format!("{}?record={}", groups[0].url(), encoded(&keeper));
    refused(
        &Fixture::on(alone).run(&["run", "x", "--", "echo", "ran"]),
        "outside-set=yes",
    );
    // The store that keeps the records belongs to no set by that.
    let ran = Fixture::on(keeper.clone()).run(&["run", "x", "--", "echo", "ran"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let itself = format!("{keeper}?record={}", encoded(&keeper));
    refused(
        &Fixture::on(itself).run(&["run", "x", "--", "echo", "ran"]),
        "leave record= out",
    );
}

#[test]
fn a_bad_set_is_refused_and_shows_no_password() {
    let secret = "redis%3A%2F%2Fann%3Ahunter2%40127.0.0.1%3A1";
    for (url, what) in [
        (format!("shards:?a={secret}%3Fbogus=1"), "bogus"),
        (format!("shards:?a={secret}&a.weight=0"), "weight"),
        (format!("shards:?a={secret}&b.weight=2"), "b.weight"),
        (format!("shards:?a={secret}&key=x"), "key"),
        ("shards:?a=shards%3A%3Fx=memory%3A".to_owned(), "no sets"),
        (format!("shards:?a-b={secret}"), "a-b"),
        (format!("shards:?a=ann:hunter2%40h&b={secret}"), "an @"),
        ("shards:?a=redis://ann:hunter2@h".to_owned(), "@"),
        ("shards:".to_owned(), "at least one"),
    ] {
        for words in [&["shards", "init"][..], &["run", "-n", "x", "true"]] {
            let ran = Fixture::on(url.clone()).run(words);
            assert!(
                matches!(ran.code, 64 | 78),
                "{url}: {} {}",
                ran.code,
                ran.err
            );
            assert!(ran.err.contains(what), "{url}: {}", ran.err);
            assert!(!ran.err.contains("hunter2"), "{}", ran.err);
        }
    }
    let away = Fixture::on(format!("shards:?a={secret}&connect-timeout=100ms"));
    let ran = away.run(&["run", "-n", "x", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    assert!(
        ran.err.contains("shards:shards[a]") && !ran.err.contains("hunter2"),
        "{}",
        ran.err
    );
}

/// A set with a prefix has its records for the whole of each store.
#[test]
fn a_store_of_a_set_is_refused_with_a_prefix_too() {
    let dir = Dir::new("shards-prefix").unwrap();
    let set = files(&dir, &[("a", "1"), ("b", "2")]) + "&prefix=p/";
    let fixture = Fixture::on(set);
    assert_eq!(fixture.run(&["shards", "init"]).code, 0);
    for options in ["", "?prefix=p/", "?prefix=p/q"] {
        let plain = format!("sqlite:{}{options}", dir.join("1"));
        let alone = fixture.run(&["run", "-n", "x", "--store", &plain, "--", "echo", "ran"]);
        refused(&alone, "it belongs to a set of stores");
        let sign = if options.is_empty() { '?' } else { '&' };
        let wanted = format!("{plain}{sign}outside-set=yes");
        let wanted = fixture.run(&["run", "-n", "x", "--store", &wanted, "--", "true"]);
        assert_eq!(wanted.code, 0, "{wanted:?}");
    }
}

/// Two sets of the same locks, one of them by a prefix in the URLs of its stores.
#[test]
fn a_set_on_a_prefix_of_another_set_is_refused() {
    let dir = Dir::new("shards-nested").unwrap();
    let whole = files(&dir, &[("a", "1"), ("b", "2")]);
    let part = |first: &str| {
        let url = format!("sqlite:{}?prefix=x/", dir.join(first));
        let url = url.replace(':', "%3A").replace('?', "%3F");
        format!("shards:?set=part&a={url}")
    };
    // The smaller set may come first. Its programs are refused when they are started again.
    let within = Fixture::on(part("1"));
    assert_eq!(within.run(&["shards", "init"]).code, 0);
    let runs = || within.run(&["run", "-n", "l", "--", "echo", "ran"]);
    assert_eq!(runs().code, 0);
    assert_eq!(Fixture::on(whole).run(&["shards", "init"]).code, 0);
    refused(&runs(), "it belongs to a set of stores");
    let later = Fixture::on(part("2"));
    refused(
        &later.run(&["shards", "init"]),
        "it belongs to a set of stores",
    );
}

#[cfg(feature = "redis")]
#[test]
fn two_shards_on_one_server_are_a_finding() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let shard = |id: &str| {
        let url = format!("{}?prefix={id}/", redis.url());
        let url = url
            .replace(':', "%3A")
            .replace('?', "%3F")
            .replace('=', "%3D");
        format!("{id}={url}")
    };
    let set = format!("shards:?set=orders&{}&{}", shard("a"), shard("b"));
    let fixture = Fixture::on(set);
    assert_eq!(fixture.run(&["shards", "init"]).code, 0);
    let doctor = fixture.run(&["doctor", "--purpose", "efficiency"]);
    let told = "[a] and [b] are on one server";
    assert!(doctor.out.contains(told), "{doctor:?}");
}
