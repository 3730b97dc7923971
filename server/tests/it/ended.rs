//! Claims that the store ends while they wait, as the steps of a moving set do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Engine, Leave, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{Error, Memory};
use serde_json::json;
use tokio::time::sleep;

use crate::bound;
use crate::client::{Client, ask, until, waiters};

/// A store that ends the next claim that is placed, as a step of a moving set does.
#[derive(Debug)]
struct Steps {
    memory: Memory,
    ends: AtomicBool,
}

#[async_trait]
impl Layer for Steps {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    async fn place(&self, claim: &Claim) -> Result<Standing, Error> {
        if self.ends.swap(false, Ordering::SeqCst) {
            self.memory.withdraw(claim, Leave::Release).await?;
            return Ok(Standing::Ended);
        }
        self.memory.place(claim).await
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

#[tokio::test]
async fn a_claim_that_the_store_ended_stays_ended_and_a_simple_request_goes_on() {
    let steps = Arc::new(Steps {
        memory: Memory::new(),
        ends: AtomicBool::new(false),
    });
    let at = bound::replica_of(Arc::clone(&steps) as Arc<dyn Engine>).await;
    let client = Client::new();
    let holder = client.claim();
    bound::put(&at, &client, holder, json!({"name": "a", "ttl_ms": 60_000}))
        .await
        .is(200);
    let id = client.claim();
    let waits = || bound::put(&at, &client, id, json!({"name": "a", "queue": true}));
    waits().await.is(202);
    steps.ends.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        waits().await.is_problem(410, "ended");
    }
    let simple = ask(&at, "POST", "/v1/claims", r#"{"name":"a","wait_ms":20000}"#);
    let goes_on = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        steps.ends.store(true, Ordering::SeqCst);
        while steps.ends.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5)).await;
        }
        until(&at, "a", "waited for again", |lock| waiters(lock) == 1).await;
        bound::release(&at, &client, holder).await.is(200);
    };
    let (taken, ()) = tokio::join!(simple, goes_on);
    taken.is(201);
}
