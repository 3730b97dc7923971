//! Making, opening and using a set of stores in memory.

use std::fmt;
use std::sync::{Arc, Mutex};

use fencelock_composite::{KeyRule, Opening, Routed};
use fencelock_core::engine::{
    Claim, Cursor, Grant, HeldClaim, Leave, Place, Record, RecordChange, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::layers::{Layer, Prefix};
use fencelock_core::{
    ClaimIds, Client, Engine, Error, Evict, Finding, LockName, LockView, LossReason, Memory,
    Release, Result,
};

use crate::{World, name_on, until};

#[tokio::test]
async fn each_name_is_on_its_shard() {
    let world = World::made(3).await;
    let (client, set) = world.client().await;
    let (other, _) = world.client().await;
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let name = name_on(&set, id);
        let guard = client.lock(&name).await.unwrap();
        assert_eq!(world.store(at).len(), 1);
        assert!(matches!(
            other.try_lock(&name).await,
            Err(Error::Held { .. })
        ));
        let waiter = tokio::spawn(other.lock(&name).into_future());
        until("it waits", async || {
            !client.look(&name).await.unwrap().waiters.is_empty()
        })
        .await;
        assert!(
            client
                .check(&guard.sequencer().await.unwrap())
                .await
                .unwrap()
        );
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        // Events come from each store.
        let token = next.token();
        assert!(client.evict(&name, token, Evict::Release).await.unwrap());
        assert_eq!(next.lost().await, LossReason::TakenAway);
        drop(next);
        until("nothing is left", async || world.store(at).is_empty()).await;
    }
}

#[tokio::test]
async fn locks_of_several_shards_are_taken_all_or_none() {
    let world = World::made(3).await;
    let (client, set) = world.client().await;
    let (other, _) = world.client().await;
    let names = ["a", "b", "c"].map(|id| name_on(&set, id));
    let all = client.lock_all(&names).await.unwrap();
    assert!((0..3).all(|at| world.store(at).len() == 1));
    assert_eq!(all.release().await.unwrap(), Release::Released);
    let mut last = names.clone();
    last.sort();
    let held = other.lock(&last[2]).await.unwrap();
    let error = client.try_lock_all(&names).await.unwrap_err();
    assert!(matches!(&error, Error::Held { name, .. } if name.as_str() == last[2]));
    held.release().await.unwrap();
    assert!((0..3).all(|at| world.store(at).is_empty()));
}

#[tokio::test]
async fn a_list_goes_from_store_to_store() {
    let world = World::made(3).await;
    let (client, set) = world.client().await;
    let mut names = ["a", "b", "c"].map(|id| name_on(&set, id));
    let guards = client.lock_all(&names).await.unwrap();
    let listed = client.list("name/").await.unwrap();
    let mut listed: Vec<_> = listed.iter().map(|view| view.name.to_string()).collect();
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    let page = set.inspect().list("", None, 10).await.unwrap();
    assert_eq!(page.next, Some(Cursor("b:".to_owned())));
    drop(guards);
}

#[tokio::test]
async fn a_store_that_is_not_the_shard_is_refused() {
    let world = World::made(2).await;
    let engine = |at: usize| Arc::new(world.store(at).another()) as Arc<dyn Engine>;
    let refused = async |shards: Vec<(&str, Arc<dyn Engine>)>, key, wanted: &str| {
        let set = Routed::shards(shards).set("orders").key(key);
        let error = set.open().await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(wanted), "{error}");
    };
    let braces = KeyRule::Braces;
    let swapped = vec![("a", engine(1)), ("b", engine(0))];
    refused(swapped, braces, "two URLs are swapped").await;
    refused(
        vec![("a", engine(0))],
        braces,
        "all programs must name the same",
    )
    .await;
    let other_rule = vec![("a", engine(0)), ("b", engine(1))];
    refused(
        other_rule,
        KeyRule::Slash,
        "all programs must name the same",
    )
    .await;
    let empty: Arc<dyn Engine> = Arc::new(Memory::new());
    refused(
        vec![("a", engine(0)), ("b", empty)],
        braces,
        "fencelock shards init",
    )
    .await;
    let other_set = world
        .set()
        .set("stock")
        .open()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        other_set.contains("\"orders\", and not of \"stock\""),
        "{other_set}"
    );
    // A record of a later format version.
    let (store, record) = (
        world.store(0),
        world.store(0).record("", None).await.unwrap(),
    );
    let newer = record.text.replace("\"phase\":0", "\"phase\":1");
    let change = RecordChange::new(record.version, newer).unwrap();
    store.record("", Some(&change)).await.unwrap();
    let newer = world.set().open().await.unwrap_err().to_string();
    assert!(newer.contains("newer fencelock"), "{newer}");
}

