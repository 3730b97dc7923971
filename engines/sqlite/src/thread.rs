//! The thread that works on the file. It takes what is queued and does all writes among it in one transaction, so
//! that many tasks of a process cost one commit.
//!
//! A small write that would be the only one is done by the caller itself, if that needs no waiting: nothing is queued,
//! the thread is idle, and no other process has the file locked. It then costs some ten microseconds, less than waking
//! the thread and being woken. Whatever may take long (waiting for others, checkpoints, reopening) is the thread's. A disk
//! that stalls in the middle of such a write stalls the caller's thread with it, and on a runtime of one thread all that
//! runs there, timeouts and renewals too.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, Clock, Error, LockName, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::bell::{BellId, News, Ring, Ringer, Rung};
use super::file::{File, Source};
use super::holds::Holds;
use super::rows;
use crate::doors::Doors;

/// The most that goes into one transaction, so that other processes have their turn.
const BATCH: usize = 64;
/// How often rows that nobody meets any more are looked for, if there is anything to do at all.
const SWEEP: Duration = Duration::from_secs(60);

/// How much longer than for other processes a call waits for the disk.
const GRACE: Duration = Duration::from_millis(500);

/// One in so many commits has the write-ahead log copied back into the file. By chance and not by count, so that
/// processes that live for a few commits only do their share.
const COMMITS_TO_CHECKPOINT: u32 = 2000;

/// What is asked, for errors.
#[derive(Clone, Debug)]
pub(super) enum Action {
    About(&'static str, LockName),
    Other(&'static str),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::About(what, name) => write!(f, "{what} lock {name}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// One visit to the file: a transaction, or a read.
pub(super) struct Visit<'a> {
    pub(super) connection: &'a Connection,
    pub(super) source: &'a Source,
    pub(super) now: BootInstant,
    pub(super) me: BellId,
    pub(super) doors: &'a Doors,
    pub(super) holds: &'a Holds,
    /// To be sent when the transaction is committed.
    pub(super) rings: Vec<Ring>,
}

/// A request: work that may have to be done twice, since a transaction that fails is repeated one request at a time.
trait Job: Send {
    fn deadline(&self) -> BootInstant;
    fn work(&mut self, visit: &mut Visit<'_>) -> rusqlite::Result<()>;
    fn action(&self) -> &Action;
    fn answer(self: Box<Self>, failure: Option<Error>);
}

struct Request<T, W> {
    action: Action,
    deadline: BootInstant,
    work: W,
    result: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, W> Job for Request<T, W>
where
    T: Send,
    W: FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send,
{
    fn deadline(&self) -> BootInstant {
        self.deadline
    }

    fn work(&mut self, visit: &mut Visit<'_>) -> rusqlite::Result<()> {
        self.result = Some((self.work)(visit)?);
        Ok(())
    }

    fn action(&self) -> &Action {
        &self.action
    }

    fn answer(self: Box<Self>, failure: Option<Error>) {
        let answer = match (failure, self.result) {
            (None, Some(result)) => Ok(result),
            (Some(failure), _) => Err(failure),
            (None, None) => Err(Error::Closed),
        };
        // Nobody waits any more if the caller gave up.
        let _ = self.reply.send(answer);
    }
}

enum Message {
    Write(Box<dyn Job>),
    Read(Box<dyn Job>),
    /// There are renewals.
    Renew,
    Checkpoint,
    Close(oneshot::Sender<()>),
}

/// The way to the thread. The thread ends when the last one is dropped.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    messages: mpsc::Sender<Message>,
    renewals: mpsc::Sender<Box<dyn Job>>,
    desk: Arc<Desk>,
    source: Arc<Source>,
    response_timeout: Duration,
}

/// What the thread and a caller who does its own write share.
struct Desk {
    hands: Mutex<Hands>,
    /// Requests that are queued or being worked on by the thread.
    queued: AtomicUsize,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Queue {
    /// Other processes are not to take the silence here for that of an engine that is gone. To be called before the
    /// first request.
    pub(super) fn nobody_listens(&self) {
        let mut hands = self.desk.hands();
        hands.worker.me = hands.worker.me.unheard();
    }

    /// Work in a transaction of its own or together with others. `work` may run more than once; only what its last
    /// run did is kept.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = self.request(action.clone(), work);
        self.send(Message::Write(job))?;
        self.answer(action, answer).await
    }

    /// As `write`, before whatever else is queued: validity ends while it waits.
    pub(super) async fn renew<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = self.request(action.clone(), work);
        self.renewals.send(job).map_err(|_| Error::Closed)?;
        self.send(Message::Renew)?;
        self.answer(action, answer).await
    }

    /// As `write`, for work of a few statements.
    pub(super) async fn write_little<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = self.request(action.clone(), work);
        if let Some(job) = self.do_at_once(job) {
            self.send(Message::Write(job))?;
        }
        self.answer(action, answer).await
    }

    /// Work that changes nothing, and waits for nobody.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = self.request(action.clone(), work);
        self.send(Message::Read(job))?;
        self.answer(action, answer).await
    }

