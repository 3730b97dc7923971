//! The open file, and what is done with it: transactions, wake-ups after them, and upkeep.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::support::inspect_only;
use fencelock_core::{BootInstant, Clock, Result};
use rusqlite::Connection;
use tokio::sync::mpsc;

use crate::connection::OpenFile;
use crate::entry::Entries;
use crate::file::File;
use crate::job::{Action, Failure, Job, request};
use crate::reap;
use crate::socket::Sender;
use crate::stored::Sql;
use crate::transaction::Transaction;
use crate::wake_up::{Address, Delivery, Message, WakeUp};

/// How often expired rows of all locks are deleted.
const SWEEP: Duration = Duration::from_secs(60);

/// On average one in this many commits is followed by a checkpoint, so that the log stays short: most commits write one page.
/// The choice is random, so that processes with few commits also make their share of the checkpoints.
const COMMITS_TO_CHECKPOINT: u32 = 600;

/// Whether this commit must be followed by a checkpoint.
pub(crate) fn is_checkpoint_due() -> bool {
    fastrand::u32(..COMMITS_TO_CHECKPOINT) == 0
}

/// The parts of an engine, apart from its worker.
pub(crate) struct Parts {
    pub(crate) file: Arc<File>,
    /// The address at which this engine listens.
    pub(crate) address: Address,
    pub(crate) entries: Arc<Entries>,
    /// `None` after the engine was closed.
    pub(crate) events: Option<mpsc::Sender<Event>>,
}

pub(crate) struct State {
    parts: Parts,
    sender: Sender,
    open: Option<OpenFile>,
    swept: BootInstant,
}

impl State {
    /// Opens the file. An engine that only inspects opens it for each read, and opens it here to check whether that is
    /// possible.
    pub(crate) fn open(parts: Parts) -> Result<Self> {
        let file = &parts.file;
        let open = match file.config.inspect_only {
            true => file.read_only(|_| Ok(None))?,
            false => Some(file.open()?),
        };
        Ok(Self {
            sender: Sender::new(),
            parts,
            open,
            swept: BootInstant::from_nanos(0),
        })
    }

    /// Notes that this engine has no socket. From now on its rows say so, so that other processes do not think that it has
    /// ended.
    pub(crate) fn set_unreachable(&mut self) {
        self.parts.address = self.parts.address.unreachable();
    }

    /// Closes the file, and ends the events.
    pub(crate) fn close(&mut self) {
        self.open = None;
        self.parts.events = None;
    }

    /// Whether the file is open, and the path still names it.
    pub(crate) fn is_open(&self) -> bool {
        let path = &self.parts.file.config.path;
        self.open
            .as_ref()
            .is_some_and(|open| open.is_still_at(path))
    }

