//! A store that refuses a call after a part of it took effect, or answers too little.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fencelock_core::engine::{Claim, HeldClaim, Renewal, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{Client, Engine, Error, Memory, Mode, Result};

use crate::{World, ms, settle};

/// The answer to a call that takes effect.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Lost,
    Refusal,
}

#[derive(Debug)]
struct Refuses {
    memory: Memory,
    /// The answers to the next calls of `place`; after them, its own.
    answers: Mutex<VecDeque<Answer>>,
    /// How many of the next renewals have no answer at all.
    unanswered: Mutex<usize>,
}

impl Refuses {
    fn new(world: &World) -> Arc<Self> {
        Arc::new(Self {
            memory: world.store.another(),
            answers: Mutex::default(),
            unanswered: Mutex::default(),
        })
    }

    fn client(self: &Arc<Self>) -> Client {
        Client::new(Arc::clone(self) as Arc<dyn Engine>).unwrap()
    }

    fn next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }
}

#[async_trait]
impl Layer for Refuses {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let standing = self.memory.place(claim).await;
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            None => standing,
            Some(Answer::Lost) => Err(Error::unavailable(self, "taking a lock", "no answer")),
            Some(Answer::Refusal) => Err(Error::refused(self, "taking a lock", "no right to read")),
        }
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        {
            let mut unanswered = self.unanswered.lock().unwrap();
            if *unanswered > 0 {
                *unanswered -= 1;
                return Vec::new();
            }
        }
        self.memory.renew(held).await
    }
}

impl fmt::Display for Refuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_effect_leaves_no_lock() {
    let world = World::new();
    let store = Refuses::new(&world);
    let client = store.client();
    store.next([Answer::Refusal; 2]);
    for refused in [client.try_lock("x").await, client.lock("x").await] {
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
        settle().await;
        assert_eq!(world.left(), 0);
    }
}

/// The store has the hold as shared, and has granted the lock to a reader.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_downgrade_failed_is_not_handed_on() {
    let world = World::new();
    let store = Refuses::new(&world);
    let (client, other) = (store.client(), world.client());
    let before = client.lock("x").await.unwrap();
    // The first one has waited in this process, so its hold has tokens for those that wait behind it.
    let first = tokio::spawn(client.lock("x").into_future());
    let writer = tokio::spawn(client.lock("x").into_future());
    settle().await;
    let reader = tokio::spawn(other.lock("x").mode(Mode::Shared).into_future());
    settle().await;
    before.release().await.unwrap();
    let guard = first.await.unwrap().unwrap();
    store.next([Answer::Lost, Answer::Refusal]);
    let failed = guard.downgrade().await.map(drop).unwrap_err();
    assert!(matches!(failed, Error::Refused { .. }), "{failed:?}");
    let reader = reader.await.unwrap().unwrap();
    settle().await;
    assert!(!writer.is_finished(), "both hold");
    reader.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    writer.release().await.unwrap();
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_renewal_had_no_answer_is_released() {
    let world = World::new();
    let store = Refuses::new(&world);
    let guard = store.client().lock("x").ttl(ms(3000)).await.unwrap();
    *store.unanswered.lock().unwrap() = 1;
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(*store.unanswered.lock().unwrap(), 0);
    let released = tokio::time::timeout(ms(60_000), guard.release()).await;
    released.unwrap().unwrap();
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_never_polled_asks_nothing() {
    let world = World::new();
    let (client, meter) = world.metered();
    drop(client.lock("x").into_future());
    drop(client.lock("y").owner(&client.owner()).into_future());
    settle().await;
    assert_eq!(meter.counts().placed, 0);
}
