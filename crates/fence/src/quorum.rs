//! A resource on several replicas.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fencelock_core::Sequencer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::error::{FenceError, Result};

/// One replica. It keeps marks by the rule of [`Marks`](crate::Marks), and remembers them over a restart.
///
/// A [`Quorum`] makes one call at a time to a replica, so that two writes of one holder arrive in order. The next call
/// waits for the end of the previous one, so give each call a time limit. A request that was given up must not arrive
/// after the next one: close its connection.
///
/// ```
/// # use std::sync::Mutex;
/// # use fencelock_core::Sequencer;
/// # use fencelock_fence::*;
/// /// The marks, and the text that they protect.
/// struct Disk(Highest, Mutex<String>);
///
/// #[async_trait::async_trait]
/// impl Replica<String> for Disk {
///     async fn mark(&self, holder: &Sequencer) -> Result<()> {
///         self.0.mark(holder)
///     }
///
///     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
///         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
///     }
/// }
/// ```
#[async_trait]
pub trait Replica<W>: Send + Sync + 'static {
    /// Raises the marks if the holder passes. Writes nothing else.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded.
    async fn mark(&self, sequencer: &Sequencer) -> Result<()>;

    /// Raises the marks and writes, in one step, if the holder passes.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded.
    async fn write(&self, sequencer: &Sequencer, write: &W) -> Result<()>;
}

/// A resource on N replicas. A holder **first marks a majority**, and then writes to a majority.
///
/// Two majorities have a replica in common. So after [`Quorum::mark`] has returned, no write of an earlier holder
/// succeeds any more. Each replica stores the token of a write with the value. Readers ask a majority and take the
/// value with the highest token.
///
/// A write that is refused, or that reaches too few replicas, may have changed a minority of them. A write in flight may do
/// so later. So a new holder marks, reads from a majority, and **writes back the value that it relies on**, even if it does
/// not change it. Then no later holder reads a value that this one did not see.
///
/// Await the writes of one holder one after the other: the token orders them against other holders, not against each
/// other.
///
/// ```
/// # use std::sync::Mutex;
/// # use fencelock_core::Sequencer;
/// # use fencelock_fence::*;
/// # struct Disk(Highest, Mutex<String>);
/// # #[async_trait::async_trait]
/// # impl Replica<String> for Disk {
/// #     async fn mark(&self, holder: &Sequencer) -> Result<()> {
/// #         self.0.mark(holder)
/// #     }
/// #     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
/// #         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
/// #     }
/// # }
/// # fn disk() -> Disk { Disk(Highest::in_memory(), Mutex::default()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// // `Disk` is a `Replica`.
/// let disks = Quorum::new([disk(), disk(), disk()]);
/// disks.mark::<String>(&holder).await?;
/// // … reads from two of them …
/// disks.write(&holder, "what was read, changed".to_owned()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quorum<R> {
    replicas: Vec<Arc<R>>,
    turns: Vec<Turn>,
}

/// The end of the last call to a replica.
#[derive(Debug, Default)]
struct Turn(Mutex<Option<oneshot::Receiver<()>>>);

impl Turn {
    /// Returns the end of the previous call, to wait for, and what the next call drops at its own end.
    fn take(&self) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let (done, end) = oneshot::channel();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (last.replace(end), done)
    }
}

