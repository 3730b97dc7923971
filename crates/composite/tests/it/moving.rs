//! Locks that move from one store to another: the beliefs of clients in each phase, and over all steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fencelock_composite::{How, Migrate, Phase, Stepped};
use fencelock_core::engine::{Claim, Leave, Record, RecordChange, Standing, Withdrawn};
use fencelock_core::layers::Layer;
use fencelock_core::{ClaimIds, Client, Engine, Error, LockName, LossReason, Memory, Token};

use crate::two::{
    LONG_PACE, LONG_TTL, PACE, SLOW_PACE, SLOW_TTL, TIGHT, TTL, Two, grow_and_differ, holds_until,
    set_phase, token,
};
use crate::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_moves_and_comes_back_with_growing_tokens() {
    let two = Two::paced(SLOW_PACE).await;
    // The new store's tokens are far below those of the old one.
    for _ in 0..50 {
        token(&Client::new(Arc::new(two.old.another())).unwrap(), "other").await;
    }
    let two = Arc::new(two);
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (two, done) = (Arc::clone(&two), Arc::clone(&done));
            tokio::spawn(async move {
                let client = two.client().await;
                holds_until(&done, &client, "x").await
            })
        })
        .collect();
    let highest = Arc::new(std::sync::Mutex::new(Token(0)));
    let watch = {
        let client = two.client().await;
        let highest = Arc::clone(&highest);
        async move |phase: &str| {
            let next = token(&client, "x").await;
            let mut highest = highest.lock().unwrap();
            assert!(next > *highest, "{phase}: {next} after {highest}");
            *highest = next;
        }
    };
    watch("0").await;
    two.begin().await;
    watch("1").await;
    two.finish(Phase::BothNew).await;
    watch("3").await;
    two.finish(Phase::New).await;
    watch("4").await;
    two.abort().await;
    watch("back to 0").await;
    done.store(true, SeqCst);
    grow_and_differ(workers).await;
}

#[tokio::test]
async fn a_hold_lives_through_all_steps() {
    let two = Two::paced(SLOW_PACE).await;
    let client = two.client().await;
    let guard = client.lock("x").ttl(SLOW_TTL).await.unwrap();
    let token = guard.token();
    two.begin().await;
    until("it is completed", async || two.held("x").await == [1, 1]).await;
    two.finish(Phase::BothNew).await;
    let view = client.look("x").await.unwrap();
    assert_eq!(view.token(), Some(token), "one hold has one token");
    let listed = client.list("").await.unwrap();
    assert_eq!(listed[0].token(), Some(token), "{listed:?}");
    two.finish(Phase::New).await;
    assert!(guard.is_valid());
    assert_eq!(guard.token(), token);
    until("the old store is left", async || {
        two.held("x").await == [0, 1]
    })
    .await;
    let other = two.client().await;
    let busy = other.try_lock("x").ttl(SLOW_TTL).await.unwrap_err();
    assert!(matches!(busy, Error::Held { .. }), "{busy:?}");
    guard.release().await.unwrap();
    let next = other.lock("x").ttl(SLOW_TTL).await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    assert_eq!(two.held("x").await, [0, 0]);
}

#[tokio::test]
async fn a_waiter_goes_on_waiting_through_all_steps() {
    let two = Two::paced(SLOW_PACE).await;
    let (one, other) = (two.client().await, two.client().await);
    let guard = one.lock("x").ttl(SLOW_TTL).await.unwrap();
    let waiting = tokio::spawn(async move {
        let got = other.lock("x").ttl(SLOW_TTL).await.unwrap();
        (got, other)
    });
    until("it waits", async || {
        one.look("x").await.unwrap().waiters.len() == 1
    })
    .await;
    two.move_all().await;
    until("it waits at the new store", async || {
        two.new
            .inspect()
            .look(&LockName::new("x").unwrap())
            .await
            .unwrap()
            .waiters
            .len()
            == 1
    })
    .await;
    let token = guard.token();
    guard.release().await.unwrap();
    let (got, _client) = waiting.await.unwrap();
    assert!(got.token() > token);
    got.release().await.unwrap();
}

/// One client knows phase 1, and is cut off from the records. The other client knows phase 2, and then 3.
#[tokio::test]
async fn clients_that_are_one_step_apart_exclude_each_other() {
    let two = Two::paced(LONG_PACE).await;
    two.begin().await;
    let behind = two.engine().await;
    let client = Client::new(behind.clone()).unwrap();
    let guard = client.lock("x").ttl(LONG_TTL).await.unwrap();
    set_phase(&two, 3, 3, 1000).await;
    let ahead = two.client().await;
    assert!(ahead.try_lock("x").ttl(LONG_TTL).await.is_err());
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    let token = token(&ahead, "x").await;
    assert!(token > Token(1000), "{token}");
}

