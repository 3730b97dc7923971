//! `migrate` while programs run: its steps as commands, and programs that are stopped, killed or forgotten meanwhile.

use fencelock_testbed::Dir;
#[cfg(all(feature = "redis", feature = "etcd"))]
use fencelock_testbed::Etcd;
#[cfg(feature = "redis")]
use fencelock_testbed::Redis;
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, Ran, Running, until};
#[cfg(feature = "redis")]
use crate::fixture::{patient, run_block};

/// Two stores between which locks move, with programs that use them.
pub(crate) struct Move {
    dir: Dir,
    pub(crate) programs: Fixture,
    pub(crate) ttl: &'static str,
}

/// Short enough for the pace: a ttl may be at most two thirds of it. Long enough for a machine that stands still for a second.
pub(crate) const TTL: &str = "2400ms";

pub(crate) const PREPARE: [&str; 5] = ["prepare", "--pace", "3600ms", "--tight", "400ms"];

impl Move {
    fn prepared() -> Self {
        let dir = Dir::new("migrate").unwrap();
        let [from, to] = ["old", "new"].map(|name| format!("sqlite:{}", dir.join(name)));
        let all = Self::between(dir, &from, &to);
        all.done(&PREPARE);
        all
    }

    pub(crate) fn between(dir: Dir, from: &str, to: &str) -> Self {
        let [from, to] = [from, to].map(|url| {
            let encoded = url.bytes().map(|byte| format!("%{byte:02X}"));
            encoded.collect::<String>()
        });
        let programs = Fixture::on(format!("migrate:?set=orders&from={from}&to={to}"));
        Self {
            dir,
            programs,
            ttl: TTL,
        }
    }

    fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.dir.join(name))
    }

    pub(crate) fn step(&self, words: &[&str]) -> Ran {
        self.programs.run(&[&["migrate"], words].concat())
    }

    pub(crate) fn done(&self, words: &[&str]) -> String {
        let ran = self.step(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.out
    }

    fn status(&self) -> Value {
        let ran = self.step(&["status", "--json"]);
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
    }

    pub(crate) fn token(&self) -> u64 {
        let words = ["run", "--ttl", self.ttl, "x", "-c", "echo $FENCELOCK_TOKEN"];
        let ran = self.programs.run(&words);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out.trim().parse().unwrap()
    }

    pub(crate) fn hold(&self, name: &str) -> (Running, u64) {
        let mut hold = self.programs.start(&["hold", "--ttl", self.ttl, name]);
        let token = hold.json()["token"].as_u64().unwrap();
        (hold, token)
    }

    /// The program that makes the step is killed in the hush. The result holds up the next step.
    pub(crate) fn stop_in_the_hush(&self, old: &str) -> Running {
        // A step waits for this lock when it draws a token.
        let within = Fixture::on(format!("{old}?outside-set=yes"));
        let mut probe = within.start(&["hold", "fencelock/migrate"]);
        probe.line();
        let mut killed = self.programs.start(&["migrate", "finish"]);
        killed.says("fencelock: phase 2");
        killed.signal(Signal::KILL);
        killed.end();
        probe
    }
}

#[test]
fn all_steps_and_back_with_a_hold_that_lives_through_them() {
    let all = Move::prepared();
    let (held, _) = all.hold("held");
    let mut last = all.token();
    let mut grows = |phase: &str| {
        let next = all.token();
        assert!(next > last, "{phase}: {next} after {last}");
        last = next;
    };
    let early = all.step(&["finish"]);
    assert_eq!(early.code, 1, "{early:?}");
    assert!(early.err.contains("not yet"), "{early:?}");
    assert!(all.done(&["begin"]).starts_with("phase 1"));
    grows("1");
    assert!(all.done(&["begin"]).starts_with("phase 1"), "again");
    assert!(all.done(&["finish"]).starts_with("phase 3"));
    grows("3");
    assert_eq!(all.status()["phase"], 3);
    assert!(all.done(&["finish"]).starts_with("phase 4"));
    grows("4");
    assert!(all.done(&["finish"]).starts_with("phase 4"), "again");
    let back = all.step(&["abort", "--patience", "10s"]);
    assert_eq!(back.code, 0, "{back:?}");
    grows("back");
    assert_eq!(all.status()["phase"], 0);
    assert_eq!(held.end().code, 0);
}