    /// Reads, and nobody waits for the answer.
    pub(super) fn read_behind(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) {
        let (job, _nobody) = self.request(action, work);
        // A closed engine has nothing to find out any more.
        let _ = self.send(Message::Read(job));
    }

    fn request<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> (Box<dyn Job>, oneshot::Receiver<Result<T>>) {
        let (reply, answer) = oneshot::channel();
        let request = Request {
            action,
            deadline: Clock::Boot.now() + self.response_timeout,
            work,
            result: None,
            reply,
        };
        (Box::new(request), answer)
    }

    fn send(&self, message: Message) -> Result<()> {
        self.desk.queued.fetch_add(1, Ordering::AcqRel);
        self.messages.send(message).map_err(|_| Error::Closed)
    }

    async fn answer<T>(&self, action: Action, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        let answer = async { answer.await.unwrap_or(Err(Error::Closed)) };
        self.in_time(action, answer).await
    }

    async fn in_time<T>(
        &self,
        action: Action,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // Processes that have the file locked are waited for on the thread; this is for a disk that does not answer.
        let patience = self.patience();
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("no answer from the disk in {patience:?}");
                Err(Error::unavailable(&self.source, action.to_string(), why))
            }
        }
    }

    /// Does the write here and now if that needs no waiting; else gives it back, with nothing done.
    fn do_at_once(&self, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
        // What was asked before goes before.
        if self.desk.queued.load(Ordering::Acquire) > 0 {
            return Some(job);
        }
        let mut hands = match self.desk.hands.try_lock() {
            Ok(hands) => hands,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(job),
        };
        if !hands.has_the_file() {
            return Some(job);
        }
        let mut jobs = [job];
        let done = hands.transaction(&mut jobs, BootInstant::from_nanos(0));
        let [job] = jobs;
        // Whatever went wrong, the thread meets it again and says what it is.
        let Ok(rings) = done else { return Some(job) };
        let gone = hands.ring_once(rings);
        let burial = (!gone.is_empty()).then(|| hands.burial(gone));
        drop(hands);
        job.answer(None);
        if let Some(burial) = burial {
            // Those of a closed engine are passed over when their rows have expired.
            let _ = self.send(Message::Write(burial));
        }
        if fastrand::u32(..COMMITS_TO_CHECKPOINT) == 0 {
            // A closed engine has checkpointed at its end.
            let _ = self.send(Message::Checkpoint);
        }
        None
    }

    /// Ends the thread when all that was asked before is done, and waits for that as long as for an answer.
    pub(super) async fn close(&self) -> Result<()> {
        let (done, closed) = oneshot::channel();
        if self.send(Message::Close(done)).is_err() {
            return Ok(());
        }
        let closed = async {
            // An error means that it is gone: closed just now by another.
            let _ = closed.await;
            Ok(())
        };
        self.in_time(Action::Other("close the file"), closed).await
    }

    /// For how long a call waits for the thread.
    pub(super) fn patience(&self) -> Duration {
        self.response_timeout + GRACE
    }
}