#[tokio::test]
async fn records_are_written_once_and_finished_when_interrupted() {
    let world = World::made(3).await;
    let before = world.store(0).record("", None).await.unwrap();
    assert!(before.text.contains("\"self\":\"a\""), "{}", before.text);
    world.set().init().await.unwrap();
    assert_eq!(world.store(0).record("", None).await.unwrap(), before);
    let error = world.set().key(KeyRule::Slash).init().await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    // A store that is used by itself.
    let used = Memory::new();
    let client = Client::new(Arc::new(used.another())).unwrap();
    let guard = client.lock("report").await.unwrap();
    let engine = || [("a", Arc::new(used.another()) as Arc<dyn Engine>)];
    let error = Routed::shards(engine())
        .init()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("lock report is held there"), "{error}");
    guard.release().await.unwrap();
    Routed::shards(engine()).init().await.unwrap();
    // Two shards on one store.
    let store = Memory::new();
    let engine = || Arc::new(store.another()) as Arc<dyn Engine>;
    let twice = Routed::shards([("a", engine()), ("b", engine())]);
    let error = twice.init().await.unwrap_err().to_string();
    assert!(error.contains("two shards have one store"), "{error}");
}

#[tokio::test]
async fn two_sets_share_stores_by_prefixes() {
    let stores = [Memory::new(), Memory::new()];
    let set = |prefix: &str| {
        let shards = stores.iter().zip(["a", "b"]).map(|(store, id)| {
            let prefixed = Prefix::new(Arc::new(store.another()), prefix).unwrap();
            (id, Arc::new(prefixed) as Arc<dyn Engine>)
        });
        Routed::shards(shards.collect::<Vec<_>>()).set(prefix.trim_end_matches(':'))
    };
    set("one:").init().await.unwrap();
    set("two:").init().await.unwrap();
    let (one, two) = (
        set("one:").open().await.unwrap(),
        set("two:").open().await.unwrap(),
    );
    let (one, two) = (
        Client::new(Arc::new(one)).unwrap(),
        Client::new(Arc::new(two)).unwrap(),
    );
    let guard = one.lock("report").await.unwrap();
    two.try_lock("report")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn renewals_are_answered_in_order_and_kept_apart() {
    let world = World::made(3).await;
    let (_, set) = world.client().await;
    let ids = ClaimIds::new().unwrap();
    let mut held = Vec::new();
    for number in 0..30 {
        let name = LockName::new(&format!("name/{number}")).unwrap();
        let claim = Claim::new(ids.next(), "me", name);
        let Standing::Held(grant) = set.place(&claim).await.unwrap() else {
            panic!("it is free");
        };
        let token = grant.tokens.first;
        held.push(HeldClaim::new(claim, token));
    }
    for lost in held.iter_mut().step_by(3) {
        lost.token = fencelock_core::Token(lost.token.get() + 1000);
    }
    let renewals = set.renew(&held).await;
    for (at, renewal) in renewals.iter().enumerate() {
        let kept = matches!(renewal, Renewal::Kept { .. });
        assert_eq!(kept, at % 3 != 0, "{at}: {renewal:?}");
    }
    let lanes: std::collections::BTreeSet<_> =
        held.iter().map(|held| set.lane(&held.claim.name)).collect();
    assert_eq!(lanes.len(), 3);
}

#[tokio::test]
async fn a_set_promises_what_the_weakest_does() {
    let (one, other) = (Memory::new(), Memory::new());
    let weak = || {
        let weak = Weak {
            engine: Arc::new(other.another()),
            promises: other.promises().clone().shared(false).limits(vec![
                Finding::against_correctness("it forgets", "do not let it"),
            ]),
        };
        Arc::new(weak) as Arc<dyn Engine>
    };
    let strong = || Arc::new(one.another()) as Arc<dyn Engine>;
    Routed::shards([("a", strong()), ("b", weak())])
        .init()
        .await
        .unwrap();
    let set = Routed::shards([("a", strong()), ("b", weak())])
        .open()
        .await
        .unwrap();
    assert!(!set.promises().shared && set.promises().permits);
    assert_eq!(set.promises().limits[0].what, "[b] it forgets");
    let client = Client::new(Arc::new(set)).unwrap();
    let error = client.lock("report").shared().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    // A store that promises less than when the set was made.
    let set = Routed::shards([("a", weak()), ("b", weak())]);
    assert!(set.init().await.is_err());
    let world = World::made(1).await;
    let weaker = Weak {
        engine: Arc::new(world.store(0).another()),
        promises: world.store(0).promises().clone().permits(false),
    };
    let shards = [("a", Arc::new(weaker) as Arc<dyn Engine>)];
    let error = Routed::shards(shards)
        .set("orders")
        .open()
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("does not offer permits"),
        "{error}"
    );
}