#[test]
fn a_dissolved_set_leaves_the_plain_url_of_the_new_store() {
    let all = Move::prepared();
    let dissolve = || all.programs.run(&["set", "dissolve"]);
    let refused = |ran: Ran, code: i32, what: &str| {
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
        assert!(ran.err.contains(what), "{}", ran.err);
    };
    all.done(&["begin"]);
    refused(dissolve(), 1, "phase 1");
    all.done(&["finish"]);
    all.done(&["finish"]);
    let last = all.token();
    let done = dissolve();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains(&all.url("new")), "{done:?}");
    assert_eq!(dissolve().code, 0, "again");
    let plain = Fixture::on(all.url("new"));
    let ran = plain.run(&["run", "x", "-c", "echo $FENCELOCK_TOKEN"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let token: u64 = ran.out.trim().parse().unwrap();
    assert!(token > last, "{token} after {last}");
    let of_set = all.programs.run(&["run", "--ttl", TTL, "x", "--", "true"]);
    refused(of_set, 78, "was dissolved");
    refused(plain.run(&["set", "dissolve"]), 78, "name a set");
}

/// The command asks the new store alone.
#[cfg(feature = "redis")]
#[test]
fn a_set_is_dissolved_only_while_its_store_answers() {
    let dir = Dir::new("migrate").unwrap();
    let redis = Redis::start().unwrap();
    let to = patient(&redis).replace('?', "%3F");
    let from = format!("sqlite%3A{}", dir.join("old"));
    let set = Fixture::on(format!("migrate:?set=orders&from={from}&to={to}"));
    let begin = ["begin", "--despite-findings"];
    for words in [&PREPARE[..], &begin, &["finish"], &["finish"]] {
        let ran = set.run(&[&["migrate"], words].concat());
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
    }
    drop(redis);
    let away = set.run(&["set", "dissolve"]);
    assert_eq!(away.code, 69, "{away:?}");
}

#[test]
fn a_plain_url_is_refused_while_both_stores_count() {
    let all = Move::prepared();
    let runs = |name: &str| {
        let plain = Fixture::on(all.url(name));
        plain.run(&["run", "y", "--", "true"]).code
    };
    // Programs can be switched one after another.
    assert_eq!((runs("old"), runs("new")), (0, 78));
    all.done(&["begin"]);
    assert_eq!((runs("old"), runs("new")), (78, 78));
    all.done(&["finish"]);
    assert_eq!((runs("old"), runs("new")), (78, 78));
    all.done(&["finish"]);
    assert_eq!((runs("old"), runs("new")), (78, 0));
}

#[test]
fn a_program_that_was_not_switched_stops_the_move() {
    let all = Move::prepared();
    let plain = Fixture::on(all.url("old"));
    let mut forgotten = plain.start(&["hold", "nightly"]);
    forgotten.line();
    all.done(&["begin"]);
    let status = all.step(&["status"]);
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.out.contains("not switched: nightly"), "{status:?}");
    let refused = all.step(&["finish", "--patience", "0s"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("nightly"), "{refused:?}");
    assert_eq!(forgotten.end().code, 0);
    all.done(&["finish", "--quiet", "1s"]);
}

/// A program that is stopped in phase 1 misses two steps and the hush.
#[test]
fn a_program_stopped_over_all_steps_has_lost_its_lock() {
    let all = Move::prepared();
    all.done(&["begin"]);
    let (hold, token) = all.hold("x");
    hold.signal(Signal::STOP);
    let next = all.token();
    assert!(next > token);
    all.done(&["finish"]);
    all.done(&["finish"]);
    let (other, last) = all.hold("x");
    assert!(last > next);
    hold.signal(Signal::CONT);
    let stopped = hold.end();
    assert_eq!(stopped.code, 75, "{stopped:?}");
    assert_eq!(other.end().code, 0);
}

/// A step is killed while it waits, and in the hush. Each time another administrator continues.
#[test]
fn a_step_that_is_killed_is_made_by_the_next_one() {
    let all = Move::prepared();
    all.done(&["begin"]);
    let version = all.status()["version"].as_u64().unwrap();
    let mut killed = all.programs.start(&["migrate", "finish"]);
    killed.says("s before phase 2");
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code, -9);
    assert_eq!(all.status()["version"], version);
    let killed = all.programs.start(&["migrate", "finish"]);
    until("the hush begins", || all.status()["phase"] != 1);
    killed.signal(Signal::KILL);
    killed.end();
    let before = all.done(&["finish"]);
    // The step was in the hush, or just after it.
    assert!(
        before.starts_with("phase 3") || before.starts_with("phase 4"),
        "{before}"
    );
    all.token();
}