/// What the thread works with.
pub(super) struct Worker {
    pub(super) source: Arc<Source>,
    pub(super) response_timeout: Duration,
    pub(super) me: BellId,
    pub(super) doors: Arc<Doors>,
    pub(super) holds: Arc<Holds>,
    /// Until the engine is closed.
    pub(super) events: Option<tokio::sync::mpsc::Sender<Event>>,
}

/// Starts the thread and opens the file on it.
pub(super) async fn start(worker: Worker) -> Result<Queue> {
    let (messages, inbox) = mpsc::channel();
    let (renewals, to_renew) = mpsc::channel();
    let response_timeout = worker.response_timeout;
    let source = Arc::clone(&worker.source);
    let (opened, open) = oneshot::channel();
    let run = move || match open_file(&worker.source) {
        Ok(file) => {
            let desk = Arc::new(Desk {
                hands: Mutex::new(Hands::new(worker, file)),
                queued: AtomicUsize::new(0),
            });
            if opened.send(Ok(Arc::clone(&desk))).is_ok() {
                desk.serve(&inbox, &to_renew);
            }
        }
        Err(error) => {
            // Nobody waits any more if the caller gave up.
            let _ = opened.send(Err(error));
        }
    };
    let thread = std::thread::Builder::new().name("fencelock-sqlite".into());
    thread.spawn(run).map_err(|error| {
        Error::unavailable(&source, "start the thread that works on the file", error)
    })?;
    let died = |_| Error::Internal {
        store: source.to_string(),
        why: "the thread that opens the file died".into(),
    };
    let desk = open.await.map_err(died)??;
    Ok(Queue {
        messages,
        renewals,
        desk,
        source,
        response_timeout,
    })
}

/// The file to work on. Who only looks opens it for each look, and here to see whether that can be done.
fn open_file(source: &Source) -> Result<Option<File>> {
    match source.inspect_only {
        true => source.glance(|_| Ok(None)),
        false => source.open().map(Some),
    }
}