/// A grant in the new store from before its floor was known is not believed afterwards.
#[tokio::test]
async fn a_grant_below_the_floor_is_given_back() {
    let two = Two::paced(LONG_PACE).await;
    two.begin().await;
    let engine = two.engine().await;
    let name = LockName::new("x").unwrap();
    let claim = Claim::new(ClaimIds::new().unwrap().next(), "me", name).ttl(LONG_TTL);
    // Another claim holds the new store alone, so the claim comes no further than the old one.
    let mut blocker = claim.clone();
    blocker.id = ClaimIds::new().unwrap().next();
    assert!(matches!(
        two.new.place(&blocker).await.unwrap(),
        Standing::Held(_)
    ));
    assert!(matches!(
        engine.place(&claim).await.unwrap(),
        Standing::Waiting(_)
    ));
    two.new.withdraw(&blocker, Leave::Release).await.unwrap();
    // The claim's turn has come in the new store, below the floor.
    until("it holds there", async || two.held("x").await == [1, 1]).await;
    set_phase(&two, 3, 3, 1000).await;
    until("the engine knows", async || {
        engine.phase() == Some(Phase::BothNew)
    })
    .await;
    let standing = engine.place(&claim).await.unwrap();
    assert!(matches!(standing, Standing::Ended), "{standing:?}");
    engine.withdraw(&claim, Leave::Release).await.unwrap();
    assert_eq!(two.held("x").await, [0, 0]);
    // The core continues with a new claim.
    let client = Client::new(engine).unwrap();
    assert!(token(&client, "x").await > Token(1000));
}

/// A store whose locks are reachable, but whose record cannot be read while it is cut off.
#[derive(Debug)]
pub(crate) struct NoRecord {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) cut: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Layer for NoRecord {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record, Error> {
        match self.cut.load(SeqCst) {
            true => Err(Error::unavailable(
                self,
                "reading the record",
                "it is cut off",
            )),
            false => self.engine.record(scope, change).await,
        }
    }
}

impl std::fmt::Display for NoRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(f)
    }
}

/// A client, and a switch that cuts it off from the records.
async fn cut_off(two: &Two) -> (Client, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let store = |memory: &Memory| {
        let (engine, cut) = (Arc::new(memory.another()), Arc::clone(&cut));
        Arc::new(NoRecord { engine, cut }) as Arc<dyn Engine>
    };
    let stores = Migrate::between(("from", store(&two.old)), ("to", store(&two.new)));
    let engine = stores.set("orders").breaker(false).open().await.unwrap();
    (Client::new(Arc::new(engine)).unwrap(), cut)
}

#[tokio::test]
async fn without_the_record_a_hold_ends_with_the_knowledge() {
    let two = Two::prepared().await;
    let (client, cut) = cut_off(&two).await;
    let guard = client.lock("x").ttl(TTL).await.unwrap();
    let begun = Instant::now();
    cut.store(true, SeqCst);
    // The lease is renewed all the time and does not end, but the client's knowledge does.
    let reason = guard.lost().await;
    assert_eq!(reason, LossReason::Expired);
    let took = begun.elapsed();
    assert!(took <= PACE + Duration::from_secs(5), "{took:?}");
    let refused = client.try_lock("y").ttl(TTL).await.unwrap_err();
    assert!(refused.is_away(), "{refused:?}");
    cut.store(false, SeqCst);
    token(&client, "y").await;
}

/// A store in which no lock can be taken.
#[derive(Debug)]
struct NoLocks(Arc<dyn Engine>);

#[async_trait::async_trait]
impl Layer for NoLocks {
    fn below(&self) -> &dyn Engine {
        &*self.0
    }

    async fn place(&self, _: &Claim) -> Result<Standing, Error> {
        Err(Error::unavailable(self, "taking a lock", "it is cut off"))
    }
}

impl std::fmt::Display for NoLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The second store fails, and then its breaker refuses without a request.
#[tokio::test]
async fn the_first_store_is_given_back_if_the_second_is_away() {
    let two = Two::paced(LONG_PACE).await;
    two.begin().await;
    let new = NoLocks(Arc::new(two.new.another()));
    let stores = Migrate::between(
        ("from", Arc::new(two.old.another()) as Arc<dyn Engine>),
        ("to", Arc::new(new) as Arc<dyn Engine>),
    );
    let engine = Arc::new(stores.set("orders").open().await.unwrap());
    let client = Client::new(engine.clone()).unwrap();
    for number in 0..12 {
        let name = format!("x/{number}");
        let request = client.try_lock(&name).ttl(LONG_TTL);
        let refused = request.await.unwrap_err();
        assert!(refused.is_away(), "{refused:?}");
        // Long before its lease would end it.
        until("it is given back", async || two.held(&name).await == [0, 0]).await;
    }
}

/// A store whose answers are lost while it is cut off: a claim is placed, but cannot be withdrawn.
#[derive(Debug)]
struct NoAnswers {
    engine: Arc<dyn Engine>,
    cut: Arc<AtomicBool>,
}