type Call = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl<R> Quorum<R> {
    /// A resource on these replicas, which must be different ones.
    ///
    /// ```
    /// # use std::sync::Mutex;
    /// # use fencelock_core::Sequencer;
    /// # use fencelock_fence::*;
    /// # struct Disk(Highest, Mutex<String>);
    /// # #[async_trait::async_trait]
    /// # impl Replica<String> for Disk {
    /// #     async fn mark(&self, holder: &Sequencer) -> Result<()> {
    /// #         self.0.mark(holder)
    /// #     }
    /// #     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
    /// #         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
    /// #     }
    /// # }
    /// # fn disk() -> Disk { Disk(Highest::in_memory(), Mutex::default()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let disks = Quorum::new([disk(), disk(), disk()]);
    /// assert_eq!(disks.replicas().len(), 3);
    /// # disks.mark::<String>(&holder).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(replicas: impl IntoIterator<Item = R>) -> Self {
        let replicas: Vec<_> = replicas.into_iter().map(Arc::new).collect();
        let turns = replicas.iter().map(|_| Turn::default()).collect();
        Self { replicas, turns }
    }

    /// How many replicas are a majority.
    ///
    /// ```
    /// # use std::sync::Mutex;
    /// # use fencelock_core::Sequencer;
    /// # use fencelock_fence::*;
    /// # struct Disk(Highest, Mutex<String>);
    /// # #[async_trait::async_trait]
    /// # impl Replica<String> for Disk {
    /// #     async fn mark(&self, holder: &Sequencer) -> Result<()> {
    /// #         self.0.mark(holder)
    /// #     }
    /// #     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
    /// #         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
    /// #     }
    /// # }
    /// # fn disk() -> Disk { Disk(Highest::in_memory(), Mutex::default()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(Quorum::new([disk(), disk(), disk()]).majority(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &[Arc<R>] {
        &self.replicas
    }

    /// Raises the marks on a majority. After that no write of an earlier holder succeeds. Then read, and write back the value
    /// that you rely on. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if a replica has seen a later holder, [`FenceError::TooFew`] if too few replicas answer.
    ///
    /// # Cancel safety
    /// May be dropped. Some replicas may be marked by then, and requests in flight still take effect.
    ///
    /// ```
    /// # use std::sync::Mutex;
    /// # use fencelock_core::Sequencer;
    /// # use fencelock_fence::*;
    /// # struct Disk(Highest, Mutex<String>);
    /// # #[async_trait::async_trait]
    /// # impl Replica<String> for Disk {
    /// #     async fn mark(&self, holder: &Sequencer) -> Result<()> {
    /// #         self.0.mark(holder)
    /// #     }
    /// #     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
    /// #         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
    /// #     }
    /// # }
    /// # fn disk() -> Disk { Disk(Highest::in_memory(), Mutex::default()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let disks = Quorum::new([disk(), disk(), disk()]);
    /// disks.mark::<String>(&holder).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn mark<W>(&self, sequencer: &Sequencer) -> Result<()>
    where
        R: Replica<W>,
    {
        self.call_all("be marked", |replica| {
            let sequencer = sequencer.clone();
            Box::pin(async move { replica.mark(&sequencer).await })
        })
        .await
    }

    /// Marks a majority, then writes to a majority. The requests go to all replicas. It returns when a majority has written,
    /// or when that has become impossible. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`Quorum::mark`].
    ///
    /// # Cancel safety
    /// May be dropped. Some replicas may be written by then, and requests in flight still take effect.
    ///
    /// ```
    /// # use std::sync::Mutex;
    /// # use fencelock_core::Sequencer;
    /// # use fencelock_fence::*;
    /// # struct Disk(Highest, Mutex<String>);
    /// # #[async_trait::async_trait]
    /// # impl Replica<String> for Disk {
    /// #     async fn mark(&self, holder: &Sequencer) -> Result<()> {
    /// #         self.0.mark(holder)
    /// #     }
    /// #     async fn write(&self, holder: &Sequencer, text: &String) -> Result<()> {
    /// #         self.0.write(holder, || text.clone_into(&mut self.1.lock().unwrap()))
    /// #     }
    /// # }
    /// # fn disk() -> Disk { Disk(Highest::in_memory(), Mutex::default()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let disks = Quorum::new([disk(), disk(), disk()]);
    /// disks.write(&holder, "an entry".to_owned()).await?;
    /// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
    /// assert!(disks.write(&late, "too late".to_owned()).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write<W>(&self, sequencer: &Sequencer, write: W) -> Result<()>
    where
        R: Replica<W>,
        W: Send + Sync + 'static,
    {
        self.mark::<W>(sequencer).await?;
        let write = Arc::new(write);
        self.call_all("be written", |replica| {
            let (sequencer, write) = (sequencer.clone(), Arc::clone(&write));
            Box::pin(async move { replica.write(&sequencer, &write).await })
        })
        .await
    }

    /// Calls all replicas. A majority must succeed.
    async fn call_all(&self, action: &'static str, call: impl Fn(Arc<R>) -> Call) -> Result<()> {
        let (of, needed) = (self.replicas.len(), self.majority());
        let (results, mut received) = mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        for (replica, turn) in self.replicas.iter().zip(&self.turns) {
            let (call, results) = (call(Arc::clone(replica)), results.clone());
            let (before, done) = turn.take();
            calls.spawn(async move {
                if let Some(before) = before {
                    // The result is always an error, because the other end is dropped.
                    let _ = before.await;
                }
                // After the decision nobody receives it.
                drop(results.send(call.await));
                drop(done);
            });
        }
        drop(results);
        // Slow replicas still carry out their requests.
        calls.detach_all();
        let (mut done, mut failures) = (0, Vec::new());
        while done < needed && failures.len() + needed <= of {
            match received.recv().await {
                Some(Ok(())) => done += 1,
                Some(Err(failure)) => failures.push(failure),
                // A replica panicked.
                None => break,
            }
        }
        if done >= needed {
            return Ok(());
        }
        // A refusal is the most important error. Of several refusals, report the one with the highest token.
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
