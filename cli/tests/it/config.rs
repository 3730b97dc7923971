//! Stores by their names in a configuration file, and all of them at once.

use std::fs;

use serde_json::Value;

use crate::fixture::{Fixture, Ran, finish};

/// A fixture whose directory has a configuration file `fencelock.toml` with this text. `$DIR` in the text is the
/// directory.
struct Named(Fixture);

impl Named {
    fn new(text: &str) -> Self {
        let fixture = Fixture::on("@cache".to_owned());
        let text = text.replace("$DIR", fixture.path("").trim_end_matches('/'));
        fs::write(fixture.path("fencelock.toml"), text).unwrap();
        Self(fixture)
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = self.0.command(words);
        command.env("FENCELOCK_CONFIG", self.0.path("fencelock.toml"));
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        finish(self.command(words))
    }
}

const THREE: &str = r#"
[store.cache]
url = "sqlite:$DIR/cache.db"

[store.orders]
shards = { a = "sqlite:$DIR/a.db", b = { store = "sqlite:$DIR/b.db", weight = 2 } }

[store.sure]
url = "sqlite:$DIR/sure.db?prefix=x/"
purpose = "correctness"

[serve]
store = "@orders"
listen = ["127.0.0.1:0"]
"#;

#[test]
fn a_store_is_used_by_its_name() {
    let named = Named::new(THREE);
    let ran = named.run(&["run", "job", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    assert!(fs::exists(named.0.path("cache.db")).unwrap());
    let other = named.run(&["run", "--store", "@sure", "job", "--", "echo", "ran"]);
    assert_eq!((other.code, other.out.as_str()), (0, "ran\n"));
    assert!(fs::exists(named.0.path("sure.db")).unwrap());
    let path = named.0.path("fencelock.toml");
    let mut by_option = named.0.command(&["--config", &path, "ls", "--store=@sure"]);
    by_option.env("FENCELOCK_CONFIG", "/nowhere");
    assert_eq!(finish(by_option).code, 0);
}

#[test]
fn no_file_is_found_by_the_working_directory() {
    let named = Named::new(THREE);
    // The fixture's directory is the working directory, and has the file.
    let mut lost = named.0.command(&["run", "job", "--", "echo", "ran"]);
    lost.env("FENCELOCK_CONFIG", named.0.path("other.toml"));
    let lost = finish(lost);
    assert_eq!((lost.code, lost.out.as_str()), (78, ""), "{}", lost.err);
    assert!(
        lost.err.contains("other.toml") && lost.err.contains("--config"),
        "{}",
        lost.err
    );
    // No file is named, and this machine has no default file.
    let mut unnamed = named.0.command(&["run", "job", "--", "echo", "ran"]);
    unnamed.env_remove("FENCELOCK_CONFIG");
    let unnamed = finish(unnamed);
    assert_eq!((unnamed.code, unnamed.out.as_str()), (78, ""));
    assert!(
        unnamed.err.contains("/etc/fencelock/fencelock.toml"),
        "{}",
        unnamed.err
    );
    let unknown = named.run(&["ls", "--store", "@nobody"]);
    assert_eq!(unknown.code, 78);
    assert!(
        unknown.err.contains("@cache, @orders, @sure"),
        "{}",
        unknown.err
    );
    // A command that names another store does not use a store of the file.
    let mut default = named.command(&[
        "ls",
        "--store",
        &format!("sqlite:{}", named.0.path("own.db")),
    ]);
    default.env("FENCELOCK_CONFIG", "/nowhere");
    assert_eq!(finish(default).code, 0);
}

#[cfg(feature = "redis")]
#[test]
fn the_file_says_what_the_locks_are_for() {
    // This server forgets its data in a restart, which matters only for correctness.
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = crate::fixture::patient(&redis);
    let named = Named::new(&format!(
        "[store.cache]\nurl = \"{url}\"\n[store.sure]\nurl = \"{url}\"\npurpose = \"correctness\"\n",
    ));
    let warned = |words: &[&str]| named.run(words).err.contains("warning:");
    assert!(!warned(&["run", "x", "true"]));
    assert!(warned(&["run", "--store", "@sure", "x", "true"]));
    assert!(!warned(&[
        "run",
        "--store",
        "@sure",
        "--purpose",
        "efficiency",
        "x",
        "true"
    ]));
}

#[test]
fn the_file_is_checked_without_connecting() {
    let named = Named::new(THREE);
    let fine = named.run(&["config", "check"]);
    assert_eq!(fine.code, 0, "{fine:?}");
    for part in [
        "@cache: sqlite:",
        "@orders: shards a = sqlite:",
        "@sure: ",
        ", for correctness",
    ] {
        assert!(fine.out.contains(part), "{part}: {}", fine.out);
    }
    assert!(!fs::exists(named.0.path("cache.db")).unwrap());
    let connected = named.run(&["config", "check", "--connect"]);
    // The set was not created yet.
    assert_eq!(connected.code, 78, "{connected:?}");
    assert!(connected.err.contains("@orders") && connected.err.contains("shards init"));
    assert_eq!(named.run(&["shards", "init", "--store", "@orders"]).code, 0);
    let connected = named.run(&["config", "check", "--connect"]);
    assert_eq!(connected.code, 0, "{connected:?}");
    assert!(connected.out.contains("reached in"), "{}", connected.out);
    for (text, part) in [
        ("[store.a]\nurl = \"redis://u:hunter2@h\"", "password-file"),
        (
            "[store.a]\nurl = \"redis://h?no-such-option=hunter2\"",
            "no-such-option",
        ),
        (
            "[store.a]\nurl = \"redis://h?password-file=/no/such/file\"",
            "/no/such/file",
        ),
        ("[store.a]\nurl = \"gopher://h\"", "gopher"),
        (
            "[store.a]\nshards = { x = \"redis://h?no-such-option=1\" }",
            "no-such-option",
        ),
        (
            "[store.a]\nshards = { x = \"@b\" }\n[store.b]\nshards = { x = \"@a\" }",
            "contains",
        ),
        ("[store.a]\nshards = { x = \"@b\" }", "@b"),
        ("[store.a]\nurk = 1", "url"),
        ("[stores.a]", "stores"),
        #[cfg(feature = "serve")]
        ("[serve]\nlistenn = []", "listen"),
        #[cfg(feature = "serve")]
        ("[serve]\nstore = \"@nobody\"", "@nobody"),
        #[cfg(feature = "serve")]
        ("[serve]\nstore = \"redis://u:hunter2@h\"", "password-file"),
        #[cfg(feature = "serve")]
        (
            "[serve.audit]\nfile = \"/no/such/place/audit\"",
            "/no/such/place",
        ),
        #[cfg(feature = "serve")]
        (
            "[serve.tls]\ncert = \"/no/such/cert\"\nkey = \"/no/such/key\"",
            "/no/such/cert",
        ),
    ] {
        let refused = Named::new(text).run(&["config", "check"]);
        assert_eq!(refused.code, 78, "{text}: {refused:?}");
        assert!(refused.err.contains(part), "{text}: {}", refused.err);
        assert!(!refused.err.contains("hunter2"), "{}", refused.err);
    }
}

#[test]
fn all_stores_are_looked_at() {
    let named = Named::new(THREE);
    assert_eq!(named.run(&["shards", "init", "--store", "@orders"]).code, 0);
    let hold = |store: &str, name: &str| {
        let mut command = named.command(&["hold", "--store", store, name]);
        command.stdin(std::process::Stdio::piped());
        let mut held = crate::fixture::Running::start(command);
        held.line();
        held
    };
    let _held = [
        hold("@cache", "one"),
        hold("@orders", "two"),
        hold("@sure", "three"),
    ];
    let listed = named.run(&["ls", "--all"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    for line in ["@cache one: held", "@orders two: held", "@sure three: held"] {
        assert!(listed.out.contains(line), "{}", listed.out);
    }
    let json: Value =
        serde_json::from_str(&named.run(&["ls", "--all", "--json", "t"]).out).unwrap();
    let found = json.as_array().unwrap().iter();
    let found: Vec<_> = found
        .map(|lock| {
            (
                lock["store"].as_str().unwrap(),
                lock["name"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, [("orders", "two"), ("sure", "three")]);
    let doctor = named.run(&["doctor", "--all"]);
    assert_eq!(doctor.code, 0, "{doctor:?}");
    for heading in ["@cache\n", "@orders\n", "@sure\n"] {
        assert!(doctor.out.contains(heading), "{}", doctor.out);
    }
    let json: Value = serde_json::from_str(&named.run(&["doctor", "--all", "--json"]).out).unwrap();
    assert_eq!(json[1]["name"], "orders");
    let status = named.run(&["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert_eq!(status.out.lines().count(), 4, "{}", status.out);
    let json: Value = serde_json::from_str(&named.run(&["status", "--json"]).out).unwrap();
    let orders = &json[1];
    assert_eq!(
        (
            &orders["store"],
            &orders["version"],
            &orders["held"],
            &orders["waiting"]
        ),
        (&"orders".into(), &1.into(), &1.into(), &0.into()),
        "{json}"
    );
    assert_eq!(
        (&json[0]["version"], &json[0]["reached"]),
        (&Value::Null, &true.into())
    );
}

#[test]
fn status_goes_on_and_shows_what_changes() {
    let named = Named::new("[store.cache]\nurl = \"sqlite:$DIR/cache.db\"\n");
    let mut watching =
        crate::fixture::Running::start(named.command(&["status", "--watch", "--json"]));
    let held = |line: String| serde_json::from_str::<Value>(&line).unwrap()[0]["held"].clone();
    assert_eq!(held(watching.line()), 0);
    let mut command = named.command(&["hold", "x"]);
    command.stdin(std::process::Stdio::piped());
    let mut holder = crate::fixture::Running::start(command);
    holder.line();
    while held(watching.line()) != 1 {}
}

#[cfg(feature = "redis")]
#[test]
fn stores_that_are_away_are_named_and_the_others_are_shown() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let text = format!(
        "[store.cache]\nurl = \"sqlite:$DIR/cache.db\"\n[store.orders]\nshards = {{ a = \"sqlite:$DIR/a.db\", b = \"@redis\" }}\n\
         [store.redis]\nurl = \"{}?connect-timeout=9s&response-timeout=5s\"\n",
        redis.url()
    );
    let named = Named::new(&text);
    assert_eq!(named.run(&["shards", "init", "--store", "@orders"]).code, 0);
    let mut holders = Vec::new();
    for name in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let mut command = named.command(&["hold", "--store", "@orders", name]);
        command.stdin(std::process::Stdio::piped());
        let mut holder = crate::fixture::Running::start(command);
        holder.line();
        holders.push(holder);
    }
    let all = named.run(&["ls", "--store", "@orders", "--partial"]);
    assert_eq!((all.code, all.out.lines().count()), (0, 8), "{all:?}");
    redis.kill9();
    // From now on each command would wait for it.
    let file = named.0.path("fencelock.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace("connect-timeout=9s", "connect-timeout=1s"),
    )
    .unwrap();
    let whole = named.run(&["ls", "--store", "@orders"]);
    assert_eq!((whole.code, whole.out.as_str()), (69, ""), "{whole:?}");
    let partial = named.run(&["ls", "--store", "@orders", "--partial"]);
    assert_eq!(partial.code, 69, "{partial:?}");
    let left = partial.out.lines().count();
    assert!((1..8).contains(&left), "{partial:?}");
    assert!(
        partial.err.contains("left out: ") && partial.err.contains("shards:orders[b]"),
        "{}",
        partial.err
    );
    let listed = named.run(&["ls", "--all", "--partial"]);
    assert_eq!(
        (listed.code, listed.out.lines().count()),
        (69, left),
        "{listed:?}"
    );
    assert!(
        listed.err.contains("@orders: left out") && listed.err.contains("@redis: "),
        "{}",
        listed.err
    );
    let doctor = named.run(&["doctor", "--all", "--purpose", "efficiency"]);
    assert_eq!(doctor.code, 69, "{doctor:?}");
    assert!(
        doctor.out.contains("@cache\n") && doctor.err.contains("@redis: "),
        "{doctor:?}"
    );
    let status = named.run(&["status"]);
    assert_eq!(status.code, 69, "{status:?}");
    assert_eq!(status.out.lines().count(), 4, "{}", status.out);
    assert!(
        status.out.contains("@redis") && status.out.contains("@cache"),
        "{}",
        status.out
    );
}

/// A set opens without a shard that is silent.
#[cfg(feature = "redis")]
#[test]
fn a_silent_shard_is_named() {
    let redis = fencelock_testbed::Redis::start().unwrap();
    let text = format!(
        "[store.orders]\nshards = {{ a = \"sqlite:$DIR/a.db\", b = \"{}?connect-timeout=4s\" }}\n",
        redis.url()
    );
    let named = Named::new(&text);
    assert_eq!(named.run(&["shards", "init", "--store", "@orders"]).code, 0);
    let checked = named.run(&["config", "check", "--connect"]);
    assert!(checked.out.contains("reached in"), "{checked:?}");
    redis.pause().unwrap();
    let (status, checked) = std::thread::scope(|scope| {
        let status = scope.spawn(|| named.run(&["status", "--json"]));
        let checked = named.run(&["config", "check", "--connect"]);
        (status.join().unwrap(), checked)
    });
    // Opening, listing and looking it over wait for that shard, one after the other.
    assert_eq!(status.code, 69, "{status:?}");
    assert!(status.out.contains("shards:orders[b]"), "{}", status.out);
    let json: Value = serde_json::from_str(&status.out).unwrap();
    // Nobody knows what is held there.
    for count in ["held", "waiting"] {
        assert!(json[0][count].is_null(), "{json}");
    }
    assert_eq!(checked.code, 69, "{checked:?}");
    assert!(checked.err.contains("shards:orders[b]"), "{}", checked.err);
    // The file is right.
    assert!(!checked.err.contains("cannot be used"), "{}", checked.err);
}

/// In the first phase of a move nothing is listed in the new store, but no lock is granted without it.
#[cfg(feature = "redis")]
#[test]
fn a_store_to_which_locks_move_is_named_when_it_is_away() {
    let redis = fencelock_testbed::Redis::builder().append_only("always");
    let mut redis = redis.start().unwrap();
    let text = format!(
        "[store.mv]\nmigrate = {{ from = \"sqlite:$DIR/old.db\", to = \"{}?connect-timeout=1s\" }}\n",
        redis.url()
    );
    let named = Named::new(&text);
    let step = |words: &[&str]| {
        let ran = named.run(&[&["migrate"], words, &["--store", "@mv"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
    };
    let status = || named.run(&["status"]);
    step(&["prepare", "--pace", "1500ms", "--tight", "300ms"]);
    step(&["begin", "--despite-findings"]);
    let ran = named.run(&["status", "--json"]);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let of = |member: &str| json[0][member].clone();
    assert_eq!(
        (ran.code, of("phase"), of("version")),
        (0, 1.into(), 2.into())
    );
    assert!(of("by").as_str().unwrap().contains('@'), "{json}");
    redis.kill9();
    let ran = status();
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(ran.out.contains("redis://"), "{}", ran.out);
    redis.restart().unwrap();
    step(&["abort"]);
    redis.kill9();
    // Now nothing needs it.
    let ran = status();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn status_has_the_code_of_what_is_wrong() {
    let named = Named::new("[store.odd]\nurl = \"sqlite:$DIR/odd.db?no-such-option=1\"\n");
    assert_eq!(named.run(&["status"]).code, 78);
}

/// Such a variable must not count as unset: the command would use another store than the user means.
#[test]
fn a_variable_that_is_not_utf_8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    let mut command = fixture.command(&["run", "a", "--", "true"]);
    command.env(
        "FENCELOCK_STORE",
        std::ffi::OsStr::from_bytes(b"sqlite:/tmp/\xfc.db"),
    );
    command.env("HOME", fixture.path("home"));
    let ran = finish(command);
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.err.contains("FENCELOCK_STORE"), "{ran:?}");
    assert!(!fs::exists(fixture.path("home")).unwrap());
}

#[cfg(feature = "serve")]
#[test]
fn the_service_serves_a_store_of_its_file() {
    // An empty FENCELOCK_STORE names no store.
    let fixture = Fixture::on(String::new());
    let text = THREE.replace("$DIR", fixture.path("").trim_end_matches('/'));
    fs::write(fixture.path("fencelock.toml"), text).unwrap();
    let of_file = |words: &[&str]| fixture.run(&[&["--config", "fencelock.toml"], words].concat());
    assert_eq!(of_file(&["shards", "init", "--store", "@orders"]).code, 0);
    let service = crate::service::Service::start(&fixture, &["--config", "fencelock.toml"]);
    let taken = service.ask("POST", "/v1/claims", &[], r#"{"name":"x"}"#);
    assert_eq!(taken.status, 201, "{taken:?}");
    let listed = of_file(&["ls", "--store", "@orders"]);
    assert!(listed.out.starts_with("x: held"), "{listed:?}");
    assert!(fixture.read("serve").contains("store shards:orders\n"));
}

/// What the service refuses at its start, `config check` refuses, too.
#[cfg(feature = "serve")]
#[test]
fn a_check_refuses_what_the_service_refuses() {
    const TOKEN: &str = "{ id = \"a1b2c3d4\", sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\" }";
    let fixture = Fixture::new();
    let named = |name: &str, rest: &str| format!("[[principal]]\nname = \"{name}\"\n{rest}\n");
    let token = format!("tokens = [{TOKEN}]");
    for (text, why) in [
        ("[serve]\nlisten = [\"0.0.0.0:0\"]\n".to_owned(), "--insecure"),
        (
            format!("[serve]\nlisten = [\"0.0.0.0:0\"]\n{}", named("a", &token)),
            "TLS",
        ),
        (named("a", &token) + &named("b", &token), "a1b2c3d4"),
        (named("a", &format!("tokens = [{TOKEN}, {TOKEN}]")), "a1b2c3d4"),
        (
            named("a", "rights = [{ prefix = \"x/\", rights = [] }, { prefix = \"x/\", rights = [\"look\"] }]"),
            "x/",
        ),
        (
            "[serve]\nanonymous = [{ prefix = \"\", rights = [] }, { prefix = \"\", rights = [\"look\"] }]\n"
                .to_owned(),
            "prefix",
        ),
        (named("anonymous", ""), "anonymous"),
        (named("operator", ""), "operator"),
        ("[serve.limits]\nconnections = 0\n".to_owned(), "connections"),
    ] {
        fs::write(fixture.path("serve.toml"), &text).unwrap();
        for words in [
            &["--config", "serve.toml", "config", "check"][..],
            &["serve", "--config", "serve.toml", "--drain", "0s"],
        ] {
            let ran = fixture.run(words);
            assert_eq!(ran.code, 78, "{words:?} {text}{ran:?}");
            assert!(ran.err.contains(why), "{why}: {words:?} {text}{}", ran.err);
        }
    }
    let insecure = "[serve]\nlisten = [\"0.0.0.0:0\"]\ninsecure = true\n";
    fs::write(fixture.path("serve.toml"), insecure).unwrap();
    let fine = fixture.run(&["--config", "serve.toml", "config", "check"]);
    assert_eq!(fine.code, 0, "{fine:?}");
}