/// Nothing is granted until an administrator makes the step. No other claim holds, so the error must not name a holder.
#[test]
fn a_waiter_in_an_abandoned_hush_sees_the_reason() {
    let all = Move::prepared();
    all.done(&["begin"]);
    let probe = all.stop_in_the_hush(&all.url("old"));
    let words = |wait: &'static [&'static str]| {
        [&["run", "--ttl", TTL], wait, &["x", "--", "true"]].concat()
    };
    // The first waiter gets its place in the old store, and the other one waits after it.
    let first = all.programs.start(&words(&["-w", "4s"]));
    all.programs.await_waiters("x", 1);
    for ran in [
        all.programs.run(&words(&["-w", "2s"])),
        all.programs.run(&words(&["-n"])),
        first.end(),
    ] {
        assert_eq!(ran.code, 69, "{ran:?}");
        assert!(ran.err.contains("between two stores"), "{ran:?}");
        assert!(ran.err.contains("migrate finish"), "{ran:?}");
        assert!(!ran.err.contains("held by"), "{ran:?}");
    }
    // Without a time to wait, the choice of its user decides.
    let skips = all.programs.run(&words(&["--if-away", "skip"]));
    assert_eq!(skips.code, 0, "{skips:?}");
    assert!(skips.err.contains("between two stores"), "{skips:?}");
    assert!(skips.err.contains("was not run"), "{skips:?}");
    #[cfg(all(feature = "serve", feature = "http"))]
    a_waiter_through_the_service_sees_the_reason(&all);
    assert_eq!(probe.end().code, 0);
    assert!(all.done(&["finish"]).starts_with("phase 3"));
    all.token();
}

#[cfg(all(feature = "serve", feature = "http"))]
fn a_waiter_through_the_service_sees_the_reason(all: &Move) {
    let service = crate::service::Service::start(&all.programs, &[]);
    let clients = Fixture::on(service.store());
    for wait in [&["-w", "2s"][..], &["-n"]] {
        let words = [&["run", "--ttl", TTL], wait, &["x", "--", "true"]].concat();
        let ran = clients.run(&words);
        assert_eq!(ran.code, 69, "{ran:?}");
        assert!(ran.err.contains("between two stores"), "{ran:?}");
        assert!(!ran.err.contains("held by"), "{ran:?}");
    }
    let body = r#"{"name":"x","ttl_ms":2400,"wait_ms":2000}"#;
    let simple = service.ask("POST", "/v1/claims", &[], body);
    assert_eq!(simple.status, 503, "{simple:?}");
    let detail = simple.body["detail"].as_str().unwrap();
    assert!(detail.contains("between two stores"), "{detail}");
}

/// Two administrators prepare at once, with the stores in a different order.
#[test]
fn abort_ends_what_two_preparations_left() {
    let all = Move::prepared();
    let encoded = |name: &str| all.url(name).replace(':', "%3A");
    let swapped = format!(
        "migrate:?set=orders&from={}&to={}",
        encoded("new"),
        encoded("old")
    );
    // Both administrators have written their first record.
    let other = Dir::new("migrate").unwrap();
    let (new, lost) = (all.dir.join("new"), other.join("lost"));
    std::fs::remove_file(&new).unwrap();
    let half = format!(
        "migrate:?set=orders&from={}&to=sqlite%3A{lost}",
        encoded("new")
    );
    let prepare = |programs: &Fixture| programs.run(&[&["migrate"], &PREPARE[..]].concat());
    assert_eq!(prepare(&Fixture::on(half)).code, 0);
    let swapped = Fixture::on(swapped);
    for ran in [
        prepare(&all.programs),
        prepare(&swapped),
        all.step(&["begin"]),
        swapped.run(&["migrate", "begin"]),
    ] {
        assert_eq!(ran.code, 78, "{ran:?}");
    }
    assert!(all.done(&["abort"]).starts_with("phase 0"));
    assert!(all.done(&["begin"]).starts_with("phase 1"));
    all.token();
    assert_eq!(swapped.run(&["migrate", "abort"]).code, 78);
}