    /// Does all jobs in one transaction. If that fails, each is done in its own, so that one does not fail the others.
    pub(crate) fn write(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        let Some(deadline) = jobs.iter().map(|job| job.deadline()).min() else {
            return;
        };
        let ready = self.reopen_if_replaced().map_err(Failure::from);
        let work = |transaction: &mut Transaction<'_>| {
            let mut jobs = jobs.iter_mut();
            jobs.try_for_each(|job| job.work(transaction))
        };
        match ready.and_then(|()| self.transaction(deadline, work)) {
            Ok(((), wake_ups)) => {
                self.wake(wake_ups);
                jobs.drain(..).for_each(|job| job.answer(None));
            }
            Err(failure) if jobs.len() == 1 => {
                self.close_if_spoilt(&failure);
                if let Some(job) = jobs.pop() {
                    let error = failure.explain(&self.parts.file, job.action());
                    job.answer(Some(error));
                }
            }
            Err(failure) => {
                self.close_if_spoilt(&failure);
                for job in jobs.drain(..) {
                    self.write(&mut vec![job]);
                }
            }
        }
    }

    /// Waits for other processes until the deadline. After an error nothing has changed. Returns the result of `work`, and the
    /// wake-ups to send.
    pub(crate) fn transaction<T>(
        &mut self,
        deadline: BootInstant,
        work: impl FnOnce(&mut Transaction<'_>) -> Sql<T>,
    ) -> Result<(T, Vec<WakeUp>), Failure> {
        let open = self.opened()?;
        open.wait_until(deadline);
        execute(&open.connection, "BEGIN IMMEDIATE")?;
        let mut transaction = self.begin(&open.connection);
        let worked = work(&mut transaction);
        let Transaction {
            connection,
            wake_ups,
            drawn,
            ..
        } = transaction;
        if let Some(drawn) = drawn {
            drawn.pass();
        }
        let done = worked.and_then(|done| execute(connection, "COMMIT").map(|()| done));
        match done {
            Ok(done) => Ok((done, wake_ups)),
            Err(error) => {
                // It fails if SQLite has rolled back by itself.
                let _ = execute(connection, "ROLLBACK");
                Err(error.into())
            }
        }
    }

    pub(crate) fn read(&mut self, mut job: Box<dyn Job>) {
        let failure = self.read_once(&mut *job).err();
        if let Some(failure) = &failure {
            self.close_if_spoilt(failure);
        }
        let error = failure.map(|failure| failure.explain(&self.parts.file, job.action()));
        job.answer(error);
    }

    fn read_once(&mut self, job: &mut dyn Job) -> Result<(), Failure> {
        let file = &self.parts.file;
        if file.config.inspect_only {
            let action = job.action().to_string();
            let read = |connection: &Connection| {
                let read = self.read_in_snapshot(connection, job);
                read.map_err(|error| file.error(&action, &error))
            };
            return Ok(file.read_only(read)?);
        }
        self.reopen_if_replaced()?;
        let open = self.opened()?;
        open.wait_until(job.deadline());
        Ok(self.read_in_snapshot(&open.connection, job)?)
    }

    fn read_in_snapshot(&self, connection: &Connection, job: &mut dyn Job) -> Sql<()> {
        execute(connection, "BEGIN")?;
        let worked = job.work(&mut self.begin(connection));
        let ended = execute(connection, "COMMIT");
        worked.and(ended)
    }

    fn opened(&self) -> Result<&OpenFile, Failure> {
        let file = &self.parts.file;
        let why = || match file.config.inspect_only {
            true => inspect_only(file, "taking, renewing or releasing a lock"),
            false => file.replaced(),
        };
        Ok(self.open.as_ref().ok_or_else(why)?)
    }

    fn begin<'a>(&'a self, connection: &'a Connection) -> Transaction<'a> {
        Transaction {
            connection,
            file: &self.parts.file,
            now: Clock::Boot.now(),
            address: self.parts.address,
            entries: &self.parts.entries,
            drawn: None,
            wake_ups: Vec::new(),
        }
    }

    /// Closes files that SQLite cannot use. While one process has them open, no other can begin with new ones. The next request
    /// opens them again.
    fn close_if_spoilt(&mut self, failure: &Failure) {
        if failure.is_of_the_files() {
            self.open = None;
        }
    }

    fn reopen_if_replaced(&mut self) -> Result<()> {
        let file = &self.parts.file;
        if file.config.inspect_only || self.is_open() {
            return Ok(());
        }
        tracing::warn!(store = %file, "the file was deleted or replaced; opening it again");
        self.open = None;
        self.open = Some(file.open()?);
        Ok(())
    }

    /// Sends wake-ups. A waiter whose process has ended is reaped, and the next one woken. This waits for other processes,
    /// so only the worker does it.
    fn wake(&mut self, wake_ups: Vec<WakeUp>) {
        let mut gone = self.wake_once(wake_ups);
        while !gone.is_empty() {
            let mut reap = self.reap_gone(gone);
            match self.transaction(reap.deadline(), |transaction| reap.work(transaction)) {
                Ok(((), next)) => gone = self.wake_once(next),
                // Later claims ignore these waiters once their rows have expired.
                Err(_) => return,
            }
        }
    }

    /// Sends wake-ups to other processes, and wakes the claims of this engine. Returns the wake-ups whose process has ended.
    /// Does not wait for other processes.
    pub(crate) fn wake_once(&self, wake_ups: Vec<WakeUp>) -> Vec<WakeUp> {
        let mut gone = Vec::new();
        for wake_up in wake_ups {
            if wake_up.to == self.parts.address.as_bytes() {
                self.wake_here(wake_up.message);
            } else if self.sender.send(&wake_up) == Delivery::Gone {
                gone.push(wake_up);
            }
        }
        gone
    }

    fn wake_here(&self, message: Message) {
        match message {
            Message::Turn(_, claim) => {
                self.parts.entries.wake(claim);
            }
            Message::Held(_, event) => {
                if let Some(events) = &self.parts.events {
                    // Sending fails if the engine was dropped, or the channel is full. Then the next renewal finds out.
                    let _ = events.try_send(event);
                }
            }
        }
    }

    /// A job that reaps the waiters whose process has ended.
    pub(crate) fn reap_gone(&self, gone: Vec<WakeUp>) -> Box<dyn Job> {
        let action = Action::Other("reaping waiters of ended processes");
        self.job(action, move |transaction| {
            for wake_up in &gone {
                if let Message::Turn(name, claim) = &wake_up.message {
                    reap::waiter(transaction, name, *claim)?;
                }
            }
            Ok(())
        })
    }

    /// Deletes the expired rows of all locks from time to time. Otherwise the rows of unused locks would stay.
    pub(crate) fn sweep(&mut self) {
        let now = Clock::Boot.now();
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let Some(open) = &self.open else { return };
        // An error shows again with the next request.
        if !reap::has_expired(&open.connection, now).unwrap_or(false) {
            return;
        }
        let deadline = now + self.parts.file.config.response_timeout;
        if let Err(failure) = self.transaction(deadline, reap::expired) {
            let action = Action::Other("deleting expired rows");
            let error = failure.explain(&self.parts.file, &action);
            tracing::debug!(%error, "expired rows stay for now");
        }
    }

    /// A job without a caller.
    fn job(
        &self,
        action: Action,
        work: impl FnMut(&mut Transaction<'_>) -> Sql<()> + Send + 'static,
    ) -> Box<dyn Job> {
        let deadline = Clock::Boot.now() + self.parts.file.config.response_timeout;
        request(action, deadline, work).0
    }

    /// Copies the write-ahead log into the file, and starts the log again if no process reads it. Only the worker does this,
    /// not the caller of a commit, because it waits for the disk.
    pub(crate) fn checkpoint(&mut self) {
        let Some(open) = &self.open else { return };
        open.wait_until(Clock::Boot.now());
        let connection = &open.connection;
        let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        // The first write after a checkpoint waits for the disk, too.
        let restarted = copied.and_then(|()| {
            let write = connection.execute("UPDATE store SET token = token", []);
            write.map(drop)
        });
        if let Err(error) = restarted {
            // The next checkpoint does the rest.
            tracing::debug!(store = %self.parts.file, %error, "no checkpoint was possible now");
        }
    }
}

fn execute(connection: &Connection, sql: &str) -> Sql<()> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}
