//! Renewals in batches: those that arrive while a batch is under way form the next one. They never wait for takes, nor for
//! renewals of another lane: a part of a store that does not answer delays no other part.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::support::Mutex;
use fencelock_core::{Engine, Error};
use fencelock_wire::MOST_RENEWALS;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::known::Visit;

/// Collects renewals into batches.
pub(crate) struct Renewer {
    engine: Arc<dyn Engine>,
    /// The renewals that wait while a batch of their lane is under way. A lane without a batch has no entry.
    lanes: Mutex<HashMap<u32, VecDeque<Item>>>,
}

struct Item {
    held: HeldClaim,
    visit: Visit,
    answer: oneshot::Sender<Renewal>,
}

impl Renewer {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Arc<Self> {
        let lanes = Mutex::default();
        Arc::new(Self { engine, lanes })
    }

    /// Renews one hold. The visit has its turn. The renewal goes on if this future is dropped.
    pub(crate) async fn renew(self: &Arc<Self>, held: HeldClaim, visit: Visit) -> Renewal {
        let (answer, answered) = oneshot::channel();
        let lane = self.engine.lane(&held.claim.name);
        let begin = {
            let mut lanes = self.lanes.lock();
            let begin = !lanes.contains_key(&lane);
            lanes.entry(lane).or_default().push_back(Item {
                held,
                visit,
                answer,
            });
            begin
        };
        if begin {
            tokio::spawn(Arc::clone(self).run(lane));
        }
        answered.await.unwrap_or_else(|_| self.no_answer())
    }

    /// Renews many holds at once. The visits are in the same order, and have their turns.
    pub(crate) async fn renew_many(
        engine: Arc<dyn Engine>,
        held: Vec<HeldClaim>,
        mut visits: Vec<Visit>,
    ) -> Vec<Renewal> {
        let renewals = engine.renew(&held).await;
        for (visit, renewal) in visits.iter_mut().zip(&renewals) {
            settle(visit, renewal);
        }
        renewals
    }

    async fn run(self: Arc<Self>, lane: u32) {
        loop {
            let batch: Vec<Item> = {
                let mut lanes = self.lanes.lock();
                let Some(waiting) = lanes.get_mut(&lane) else {
                    return;
                };
                let count = waiting.len().min(MOST_RENEWALS);
                if count == 0 {
                    lanes.remove(&lane);
                    return;
                }
                waiting.drain(..count).collect()
            };
            let held: Vec<HeldClaim> = batch.iter().map(|item| item.held.clone()).collect();
            // A panic of the engine leaves these renewals without an answer, and no later ones.
            let renewals = AssertUnwindSafe(self.engine.renew(&held)).catch_unwind();
            let renewals = renewals.await.unwrap_or_else(|_| {
                tracing::error!("renewing holds met a bug");
                Vec::new()
            });
            let mut renewals = renewals.into_iter();
            for mut item in batch {
                let renewal = renewals.next().unwrap_or_else(|| self.no_answer());
                settle(&mut item.visit, &renewal);
                // Sending fails if the request was dropped.
                let _ = item.answer.send(renewal);
            }
        }
    }

    /// The outcome of a renewal that the engine did not answer.
    pub(crate) fn no_answer(&self) -> Renewal {
        Renewal::Unknown(Error::internal(&self.engine, "a renewal had no answer"))
    }
}

/// A claim that holds does not wait. A claim that is lost may never have held, so it may still wait.
fn settle(visit: &mut Visit, renewal: &Renewal) {
    if matches!(renewal, Renewal::Kept { .. }) {
        visit.waits_no_more();
    }
}

impl fmt::Debug for Renewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewer({})", self.engine)
    }
}