/// The set cannot go on with it, and says who can.
#[test]
fn a_grant_from_before_the_move_goes_on_at_its_store() {
    let all = Move::prepared();
    let plain = Fixture::on(all.url("old"));
    let grant = all.dir.join("x.grant");
    let taken = plain.run(&["take", "x", "--ttl", "60s", "--grant", &grant]);
    assert_eq!(taken.code, 0, "{taken:?}");
    all.done(&["begin"]);
    for word in ["renew", "release"] {
        let refused = all.programs.run(&[word, "--grant", &grant]);
        assert_eq!(refused.code, 64, "{refused:?}");
        assert!(refused.err.contains("outside-set=yes"), "{refused:?}");
    }
    assert_eq!(all.step(&["finish"]).code, 1, "it is in one store alone");
    let alone = Fixture::on(format!("{}?outside-set=yes", all.url("old")));
    for word in ["renew", "release"] {
        let ran = alone.run(&[word, "--grant", &grant]);
        assert_eq!(ran.code, 0, "{word}: {ran:?}");
    }
    assert!(all.done(&["finish"]).starts_with("phase"));
}

#[test]
fn stores_of_other_sets_and_swapped_ones_are_refused() {
    let all = Move::prepared();
    let [old, new] = [all.url("old"), all.url("new")];
    let encoded = |url: &str| url.replace(':', "%3A");
    let swapped = format!(
        "migrate:?set=orders&from={}&to={}",
        encoded(&new),
        encoded(&old)
    );
    let other = format!(
        "migrate:?set=bills&from={}&to={}",
        encoded(&old),
        encoded(&new)
    );
    for url in [swapped, other] {
        let programs = Fixture::on(url);
        for words in [
            &["run", "x", "--", "true"][..],
            &["migrate", "begin"],
            &["migrate", "status"],
        ] {
            let refused = programs.run(words);
            assert_eq!(refused.code, 78, "{words:?}: {refused:?}");
        }
    }
    let no_move = Fixture::on(old.clone()).run(&["migrate", "status"]);
    assert_eq!(no_move.code, 78, "{no_move:?}");
    let typed = all.step(&["finish", "--old-is-destroyed", "bills"]);
    assert_eq!(typed.code, 64, "{typed:?}");
}

#[cfg(all(feature = "redis", feature = "etcd"))]
#[test]
fn the_live_walk_of_the_page_on_operations_runs() {
    // A server that forgets its locks in a restart is refused soon after the restart.
    let redis = Redis::builder().append_only("always").start().unwrap();
    let etcd = Etcd::start().unwrap();
    let own = [
        (
            "old=redis://127.0.0.1:6379",
            format!("old={}", patient(&redis)),
        ),
        ("new=etcd://127.0.0.1:2379", format!("new={}", etcd.url())),
        ("pace=60s", "pace=3600ms".to_owned()),
        ("ttl=30s", format!("ttl={TTL}")),
        // This etcd has one member.
        (
            "fencelock migrate begin --store @orders",
            "fencelock migrate begin --store @orders --despite-findings".to_owned(),
        ),
    ];
    let own = own.map(|(line, own)| (line.to_owned(), own));
    let tokens = tokens_of_walk(1, own);
    assert!(tokens.len() >= 4 && tokens.is_sorted(), "{tokens:?}");
}

