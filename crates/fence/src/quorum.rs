//! A resource that is kept in several places.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fencelock_core::Sequencer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::error::{FenceError, Result};

/// One of the places: it keeps marks by the rule of [`Marks`](crate::Marks), and remembers them over a restart.
///
/// A [`Quorum`] calls it one call at a time, in order, so that two writes of one holder come in order; the next waits for
/// the end of the one before, so give each a time limit. What was given up must not arrive later than what comes next:
/// close the connection that it went over.
#[async_trait]
pub trait Replica<W>: Send + Sync + 'static {
    /// Raises the marks if the holder passes; writes nothing.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if it was superseded.
    async fn mark(&self, sequencer: &Sequencer) -> Result<()>;

    /// Raises the marks and writes, in one step, if the holder passes.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if it was superseded.
    async fn write(&self, sequencer: &Sequencer, write: &W) -> Result<()>;
}

/// A resource on N replicas: a holder **marks a majority first**, and writes on a majority then.
///
/// Two majorities have a replica in common. So once [`Quorum::mark`] has returned, no write of an earlier holder succeeds
/// any more. Each replica keeps the token of a write beside the value; readers ask a majority and take the value with the
/// highest token.
///
/// A write that is refused, or that reaches too few, may still have changed a minority of the replicas, and one that is on
/// its way may do so later. So a new holder marks, reads from a majority, and **writes back what it goes by**, changed or
/// not: then nobody after it reads what it did not see.
///
/// One holder's own writes are to be awaited one after the other: its token orders it against other holders, not against
/// itself.
#[derive(Debug)]
pub struct Quorum<R> {
    replicas: Vec<Arc<R>>,
    turns: Vec<Turn>,
}

/// The end of what a replica was asked last.
#[derive(Debug, Default)]
struct Turn(Mutex<Option<oneshot::Receiver<()>>>);

impl Turn {
    /// The end of what is to be waited for, and what is to be dropped at the end of what comes now.
    fn take(&self) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (done, end) = oneshot::channel();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (last.replace(end), done)
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl<R> Quorum<R> {
    /// A resource on these replicas, each of which must be another one.
    pub fn new(replicas: impl IntoIterator<Item = R>) -> Self {
        let replicas: Vec<_> = replicas.into_iter().map(Arc::new).collect();
        let turns = replicas.iter().map(|_| Turn::default()).collect();
        Self { replicas, turns }
    }

    /// How many replicas are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &[Arc<R>] {
        &self.replicas
    }

    /// Raises the marks on a majority: no earlier holder's write succeeds any more. Then read, and write back what you go
    /// by. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if a replica has seen a later holder, [`FenceError::TooFew`] if too few replicas answer.
    ///
    /// # Cancel safety
    /// May be dropped; some replicas may be marked by then. What was sent is not recalled.
    pub async fn mark<W>(&self, sequencer: &Sequencer) -> Result<()>
    where
        R: Replica<W>,
    {
        self.ask("be marked", |replica| {
            let sequencer = sequencer.clone();
            Box::pin(async move { replica.mark(&sequencer).await })
        })
        .await
    }

    /// Marks a majority, then writes on a majority. All replicas are asked; it returns as soon as a majority has written,
    /// or cannot any more. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`Quorum::mark`].
    ///
    /// # Cancel safety
    /// May be dropped; some replicas may be written by then. What was sent is not recalled.
    pub async fn write<W>(&self, sequencer: &Sequencer, write: W) -> Result<()>
    where
        R: Replica<W>,
        W: Send + Sync + 'static,
    {
        self.mark::<W>(sequencer).await?;
        let write = Arc::new(write);
        self.ask("be written", |replica| {
            let (sequencer, write) = (sequencer.clone(), Arc::clone(&write));
            Box::pin(async move { replica.write(&sequencer, &write).await })
        })
        .await
    }

    /// Asks all of them; a majority must say yes.
    async fn ask(&self, action: &'static str, ask: impl Fn(Arc<R>) -> Asking) -> Result<()> {
        let (of, needed) = (self.replicas.len(), self.majority());
        let (tell, mut told) = mpsc::unbounded_channel();
        let mut asking = JoinSet::new();
        for (replica, turn) in self.replicas.iter().zip(&self.turns) {
            let (asked, tell) = (ask(Arc::clone(replica)), tell.clone());
            let (before, done) = turn.take();
            asking.spawn(async move {
                if let Some(before) = before {
                    // An error, as its other end is dropped.
                    let _ = before.await;
                }
                // Nobody listens once it is decided.
                drop(tell.send(asked.await));
                drop(done);
            });
        }
        drop(tell);
        // Those that are slow still do their part.
        asking.detach_all();
        let (mut done, mut failures) = (0, Vec::new());
        while done < needed && failures.len() + needed <= of {
            match told.recv().await {
                Some(Ok(())) => done += 1,
                Some(Err(failure)) => failures.push(failure),
                // A replica panicked.
                None => break,
            }
        }
        if done >= needed {
            return Ok(());
        }
        // What matters most is who won, by the highest token that was heard of.
        let won = |failure: &FenceError| failure.stale().map(|stale| stale.won);
        let highest =
            (0..failures.len()).max_by_key(|at| (won(&failures[*at]), std::cmp::Reverse(*at)));
        let Some(highest) = highest else {
            let why = "it has no replicas, or one of them panicked";
            return Err(FenceError::damaged(format!("{of} replicas"), why));
        };
        let failure = failures.swap_remove(highest);
        if failure.stale().is_some() {
            return Err(failure);
        }
        Err(FenceError::TooFew {
            action,
            done,
            needed,
            of,
            first: Box::new(failure),
        })
    }
}