#[derive(Debug)]
struct Weak {
    engine: Arc<dyn Engine>,
    promises: fencelock_core::Promises,
}

impl fencelock_core::layers::Layer for Weak {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn promises(&self) -> &fencelock_core::Promises {
        &self.promises
    }
}

impl std::fmt::Display for Weak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(f)
    }
}

#[tokio::test]
async fn a_shard_that_is_crowded_is_a_finding() {
    let world = World::made(3).await;
    let (client, set) = world.client().await;
    assert!(client.diagnose().await.unwrap().is_empty());
    let key = name_on(&set, "b");
    let names = (0..250).map(|number| format!("{{{key}}}/{number}"));
    let guards = client.lock_all(names).await.unwrap();
    let found = client.diagnose().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.starts_with("[b] 250 of the 250"), "{found:?}");
    drop(guards);
}

#[tokio::test]
async fn only_the_stores_that_are_needed_are_opened() {
    let world = World::made(3).await;
    let set = world.set().opening(Opening::AsNeeded).open().await.unwrap();
    assert_eq!(set.opened(), ["a"]);
    let name = name_on(&set, "c");
    let set = Arc::new(set);
    let client = Client::new(set.clone()).unwrap();
    client.lock(&name).await.unwrap().release().await.unwrap();
    assert_eq!(set.opened(), ["a", "c"]);
    assert!(client.list("").await.unwrap().is_empty());
    assert_eq!(set.opened(), ["a", "b", "c"]);
    client.close().await.unwrap();
    // No store is opened after `close`.
    let set = world.set().opening(Opening::AsNeeded).open().await.unwrap();
    set.close().await.unwrap();
    let looked = set.inspect().look(&LockName::new(&name).unwrap()).await;
    assert!(matches!(looked, Err(Error::Closed)), "{looked:?}");
}

/// A store that records the calls that it gets.
#[derive(Debug)]
struct Asked {
    engine: Arc<dyn Engine>,
    asked: Arc<Mutex<Vec<&'static str>>>,
}

impl Asked {
    fn note(&self, what: &'static str) {
        self.asked.lock().unwrap().push(what);
    }
}

#[async_trait::async_trait]
impl Layer for Asked {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.note("place");
        self.engine.place(claim).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.note("wait");
        self.engine.wait(claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.note("renew");
        self.engine.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.note("withdraw");
        self.engine.withdraw(claim, how).await
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        self.note("record");
        self.engine.record(scope, change).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.note("look");
        self.engine.inspect().look(name).await
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}

/// A lock costs as many calls as without the set: the record is read only when the set is opened.
#[tokio::test]
async fn a_take_calls_its_shard_once_and_no_other() {
    let world = World::made(2).await;
    let asked: [Arc<Mutex<Vec<_>>>; 2] = Default::default();
    let shards = ["a", "b"].into_iter().enumerate().map(|(at, id)| {
        let engine = Arc::new(world.store(at).another());
        let asked = Arc::clone(&asked[at]);
        (id, Arc::new(Asked { engine, asked }) as Arc<dyn Engine>)
    });
    let set = Routed::shards(shards).set("orders").open().await.unwrap();
    let set = Arc::new(set);
    let client = Client::new(set.clone()).unwrap();
    let took = || {
        asked
            .each_ref()
            .map(|of| std::mem::take(&mut *of.lock().unwrap()))
    };
    assert_eq!(took(), [["record"], ["record"]]);
    let name = name_on(&set, "b");
    for _ in 0..2 {
        client.lock(&name).await.unwrap().release().await.unwrap();
        assert_eq!(took(), [vec![], vec!["place", "withdraw"]]);
    }
}
