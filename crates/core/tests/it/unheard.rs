//! Events that do not come, or that come before the answer they are about.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, EventStream, Evict, Grant, Place, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{Client, Engine, Error, LockName, LossReason, Memory, Result};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::{World, ms, settle};

/// A store of which one thing is wrong.
#[derive(Debug)]
enum Fault {
    /// No event comes.
    Silent,
    /// The answer of `place` comes once there is a permit.
    Late(Semaphore),
}

#[derive(Debug)]
struct Faulty {
    memory: Memory,
    fault: Fault,
}

impl Faulty {
    fn client(world: &World, fault: Fault) -> (Arc<Self>, Client) {
        let memory = world.store.another();
        let store = Arc::new(Self { memory, fault });
        let client = Client::new(Arc::clone(&store) as Arc<dyn Engine>).unwrap();
        (store, client)
    }

    fn answer(&self) {
        if let Fault::Late(answers) = &self.fault {
            answers.add_permits(1);
        }
    }
}

#[async_trait]
impl Layer for Faulty {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let standing = self.memory.place(claim).await;
        if let Fault::Late(answers) = &self.fault {
            answers.acquire().await.unwrap().forget();
        }
        standing
    }

    fn events(&self) -> Result<EventStream> {
        match self.fault {
            Fault::Silent => Ok(EventStream::new(futures_util::stream::pending())),
            Fault::Late(_) => self.memory.events(),
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// A store where every second wait fails.
#[derive(Debug)]
struct FailsToWait {
    memory: Memory,
    waits: AtomicU32,
    failed_at: Mutex<Option<Instant>>,
    pauses: Mutex<Vec<Duration>>,
}

#[async_trait]
impl Layer for FailsToWait {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let failed_at = self.failed_at.lock().unwrap().take();
        let pause = failed_at.map(|at| at.elapsed());
        self.pauses.lock().unwrap().extend(pause);
        self.memory.place(claim).await
    }

    async fn wait(&self, _: &Claim, _: &Place) -> Result<Option<Grant>> {
        tokio::time::sleep(ms(1)).await;
        if self.waits.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
            return Ok(None);
        }
        *self.failed_at.lock().unwrap() = Some(Instant::now());
        Err(Error::unavailable(&self.memory, "waiting", "a test"))
    }
}

impl fmt::Display for FailsToWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// A long pause would cost a waiter its place in the queue.
#[tokio::test(start_paused = true)]
async fn pauses_are_short_again_after_a_wait_that_works() {
    let world = World::new();
    let holder = world.client().lock("x").await.unwrap();
    let store = Arc::new(FailsToWait {
        memory: world.store.another(),
        waits: AtomicU32::new(0),
        failed_at: Mutex::default(),
        pauses: Mutex::default(),
    });
    let client = Client::new(Arc::clone(&store) as Arc<dyn Engine>).unwrap();
    let waiter = client.lock("x").timeout(ms(10_000)).await.map(drop);
    assert!(waiter.is_err());
    let pauses = store.pauses.lock().unwrap().clone();
    assert!(pauses.len() > 50, "{pauses:?}");
    // Three times the first pause.
    assert!(pauses.iter().all(|pause| *pause <= ms(62)), "{pauses:?}");
    drop(holder);
}

/// Takes the lock away from its holder, and gives it to another one for a moment.
async fn take_away(world: &World) {
    let engine = world.store.another();
    let name = LockName::new("x").unwrap();
    let token = engine.inspect().look(&name).await.unwrap().token();
    let evicted = engine
        .inspect()
        .evict(&name, token.unwrap(), Evict::Release)
        .await;
    assert!(evicted.unwrap());
    let guard = world.client().try_lock("x").await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_taken_away_unheard_is_not_downgraded() {
    let world = World::new();
    let (_store, client) = Faulty::client(&world, Fault::Silent);
    let guard = client.lock("x").await.unwrap();
    take_away(&world).await;
    assert!(guard.is_valid());
    let failed = guard.downgrade().await.map(drop).unwrap_err();
    assert!(matches!(failed, Error::Lost { .. }), "{failed:?}");
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_taken_away_before_its_answer_came_is_lost_at_once() {
    for renews in [true, false] {
        let world = World::new();
        let (store, client) = Faulty::client(&world, Fault::Late(Semaphore::new(0)));
        let taken = client.lock("x").ttl(ms(60_000)).renew(renews);
        let taken = tokio::spawn(taken.into_future());
        settle().await;
        take_away(&world).await;
        settle().await;
        store.answer();
        let guard = taken.await.unwrap().unwrap();
        let lost = tokio::time::timeout(ms(100), guard.lost()).await;
        let expected = match renews {
            true => LossReason::StoreForgot,
            false => LossReason::TakenAway,
        };
        assert_eq!(lost.unwrap(), expected);
    }
}
