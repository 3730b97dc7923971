//! The thread that works on the file. It does all queued writes in one transaction, so that many tasks of a process cost
//! one commit.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};

use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::job::Job;
use crate::state::{Parts, State, is_checkpoint_due};

/// The most messages in one transaction, so that other processes have their turn.
const BATCH: usize = 64;

pub(crate) enum Message {
    Write(Box<dyn Job>),
    Read(Box<dyn Job>),
    /// There are renewals in their own channel.
    Renew,
    Checkpoint,
    Close(oneshot::Sender<()>),
}

/// What the thread shares with callers that do their own write.
pub(crate) struct Worker {
    state: Mutex<State>,
    /// Messages that the thread has not finished.
    queued: AtomicUsize,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

/// Starts the thread, which opens the file. It ends after [`Message::Close`], or when the last sender is dropped.
pub(crate) async fn start(
    parts: Parts,
    messages: mpsc::Receiver<Message>,
    renewals: mpsc::Receiver<Box<dyn Job>>,
) -> Result<Arc<Worker>> {
    let file = Arc::clone(&parts.file);
    let (opened, open) = oneshot::channel();
    let run = move || match State::open(parts) {
        Ok(state) => {
            let worker = Arc::new(Worker {
                state: Mutex::new(state),
                queued: AtomicUsize::new(0),
            });
            if opened.send(Ok(Arc::clone(&worker))).is_ok() {
                worker.serve(&messages, &renewals);
            }
        }
        Err(error) => {
            // Sending fails if the caller gave up.
            let _ = opened.send(Err(error));
        }
    };
    let thread = std::thread::Builder::new().name("fencelock-sqlite".into());
    thread.spawn(run).map_err(|error| {
        Error::unavailable(&file, "starting the thread that works on the file", error)
    })?;
    let died = |_| Error::internal(file, "the thread that opens the file died");
    open.await.map_err(died)?
}

impl Worker {
    /// Counts a message that will be sent.
    pub(crate) fn count_message(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// The state, if the thread is idle and has no message queued.
    pub(crate) fn idle_state(&self) -> Option<MutexGuard<'_, State>> {
        if self.queued.load(Ordering::Acquire) > 0 {
            return None;
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // At worst a panic left a transaction open, which the next BEGIN reports.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, messages: &mpsc::Receiver<Message>, renewals: &mpsc::Receiver<Box<dyn Job>>) {
        let mut closed = None;
        while let Ok(message) = messages.recv() {
            let mut batch = Batch::default();
            // Renewals go first.
            batch.writes.extend(renewals.try_iter());
            batch.add(message);
            while batch.count < BATCH
                && batch.close.is_none()
                && let Ok(message) = messages.try_recv()
            {
                batch.add(message);
            }
            let count = batch.count;
            closed = batch.run(&mut self.state());
            self.queued.fetch_sub(count, Ordering::AcqRel);
            if closed.is_some() {
                break;
            }
        }
        self.state().close();
        if let Some(closed) = closed {
            // Sending fails if the caller gave up.
            let _ = closed.send(());
        }
    }
}

/// The messages that are handled together.
#[derive(Default)]
struct Batch {
    count: usize,
    writes: Vec<Box<dyn Job>>,
    reads: Vec<Box<dyn Job>>,
    checkpoint: bool,
    close: Option<oneshot::Sender<()>>,
}

impl Batch {
    fn add(&mut self, message: Message) {
        self.count += 1;
        match message {
            Message::Write(job) => self.writes.push(job),
            Message::Read(job) => self.reads.push(job),
            Message::Renew => {}
            Message::Checkpoint => self.checkpoint = true,
            Message::Close(closed) => self.close = Some(closed),
        }
    }

    /// Returns the sender that reports the close, if a close was requested.
    fn run(mut self, state: &mut State) -> Option<oneshot::Sender<()>> {
        if !self.writes.is_empty() {
            self.checkpoint |= is_checkpoint_due();
            state.write(&mut self.writes);
        }
        for job in self.reads {
            state.read(job);
        }
        state.sweep();
        if self.checkpoint {
            state.checkpoint();
        }
        self.close
    }
}