/// A set of two shards in files, and a shard to add.
#[test]
fn a_shard_is_added_by_commands_over_a_configuration_file() {
    let dir = Dir::new("grow").unwrap();
    let file = dir.join("fencelock.toml");
    let [a, b, c] = ["a", "b", "c"].map(|name| format!("sqlite:{}", dir.join(name)));
    let stores = format!(
        "[store.orders]\nshards = {{ a = {a:?}, b = {b:?} }}\n\
         [store.orders3]\nshards = {{ a = {a:?}, b = {b:?}, c = {c:?} }}\n"
    );
    std::fs::write(&file, &stores).unwrap();
    let run = |store: &str, words: &[&str]| {
        let config = ["--config", &file, "--store", store];
        Fixture::on(store.to_owned()).run(&[&config, words].concat())
    };
    let prepare = |from: &str, to: &str| {
        let words = [
            "--set", "grow", "--from", from, "--to", to, "--config", &file,
        ];
        Fixture::on(String::new()).run(&[&["migrate"], &PREPARE[..], &words].concat())
    };
    let early = prepare("@orders", "@orders3");
    assert_eq!(early.code, 78, "{early:?}");
    assert!(early.err.contains("shards init"), "{early:?}");
    assert_eq!(run("@orders", &["shards", "init"]).code, 0);
    let one = prepare("@orders", &c);
    assert_eq!(one.code, 78, "{one:?}");
    assert!(one.err.contains("one is a set of shards"), "{one:?}");
    let prepared = prepare("@orders", "@orders3");
    assert_eq!(prepared.code, 0, "{prepared:?}");
    assert_eq!(
        prepared.out,
        "[store.grow]\nmigrate = { from = \"@orders\", to = \"@orders3\" }\n"
    );
    std::fs::write(&file, stores + &prepared.out).unwrap();
    let takes = |store: &str| run(store, &["run", "--ttl", TTL, "x", "-c", "true"]).code;
    assert_eq!(
        [takes("@orders"), takes("@orders3"), takes("@grow")],
        [0, 78, 0]
    );
    for (step, phase) in [("begin", 1), ("finish", 3), ("finish", 4)] {
        let stepped = run("@grow", &["migrate", step]);
        assert_eq!(stepped.code, 0, "{stepped:?}");
        assert!(
            stepped.out.starts_with(&format!("phase {phase}")),
            "{stepped:?}"
        );
        assert_eq!(takes("@orders"), 78);
        assert_eq!(takes("@grow"), 0);
    }
    assert_eq!(takes("@orders3"), 0);
    let status = run("@grow", &["migrate", "status"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(status.out.contains("\nc: sqlite:"), "{status:?}");
    let listed = run("@grow", &["ls", "--partial"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    let checked = Fixture::on("@grow".to_owned()).run(&["config", "check", "--config", &file]);
    assert_eq!(checked.code, 0, "{checked:?}");
}

#[cfg(feature = "redis")]
#[test]
fn the_walk_that_adds_a_shard_runs() {
    let servers = [(); 3].map(|()| Redis::builder().append_only("always").start().unwrap());
    let urls = servers.iter().zip(1..).map(|(server, number)| {
        let line = format!("r{number}=redis://r{number}:6379");
        (line, format!("r{number}={}", patient(server)))
    });
    let own = [
        ("pace=60s", "pace=3600ms".to_owned()),
        ("ttl=30s", format!("ttl={TTL}")),
    ];
    let own = own.map(|(line, own)| (line.to_owned(), own));
    let tokens = tokens_of_walk(2, urls.chain(own));
    assert!(tokens.len() == 6 && tokens.is_sorted(), "{tokens:?}");
}

/// Runs a block of commands of docs/operations.md (counted from 0), with a test's own lines in place of some of the
/// page's. Returns the tokens that it prints.
#[cfg(feature = "redis")]
fn tokens_of_walk(block: usize, own: impl IntoIterator<Item = (String, String)>) -> Vec<u64> {
    const PAGE: &str = include_str!("../../../docs/operations.md");
    let block = PAGE.split("```sh\n").nth(block + 1).unwrap();
    let mut script = block.split("```").next().unwrap().to_owned();
    for (line, own) in own {
        assert!(script.contains(&line), "{line}");
        script = script.replace(&line, &own);
    }
    let dir = Dir::new("walk").unwrap();
    let ran = run_block(&script, Some(dir.path()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let tokens = ran
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("token "));
    tokens.map(|token| token.parse().unwrap()).collect()
}
