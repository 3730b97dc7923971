//! What the file contains, and what it must not contain.

#![allow(clippy::unwrap_used)]

use fencelock_config::{Stores, check_sections};
use fencelock_core::{Purpose, StoreUrl};

const WHOLE: &str = r#"
[store.cache]
url = "redis://cache:6379?prefix=billing/"
purpose = "efficiency"

[store.sure]
url = "etcd://e1,e2,e3?password-file=/run/secrets/etcd"
purpose = "correctness"

[store.redlock]
url = "redlock://n1,n2,n3?node-timeout=20ms"
record = "@sure"

[store.orders]
shards = { a = "@cache", b = "redis://r2", c = { store = "redis://r3?response-timeout=1s&max-ttl=2s", weight = 2 } }
key = "{}"

[store.stock.shards]
z = { store = "@sure" }
[store.stock-2]
shards.z = "sqlite:/a b"
set = "stock"
prefix = "x&y/"

[serve]
store = "@orders"
whatever = 1

[[principal]]
name = "billing"
"#;

#[test]
fn a_whole_file_is_read() {
    let stores = Stores::read("f", WHOLE).unwrap();
    let names: Vec<_> = stores.names().collect();
    assert_eq!(
        names,
        ["cache", "orders", "redlock", "stock", "stock-2", "sure"]
    );
    for (name, url) in [
        ("cache", "redis://cache:6379?prefix=billing/"),
        ("@cache", "redis://cache:6379?prefix=billing/"),
        (
            "redlock",
            "redlock://n1,n2,n3?node-timeout=20ms&record=etcd://e1,e2,e3%3Fpassword-file=/run/secrets/etcd",
        ),
        (
            "orders",
            "shards:?set=orders&key={}&a=redis://cache:6379%3Fprefix=billing/&b=redis://r2\
             &c=redis://r3%3Fresponse-timeout=1s%26max-ttl=2s&c.weight=2",
        ),
        (
            "@stock",
            "shards:?set=stock&z=etcd://e1,e2,e3%3Fpassword-file=/run/secrets/etcd",
        ),
        ("stock-2", "shards:?set=stock&prefix=x%26y/&z=sqlite:/a%20b"),
    ] {
        assert_eq!(stores.url(name).unwrap(), url, "{name}");
    }
    assert_eq!(stores.purpose("cache"), Some(Purpose::Efficiency));
    assert_eq!(stores.purpose("sure"), Some(Purpose::Correctness));
    assert_eq!(stores.purpose("orders"), None);
}