impl Desk {
    /// The thread's work, until the engine is closed or dropped.
    fn serve(&self, inbox: &mpsc::Receiver<Message>, renewals: &mpsc::Receiver<Box<dyn Job>>) {
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        let mut close = None;
        while let Ok(message) = inbox.recv() {
            writes.extend(renewals.try_iter());
            let mut next = Some(message);
            let (mut taken, mut checkpoint) = (0, false);
            while let Some(message) = next {
                taken += 1;
                match message {
                    Message::Write(job) => writes.push(job),
                    Message::Read(job) => reads.push(job),
                    Message::Renew => {}
                    Message::Checkpoint => checkpoint = true,
                    Message::Close(done) => {
                        close = Some(done);
                        break;
                    }
                }
                next = if taken < BATCH {
                    inbox.try_recv().ok()
                } else {
                    None
                };
            }
            let mut hands = self.hands();
            if !writes.is_empty() {
                checkpoint |= fastrand::u32(..COMMITS_TO_CHECKPOINT) == 0;
                hands.write(&mut writes);
            }
            for job in reads.drain(..) {
                hands.read(job);
            }
            hands.sweep();
            if checkpoint {
                hands.checkpoint();
            }
            drop(hands);
            self.queued.fetch_sub(taken, Ordering::AcqRel);
            if close.is_some() {
                break;
            }
        }
        self.hands().put_down();
        if let Some(done) = close {
            // Nobody waits any more if the caller gave up.
            let _ = done.send(());
        }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        // Whoever panicked left a transaction behind at worst, which the next BEGIN reports.
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file and what is needed to work on it.
struct Hands {
    worker: Worker,
    ringer: Ringer,
    file: Option<File>,
    swept: BootInstant,
}

impl Hands {
    fn new(worker: Worker, file: Option<File>) -> Self {
        Self {
            ringer: Ringer::new(),
            worker,
            file,
            swept: BootInstant::from_nanos(0),
        }
    }

    /// Closes the file, and ends the events.
    fn put_down(&mut self) {
        self.file = None;
        self.worker.events = None;
    }

    /// Whether the file is open, and is the one that the path names.
    fn has_the_file(&self) -> bool {
        let path = &self.worker.source.path;
        self.file.as_ref().is_some_and(|file| file.is_at(path))
    }

    /// All of these in one transaction; if that fails, each in its own, so that one does not fail the others.
    fn write(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        if jobs.is_empty() {
            return;
        }
        let deadline = jobs.iter().map(|job| job.deadline()).min();
        let deadline = deadline.unwrap_or(BootInstant::from_nanos(0));
        let done = self.open_again_if_replaced().map_err(Failure::from);
        match done.and_then(|()| self.transaction(jobs, deadline)) {
            Ok(rings) => {
                self.ring(rings);
                jobs.drain(..).for_each(|job| job.answer(None));
            }
            Err(failure) if jobs.len() == 1 => {
                if let Some(job) = jobs.pop() {
                    let error = failure.explain(&self.worker.source, job.action());
                    job.answer(Some(error));
                }
            }
            Err(_) => {
                for job in jobs.drain(..) {
                    self.write(&mut vec![job]);
                }
            }
        }
    }

    /// Waits for other processes until the deadline. After an error nothing is done.
    fn transaction(
        &mut self,
        jobs: &mut [Box<dyn Job>],
        deadline: BootInstant,
    ) -> Result<Vec<Ring>, Failure> {
        let file = self.the_file()?;
        file.wait_until(deadline);
        execute(&file.connection, "BEGIN IMMEDIATE")?;
        let mut visit = self.visit(&file.connection);
        let worked = jobs.iter_mut().try_for_each(|job| job.work(&mut visit));
        let Visit {
            connection, rings, ..
        } = visit;
        let ended = worked.and_then(|()| execute(connection, "COMMIT"));
        match ended {
            Ok(()) => Ok(rings),
            Err(error) => {
                // Fails if SQLite has rolled back by itself.
                let _ = execute(connection, "ROLLBACK");
                Err(error.into())
            }
        }
    }

    fn read(&mut self, mut job: Box<dyn Job>) {
        let outcome = self.read_once(&mut *job);
        let failure = outcome.err();
        let failure = failure.map(|failure| failure.explain(&self.worker.source, job.action()));
        job.answer(failure);
    }

    fn read_once(&mut self, job: &mut dyn Job) -> Result<(), Failure> {
        if self.worker.source.inspect_only {
            let action = job.action().to_string();
            let source = &self.worker.source;
            let mut read = |connection: &Connection| {
                let read = self.read_in_a_snapshot(connection, job);
                read.map_err(|error| source.error(&action, &error))
            };
            return Ok(source.glance(&mut read)?);
        }
        self.open_again_if_replaced()?;
        let file = self.the_file()?;
        file.wait_until(job.deadline());
        Ok(self.read_in_a_snapshot(&file.connection, job)?)
    }

    /// One snapshot for all that it reads.
    fn read_in_a_snapshot(
        &self,
        connection: &Connection,
        job: &mut dyn Job,
    ) -> rusqlite::Result<()> {
        execute(connection, "BEGIN")?;
        let worked = job.work(&mut self.visit(connection));
        let ended = execute(connection, "COMMIT");
        worked.and(ended)
    }

    fn the_file(&self) -> Result<&File, Failure> {
        let source = &self.worker.source;
        let no_file = || match source.inspect_only {
            true => Error::unsupported(
                source,
                "a change of locks",
                "the store was opened to look only",
            ),
            false => source.gone(),
        };
        Ok(self.file.as_ref().ok_or_else(no_file)?)
    }

    fn visit<'a>(&'a self, connection: &'a Connection) -> Visit<'a> {
        Visit {
            connection,
            source: &self.worker.source,
            now: Clock::Boot.now(),
            me: self.worker.me,
            doors: &self.worker.doors,
            holds: &self.worker.holds,
            rings: Vec::new(),
        }
    }

    fn open_again_if_replaced(&mut self) -> Result<(), Error> {
        if self.worker.source.inspect_only || self.has_the_file() {
            return Ok(());
        }
        let source = &self.worker.source;
        tracing::warn!(store = %source, "the file was deleted or replaced; opening it anew");
        self.file = None;
        self.file = Some(source.open()?);
        Ok(())
    }

    /// Rings. A waiter whose process is gone is taken out of the line, and the next one called; other processes are
    /// waited for, so this is the thread's.
    fn ring(&mut self, rings: Vec<Ring>) {
        let mut gone = self.ring_once(rings);
        while !gone.is_empty() {
            let burial = self.burial(gone);
            let deadline = burial.deadline();
            match self.transaction(&mut [burial], deadline) {
                Ok(next) => gone = self.ring_once(next),
                // They are passed over when their rows have expired.
                Err(_) => return,
            }
        }
    }

    /// Wakes those of this engine here and the others through their sockets, and gives back the rings whose process is
    /// gone. Waits for nobody.
    fn ring_once(&self, rings: Vec<Ring>) -> Vec<Ring> {
        let mut gone = Vec::new();
        for ring in rings {
            if ring.to == self.worker.me.as_bytes() {
                self.hear(ring.news);
            } else if self.ringer.ring(&ring) == Rung::Gone {
                gone.push(ring);
            }
        }
        gone
    }

    fn hear(&self, news: News) {
        match news {
            News::Turn(_, claim) => {
                self.worker.doors.ring(claim);
            }
            News::Held(_, event) => {
                if let Some(events) = &self.worker.events {
                    // Nobody listens once the engine is dropped; what does not fit is found with the next renewal.
                    let _ = events.try_send(event);
                }
            }
        }
    }

    /// Takes the waiters out of line that these rings did not reach.
    fn burial(&self, gone: Vec<Ring>) -> Box<dyn Job> {
        let (reply, _nobody) = oneshot::channel();
        Box::new(Request {
            action: Action::Other("take waiters out of line whose processes are gone"),
            deadline: Clock::Boot.now() + self.worker.response_timeout,
            work: move |visit: &mut Visit<'_>| {
                for ring in &gone {
                    if let News::Turn(name, claim) = &ring.news {
                        rows::bury(visit, name, *claim)?;
                    }
                }
                Ok(())
            },
            result: None,
            reply,
        })
    }

    /// Deletes the rows of holders and waiters that vanished and whose names nobody uses any more.
    fn sweep(&mut self) {
        let now = Clock::Boot.now();
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let Some(file) = &self.file else { return };
        match rows::has_dead(&file.connection, now) {
            Ok(false) => return,
            Ok(true) => {}
            // What is asked for next will say the same.
            Err(_) => return,
        }
        let (reply, _nobody) = oneshot::channel();
        let deadline = now + self.worker.response_timeout;
        let request = Request {
            action: Action::Other("delete what has expired"),
            deadline,
            work: rows::sweep,
            result: None,
            reply,
        };
        let jobs: &mut [Box<dyn Job>] = &mut [Box::new(request)];
        if let Err(failure) = self.transaction(jobs, deadline) {
            let error = failure.explain(&self.worker.source, jobs[0].action());
            tracing::debug!(%error, "the rows of vanished claims stay for now");
        }
    }
}

impl Hands {
    /// Copies the write-ahead log back into the file, and begins it anew if nobody reads it. Here, and not at the end of
    /// whichever commit makes it long, because it waits for the disk.
    fn checkpoint(&mut self) {
        let Some(file) = &self.file else { return };
        file.wait_until(Clock::Boot.now());
        let copied = file
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        // The first write after a checkpoint waits for the disk once more.
        let begun = copied.and_then(|()| {
            file.connection
                .execute("UPDATE store SET token = token", [])
                .map(drop)
        });
        if let Err(error) = begun {
            // The next one does what is left.
            tracing::debug!(store = %self.worker.source, %error, "the log could not be copied back just now");
        }
    }
}

/// What went wrong, before it is known whom to tell.
enum Failure {
    Sql(rusqlite::Error),
    Told(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

impl Failure {
    fn explain(self, source: &Source, action: &Action) -> Error {
        match self {
            Self::Sql(error) => source.error(&action.to_string(), &error),
            Self::Told(error) => error,
        }
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}
