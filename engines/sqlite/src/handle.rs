//! How the engine reaches its worker.
//!
//! The caller itself does a small write if it need not wait: no message is queued, the worker is idle, and no other process
//! has the file locked. The write then takes some ten microseconds, less than to wake the worker and to be woken. The worker
//! does everything that may take long (waiting for other processes, checkpoints, reopening). If the disk stalls in the
//! middle of a caller's write, the caller's thread stalls, too. On a runtime of one thread that stops everything, including
//! timeouts and renewals.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, Clock, Error, Result};
use tokio::sync::oneshot;

use crate::file::File;
use crate::job::{Action, Answer, Job, request};
use crate::state::{Parts, is_checkpoint_due};
use crate::stored::Sql;
use crate::transaction::Transaction;
use crate::worker::{self, Message, Worker};

/// How much longer a call waits for the disk than for other processes.
const GRACE: Duration = Duration::from_millis(500);

/// The worker ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    messages: mpsc::Sender<Message>,
    renewals: mpsc::Sender<Box<dyn Job>>,
    worker: Arc<Worker>,
    file: Arc<File>,
}

/// How work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Write,
    /// Done before everything that is queued, because validity runs out while a renewal waits.
    Renew,
    /// A read, which changes nothing and waits for no other process.
    Read,
}

pub(crate) async fn start(parts: Parts) -> Result<Handle> {
    let (messages, received) = mpsc::channel();
    let (renewals, received_renewals) = mpsc::channel();
    let file = Arc::clone(&parts.file);
    let worker = worker::start(parts, received, received_renewals).await?;
    Ok(Handle {
        messages,
        renewals,
        worker,
        file,
    })
}

impl Handle {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Notes that this engine has no socket. Must be called before the first request.
    pub(crate) fn set_unreachable(&self) {
        self.worker.state().set_unreachable();
    }

    /// Does a few statements for a claim in a transaction: on the caller's thread if they need not wait.
    pub(crate) async fn write_small<T: Send + 'static>(
        &self,
        verb: &'static str,
        claim: &Claim,
        work: impl Fn(&mut Transaction<'_>, &Claim) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        if let Some(done) = self.write_at_once(|transaction| work(transaction, claim)) {
            return Ok(done);
        }
        let (action, claim) = (Action::on(verb, &claim.name), claim.clone());
        let written = self.run(How::Write, action, move |transaction| {
            work(transaction, &claim)
        });
        // Boxed, so that the future of the common case stays small.
        Box::pin(written).await
    }

    /// Does work in a transaction, alone or together with others. `work` may run more than once; only the effects and the
    /// result of its last run are kept.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        how: How,
        action: Action,
        work: impl FnMut(&mut Transaction<'_>) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = self.request(action.clone(), work);
        match how {
            How::Write => self.send(Message::Write(job))?,
            How::Renew => {
                self.renewals.send(job).map_err(|_| Error::Closed)?;
                self.send(Message::Renew)?;
            }
            How::Read => self.send(Message::Read(job))?,
        }
        let answer = async { answer.await.unwrap_or(Err(Error::Closed)) };
        self.in_time(action, answer).await
    }

    /// Reads without waiting for the answer.
    pub(crate) fn read_in_background(
        &self,
        action: Action,
        work: impl FnMut(&mut Transaction<'_>) -> Sql<()> + Send + 'static,
    ) {
        let (job, _answer) = self.request(action, work);
        // Sending fails if the engine was closed. Then the read is not needed.
        let _ = self.send(Message::Read(job));
    }

    /// Ends the worker after everything that is queued, and waits for that.
    pub(crate) async fn close(&self) -> Result<()> {
        let (close, closed) = oneshot::channel();
        if self.send(Message::Close(close)).is_err() {
            return Ok(());
        }
        let closed = async {
            // An error means that another caller has just closed it.
            let _ = closed.await;
            Ok(())
        };
        self.in_time(Action::Other("closing the file"), closed)
            .await
    }

    /// How long a call waits for the worker.
    pub(crate) fn timeout(&self) -> Duration {
        self.file.config.response_timeout + GRACE
    }

    fn request<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Transaction<'_>) -> Sql<T> + Send + 'static,
    ) -> (Box<dyn Job>, Answer<T>) {
        let deadline = Clock::Boot.now() + self.file.config.response_timeout;
        request(action, deadline, work)
    }

    fn send(&self, message: Message) -> Result<()> {
        self.worker.count_message();
        self.messages.send(message).map_err(|_| Error::Closed)
    }

    /// The worker limits how long it waits for other processes. This limit is for a disk that does not answer.
    async fn in_time<T>(
        &self,
        action: Action,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let timeout = self.timeout();
        let answered = tokio::time::timeout(timeout, answer).await;
        answered.unwrap_or_else(|_| {
            let why = format!("no answer from the disk in {timeout:?}");
            Err(Error::unavailable(&self.file, action.to_string(), why))
        })
    }

    /// Does the write on this thread if it need not wait. Otherwise, or if it fails, nothing has changed: the worker repeats it
    /// and reports the error.
    fn write_at_once<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Sql<T>) -> Option<T> {
        let mut state = self.worker.idle_state().filter(|state| state.is_open())?;
        let (done, wake_ups) = state.transaction(BootInstant::from_nanos(0), work).ok()?;
        let gone = state.wake_once(wake_ups);
        let reap = (!gone.is_empty()).then(|| state.reap_gone(gone));
        drop(state);
        // If the engine is closed now, other processes ignore the expired rows, and the last one makes a checkpoint.
        if let Some(reap) = reap {
            let _ = self.send(Message::Write(reap));
        }
        if is_checkpoint_due() {
            let _ = self.send(Message::Checkpoint);
        }
        Some(done)
    }
}
