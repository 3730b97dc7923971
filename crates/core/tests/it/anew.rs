//! A store that ends a waiting claim: the request continues with a new claim, at the end of the queue.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{ClaimId, Client, Engine, LossReason, Memory, Result};
use tokio::sync::Notify;

use crate::{World, ms, settle};

/// Ends all claims that were placed when the test says so, as a restarted service does.
#[derive(Debug)]
struct Ends {
    memory: Memory,
    placed: Mutex<Vec<ClaimId>>,
    ended: Mutex<Vec<ClaimId>>,
    told: Notify,
}

impl Ends {
    fn new(world: &World) -> Arc<Self> {
        Arc::new(Self {
            memory: world.store.another(),
            placed: Mutex::default(),
            ended: Mutex::default(),
            told: Notify::new(),
        })
    }

    fn client(self: &Arc<Self>) -> Client {
        Client::new(Arc::clone(self) as Arc<dyn Engine>).unwrap()
    }

    fn end_all(&self) {
        let placed = std::mem::take(&mut *self.placed.lock().unwrap());
        self.ended.lock().unwrap().extend(placed);
        self.told.notify_waiters();
    }
}

#[async_trait]
impl Layer for Ends {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        if self.ended.lock().unwrap().contains(&claim.id) {
            return Ok(Standing::Ended);
        }
        let placed = self.memory.place(claim).await;
        self.placed.lock().unwrap().push(claim.id);
        placed
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        tokio::select! {
            granted = self.memory.wait(claim, place) => granted,
            () = self.told.notified() => Ok(None),
        }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

async fn waiting(client: &Client) -> usize {
    client.look("x").await.unwrap().waiters.len()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_claim_ended_places_a_new_claim() {
    let world = World::new();
    let ends = Ends::new(&world);
    let (holder, other, client) = (world.client(), world.client(), ends.client());
    let guard = holder.lock("x").await.unwrap();
    let waiter = tokio::spawn(client.lock("x").into_future());
    settle().await;
    let later = tokio::spawn(other.lock("x").into_future());
    settle().await;
    for _ in 0..3 {
        ends.end_all();
        tokio::time::sleep(ms(1500)).await;
        // Its ended claim is withdrawn, and its new one waits after that of `later`.
        assert_eq!(waiting(&holder).await, 2);
    }
    guard.release().await.unwrap();
    let next = later.await.unwrap().unwrap();
    assert!(!waiter.is_finished());
    next.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let view = holder.look("x").await.unwrap();
    assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
    assert!(!ends.ended.lock().unwrap().contains(&guard.claim_id()));
    // The hold is renewed and released under the id of the new claim.
    tokio::time::sleep(ms(120_000)).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_claim_ended_still_times_out() {
    let world = World::new();
    let ends = Ends::new(&world);
    let (holder, client) = (world.client(), ends.client());
    let guard = holder.lock("x").await.unwrap();
    let waiter = tokio::spawn(client.lock("x").timeout(ms(5000)).into_future());
    settle().await;
    ends.end_all();
    let error = waiter.await.unwrap().unwrap_err();
    assert!(error.to_string().contains('x'), "{error}");
    settle().await;
    assert_eq!(waiting(&holder).await, 0);
    guard.release().await.unwrap();
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_claim_ended_is_not_downgraded() {
    let world = World::new();
    let ends = Ends::new(&world);
    let client = ends.client();
    let guard = client.lock("x").await.unwrap();
    let lost = guard.cancellation_token();
    ends.end_all();
    let error = guard.downgrade().await.unwrap_err();
    assert!(lost.is_cancelled());
    assert!(
        error.to_string().contains(&LossReason::Expired.to_string()),
        "{error}"
    );
    settle().await;
    assert_eq!(world.left(), 0);
}