impl NoAnswers {
    fn check(&self, action: &str) -> Result<(), Error> {
        match self.cut.load(SeqCst) {
            true => Err(Error::unavailable(self, action, "it is cut off")),
            false => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl Layer for NoAnswers {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn place(&self, claim: &Claim) -> Result<Standing, Error> {
        let standing = self.engine.place(claim).await;
        self.check("taking a lock")?;
        standing
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn, Error> {
        self.check("releasing a lock")?;
        self.engine.withdraw(claim, how).await
    }
}

impl std::fmt::Display for NoAnswers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(f)
    }
}

/// A call at the old store has no answer. Then the set moves, and the claim ends. It is not forgotten before the old store has
/// answered.
#[tokio::test]
async fn an_ended_claim_is_withdrawn_from_the_store_that_was_away() {
    let two = Two::prepared().await;
    let cut = Arc::new(AtomicBool::new(true));
    let old = NoAnswers {
        engine: Arc::new(two.old.another()),
        cut: Arc::clone(&cut),
    };
    let stores = Migrate::between(
        ("from", Arc::new(old) as Arc<dyn Engine>),
        ("to", Arc::new(two.new.another()) as Arc<dyn Engine>),
    );
    let engine = stores.set("orders").open().await.unwrap();
    let name = LockName::new("x").unwrap();
    let claim = |ttl| Claim::new(ClaimIds::new().unwrap().next(), "me", name.clone()).ttl(ttl);
    let ours = claim(Duration::from_secs(600)).wait(false);
    assert!(engine.place(&ours).await.unwrap_err().is_away());
    let blocker = two.new.place(&claim(Duration::from_secs(600))).await;
    assert!(matches!(blocker.unwrap(), Standing::Held(_)));
    set_phase(&two, 4, 2, 0).await;
    until("the engine knows", async || {
        engine.phase() == Some(Phase::New)
    })
    .await;
    let standing = engine.place(&ours).await.unwrap();
    assert!(matches!(standing, Standing::Ended), "{standing:?}");
    let withdrawn = engine.withdraw(&ours, Leave::Release).await;
    assert!(withdrawn.unwrap_err().is_away());
    assert_eq!(two.held("x").await, [1, 1]);
    cut.store(false, SeqCst);
    engine.withdraw(&ours, Leave::Release).await.unwrap();
    assert_eq!(two.held("x").await, [0, 1]);
}

/// A client knows only phase 1, while two steps and the hush take place.
#[tokio::test]
async fn a_cut_off_client_has_lost_its_hold_before_the_last_step() {
    let two = Two::prepared().await;
    two.begin().await;
    let (client, cut) = cut_off(&two).await;
    let guard = client.lock("x").ttl(TTL).await.unwrap();
    cut.store(true, SeqCst);
    tokio::time::sleep(TIGHT).await;
    let refused = client.try_lock("y").ttl(TTL).await.unwrap_err();
    assert!(refused.is_away(), "{refused:?}");
    let other = two.client().await;
    let steps = async {
        two.finish(Phase::BothNew).await;
        two.finish(Phase::New).await;
    };
    let believes = async {
        let next = other.lock("x").ttl(TTL).await.unwrap();
        assert!(!guard.is_valid(), "both believe");
        next.token()
    };
    let ((), next) = tokio::join!(steps, believes);
    assert!(next > guard.token());
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn a_program_that_was_not_switched_is_seen() {
    let two = Two::prepared().await;
    let forgotten = Client::new(Arc::new(two.old.another())).unwrap();
    let guard = forgotten.lock("x").await.unwrap();
    two.begin().await;
    let status = two.migration().status().await.unwrap();
    assert_eq!(status.unpaired.len(), 1, "{status:?}");
    let how = How::new("test").patience(Duration::ZERO);
    let refused = two.migration().finish(&how).await.unwrap();
    let Stepped::NotYet(why) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains('x') && why.contains("not switched"), "{why}");
    // Its hold excludes others nevertheless.
    assert!(two.client().await.try_lock("x").ttl(TTL).await.is_err());
    guard.release().await.unwrap();
    two.finish(Phase::BothNew).await;
}

#[tokio::test]
async fn two_administrators_make_each_step_once() {
    let two = Two::prepared().await;
    let how = How::new("test");
    let (one, other) = (two.migration(), two.migration());
    let (one, other) = tokio::join!(one.begin(&how), other.begin(&how));
    assert_eq!(one.unwrap(), Stepped::Done(Phase::BothOld));
    assert_eq!(other.unwrap(), Stepped::Done(Phase::BothOld));
    assert_eq!(two.migration().status().await.unwrap().version, 2);
}

#[tokio::test]
async fn the_new_store_goes_on_alone() {
    let two = Two::prepared().await;
    two.begin().await;
    let how = How::new("test");
    let early = two.migration().finish_without_old(&how).await.unwrap_err();
    assert!(matches!(early, Error::Unsupported { .. }), "{early:?}");
    two.finish(Phase::BothNew).await;
    let done = two.migration().finish_without_old(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    // The old store comes back with an old record, and the next step updates it.
    let status = two.migration().status().await.unwrap();
    assert_ne!(status.stores[0].version, status.stores[1].version);
    let client = two.client().await;
    token(&client, "x").await;
    two.finish(Phase::New).await;
    let status = two.migration().status().await.unwrap();
    assert_eq!(status.stores[0].version, status.stores[1].version);
}