/// A text, the line with the error, and parts of the error.
type Wrong = (&'static str, usize, &'static [&'static str]);

const WRONG: &[Wrong] = &[
    (
        "[stor.a]\nurl = \"memory:\"",
        1,
        &["stor", "[store.NAME]", "[[principal]]"],
    ),
    ("\n[sevre]", 2, &["sevre", "[serve]"]),
    ("x = 1", 1, &["\"x\"", "[serve]"]),
    ("[principal]\nname = \"a\"", 1, &["principal", "array"]),
    ("serve = 1", 1, &["serve", "table"]),
    ("store = 1", 1, &["store", "table"]),
    (
        "[store.a]\nurl = \"memory:\"\nurk = 1",
        3,
        &["urk", "url, purpose"],
    ),
    (
        "[store.a]\nurl = \"memory:\"\nkey = \"/\"",
        3,
        &["key", "url, purpose"],
    ),
    (
        "[store.a]\nshards = {}\nkee = \"/\"",
        3,
        &["kee", "key, set"],
    ),
    (
        "[store.a]\nshards = { a = { stor = \"x\" } }",
        2,
        &["stor", "store, weight"],
    ),
    (
        "[store.a]\nshards = { a = { weight = 1 } }",
        2,
        &["no store"],
    ),
    (
        "[store.a]\nshards = { a = { store = \"x\", weight = 0 } }",
        2,
        &["1 to 100"],
    ),
    (
        "[store.a]\nshards = { a = { store = \"x\", weight = \"1\" } }",
        2,
        &["1 to 100"],
    ),
    (
        "[store.a]\nshards = { a-b = \"memory:\" }",
        2,
        &["id of a shard"],
    ),
    ("[store.a]\nshards = { key = \"memory:\" }", 2, &["\"key\""]),
    (
        "[store.a]\npurpose = \"efficiency\"",
        1,
        &["needs one of url"],
    ),
    (
        "[store.a]\nurll = \"memory:\"",
        2,
        &["\"urll\"", "url, shards, migrate, purpose, record, key"],
    ),
    (
        "[store.a]\nmigrate = { from = \"x\", too = \"y\" }",
        2,
        &["\"too\"", "from, to"],
    ),
    (
        "[store.a]\nurl = \"memory:\"\nshards = {}",
        3,
        &["keep one"],
    ),
    (
        "[store.a]\nurl = \"memory:\"\npurpose = \"fun\"",
        3,
        &["efficiency", "correctness"],
    ),
    ("[store.a]\nurl = 5", 2, &["url must be a text"]),
    (
        "[store.\"a b\"]\nurl = \"memory:\"",
        1,
        &["name of a store"],
    ),
    ("[store.a]\nurl = \"memory:\"\n[store.a]", 3, &["duplicate"]),
    ("[store.a\nurl", 1, &[""]),
];

#[test]
fn an_error_names_the_line_and_the_known_keys() {
    for (text, line, parts) in WRONG {
        let error = Stores::read("the-file", text).unwrap_err().to_string();
        let at = format!("configuration file the-file: line {line}: ");
        assert!(error.contains(&at), "{text}: {error}");
        for part in *parts {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn sections_of_other_parts_may_contain_anything() {
    let text = "[serve]\nanything = [1, { a = 2 }]\n[[principal]]\nx = 1\n";
    check_sections("f", text).unwrap();
    assert_eq!(Stores::read("f", text).unwrap().names().count(), 0);
    assert!(check_sections("f", "[serves]").is_err());
}

#[test]
fn no_error_quotes_a_value() {
    for text in [
        "[store.a]\nurl = \"redis://u:hunter2@h",
        "[store.a]\nurl = redis://u:hunter2@h",
        "[store.a]\nurl = { hunter2 = \"hunter2\" }",
        "[store.a]\nshards = \"redis://u:hunter2@h\"",
        "[store.a]\nurl = \"x\"\npurpose = \"hunter2\"",
        "store = \"hunter2\"",
    ] {
        let error = Stores::read("f", text).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_password_is_refused() {
    for text in [
        "[store.a]\nurl = \"redis://u:hunter2@h\"",
        "[store.a]\nshards = { x = \"redis://:hunter2@h\" }",
        "[store.a]\nshards = { x = \"@b\" }\n[store.b]\nurl = \"redlock://h1:1,u:hunter2@h2\"",
        "[store.a]\nurl = \"shards:?x=redis%3A%2F%2Fu%3Ahunter2%40h\"",
    ] {
        let error = Stores::read("f", text).unwrap().url("a").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("password-file") && error.contains('f'),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn circles_sets_of_sets_and_unknown_names_are_refused() {
    let text = "
        [store.a]
        shards = { x = \"@b\" }
        [store.b]
        shards = { x = \"@c\", y = \"memory:\" }
        [store.c]
        shards = { x = \"@a\" }
        [store.self]
        shards = { x = \"@self\" }
        [store.two]
        shards = { x = \"@one\" }
        [store.one]
        shards = { x = \"memory:\" }
        [store.lost]
        shards = { x = \"@nobody\" }
        [store.other]
        url = \"@one\"
    ";
    let stores = Stores::read("f", text).unwrap();
    for (name, part) in [
        ("a", "@a contains @b contains @c contains @a"),
        ("self", "@self contains @self"),
        ("two", "which is a set"),
        ("lost", "@nobody"),
        ("lost", "@one, @other, @self, @two"),
        ("other", "use that name"),
        ("@nobody", "no such store"),
    ] {
        let error = stores.url(name).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
    let error = stores.url("@u:hunter2@h").unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{error}");
}

/// Each side is a set, with the name that it has when it is used alone.
#[test]
fn locks_move_between_sets_of_shards() {
    let text = r#"
    [store.orders]
    shards = { a = "memory:", b = "redis://r2" }
    [store.orders3]
    shards = { a = "memory:", b = "redis://r2", c = { store = "redis://r3", weight = 2 } }
    [store.grow]
    migrate = { from = "@orders", to = "@orders3" }
    [store.again]
    migrate = { from = "@grow", to = "@orders" }
    "#;
    let stores = Stores::read("f.toml", text).unwrap();
    let url = StoreUrl::parse(&stores.url("grow").unwrap()).unwrap();
    let mut sides = url.clone().take_others(&["set"]);
    sides.sort();
    let sides: Vec<_> = sides.iter().map(|(_, side)| side.as_str()).collect();
    assert_eq!(
        sides,
        [
            stores.url("orders").unwrap(),
            stores.url("orders3").unwrap()
        ]
    );
    assert_eq!(url.clone().take("set").as_deref(), Some("grow"));
    let again = stores.url("again").unwrap_err().to_string();
    assert!(again.contains("which is a set"), "{again}");
}
