//! The thread that the file belongs to. It takes what is queued and does all writes among it in one transaction, so
//! that many tasks of a process cost one commit.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, Clock, Error, LockName, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::bell::{BellId, News, Ring, Ringer, Rung};
use super::doors::Doors;
use super::file::{File, Source};
use super::rows;

/// The most that goes into one transaction, so that other processes have their turn.
const BATCH: usize = 64;
/// How often rows that nobody meets any more are looked for, if there is anything to do at all.
const SWEEP: Duration = Duration::from_secs(60);

/// How much longer than for other processes a call waits for the disk.
const GRACE: Duration = Duration::from_millis(500);

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
    Close(oneshot::Sender<()>),
}

/// The way to the thread. The thread ends when the last one is dropped.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    messages: mpsc::Sender<Message>,
    source: Arc<Source>,
    response_timeout: Duration,
}

impl Queue {
    /// Work in a transaction of its own or together with others. `work` may run more than once; only what its last
    /// run did is kept.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(Message::Write, action, work).await
    }

    /// Work that changes nothing, and waits for nobody.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(Message::Read, action, work).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        kind: fn(Box<dyn Job>) -> Message,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = self.send(kind, action.clone(), work)?;
        // Processes that have the file locked are waited for on the thread; this is for a disk that does not answer.
        let patience = self.response_timeout + GRACE;
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => answer.unwrap_or(Err(Error::Closed)),
            Err(_) => {
                let why = format!("no answer from the disk in {patience:?}");
                Err(Error::unavailable(&self.source, action.to_string(), why))
            }
        }
    }

    /// Reads, and nobody waits for the answer.
    pub(super) fn read_behind(
        &self,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) {
        // A closed engine has nothing to find out any more.
        let _ = self.send(Message::Read, action, work);
    }

    fn send<T: Send + 'static>(
        &self,
        kind: fn(Box<dyn Job>) -> Message,
        action: Action,
        work: impl FnMut(&mut Visit<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        let (reply, answer) = oneshot::channel();
        let request = Request {
            action,
            deadline: Clock::Boot.now() + self.response_timeout,
            work,
            result: None,
            reply,
        };
        let message = kind(Box::new(request));
        self.messages.send(message).map_err(|_| Error::Closed)?;
        Ok(answer)
    }

    /// Ends the thread when all that was asked before is done.
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.messages.send(Message::Close(done)).is_ok() {
            // An error means that it is gone: closed just now by another.
            let _ = closed.await;
        }
    }
}

/// What the thread works with.
pub(super) struct Worker {
    pub(super) source: Arc<Source>,
    pub(super) response_timeout: Duration,
    pub(super) me: BellId,
    pub(super) doors: Arc<Doors>,
    pub(super) events: tokio::sync::mpsc::UnboundedSender<Event>,
}

/// Starts the thread and opens the file on it.
pub(super) async fn start(worker: Worker) -> Result<Queue> {
    let (messages, inbox) = mpsc::channel();
    let response_timeout = worker.response_timeout;
    let source = Arc::clone(&worker.source);
    let (opened, open) = oneshot::channel();
    let run = move || match worker.source.open() {
        Ok(file) => {
            if opened.send(Ok(())).is_ok() {
                Thread::new(worker, file).run(&inbox);
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
    open.await.map_err(died)??;
    Ok(Queue {
        messages,
        source,
        response_timeout,
    })
}

struct Thread {
    worker: Worker,
    ringer: Ringer,
    file: Option<File>,
    swept: BootInstant,
}

impl Thread {
    fn new(worker: Worker, file: File) -> Self {
        Self {
            ringer: Ringer::new(worker.me),
            worker,
            file: Some(file),
            swept: BootInstant::from_nanos(0),
        }
    }

    fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        let mut close = None;
        while let Ok(message) = inbox.recv() {
            let mut next = Some(message);
            while let Some(message) = next {
                match message {
                    Message::Write(job) => writes.push(job),
                    Message::Read(job) => reads.push(job),
                    Message::Close(done) => {
                        close = Some(done);
                        break;
                    }
                }
                let full = writes.len() + reads.len() >= BATCH;
                next = if full { None } else { inbox.try_recv().ok() };
            }
            self.write(&mut writes);
            for job in reads.drain(..) {
                self.read(job);
            }
            self.sweep();
            if close.is_some() {
                break;
            }
        }
        self.file = None;
        if let Some(done) = close {
            // Nobody waits any more if the caller gave up.
            let _ = done.send(());
        }
    }

    /// All of these in one transaction; if that fails, each in its own, so that one does not fail the others.
    fn write(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        if jobs.is_empty() {
            return;
        }
        match self.transaction(jobs) {
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

    fn transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<Vec<Ring>, Failure> {
        let deadline = jobs.iter().map(|job| job.deadline()).min();
        let deadline = deadline.unwrap_or(BootInstant::from_nanos(0));
        self.open_again_if_replaced()?;
        self.begin(deadline)?;
        let mut visit = self.visit()?;
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

    fn begin(&self, deadline: BootInstant) -> Result<(), Failure> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| self.worker.source.gone())?;
        file.wait_until(deadline);
        execute(&file.connection, "BEGIN IMMEDIATE")?;
        Ok(())
    }

    fn read(&mut self, mut job: Box<dyn Job>) {
        let outcome = self.read_once(&mut *job);
        let failure = outcome.err();
        let failure = failure.map(|failure| failure.explain(&self.worker.source, job.action()));
        job.answer(failure);
    }

    fn read_once(&mut self, job: &mut dyn Job) -> Result<(), Failure> {
        self.open_again_if_replaced()?;
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| self.worker.source.gone())?;
        file.wait_until(job.deadline());
        // One snapshot for all that it reads.
        execute(&file.connection, "BEGIN")?;
        let mut visit = self.visit()?;
        let worked = job.work(&mut visit);
        let ended = execute(visit.connection, "COMMIT");
        Ok(worked.and(ended)?)
    }

    fn visit(&self) -> Result<Visit<'_>, Failure> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| self.worker.source.gone())?;
        Ok(Visit {
            connection: &file.connection,
            source: &self.worker.source,
            now: Clock::Boot.now(),
            me: self.worker.me,
            doors: &self.worker.doors,
            rings: Vec::new(),
        })
    }

    fn open_again_if_replaced(&mut self) -> Result<(), Error> {
        let source = &self.worker.source;
        if self
            .file
            .as_ref()
            .is_some_and(|file| file.is_at(&source.path))
        {
            return Ok(());
        }
        tracing::warn!(store = %source, "the file was deleted or replaced; opening it anew");
        self.file = None;
        self.file = Some(source.open()?);
        Ok(())
    }

    /// Wakes those of this engine here and the others through their sockets. A waiter whose process is gone is taken
    /// out of the line, and the next one called.
    fn ring(&mut self, mut rings: Vec<Ring>) {
        while !rings.is_empty() {
            let mut gone: Vec<Ring> = Vec::new();
            for ring in rings.drain(..) {
                if ring.to == self.worker.me.as_bytes() {
                    self.hear(ring.news);
                } else if self.ringer.ring(&ring) == Rung::Gone {
                    gone.push(ring);
                }
            }
            if gone.is_empty() {
                return;
            }
            match self.bury(gone) {
                Ok(next) => rings = next,
                // They are passed over when their rows have expired.
                Err(_) => return,
            }
        }
    }

    fn hear(&self, news: News) {
        match news {
            News::Turn(_, claim) => self.worker.doors.ring(claim),
            News::Held(_, event) => {
                // Nobody listens once the engine is dropped.
                let _ = self.worker.events.send(event);
            }
        }
    }

    fn bury(&mut self, gone: Vec<Ring>) -> Result<Vec<Ring>, Failure> {
        let (reply, _nobody) = oneshot::channel();
        let request = Request {
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
        };
        self.transaction(&mut [Box::new(request)])
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
        let request = Request {
            action: Action::Other("delete what has expired"),
            deadline: now + self.worker.response_timeout,
            work: rows::sweep,
            result: None,
            reply,
        };
        let jobs: &mut [Box<dyn Job>] = &mut [Box::new(request)];
        if let Err(failure) = self.transaction(jobs) {
            let error = failure.explain(&self.worker.source, jobs[0].action());
            tracing::debug!(%error, "the rows of vanished claims stay for now");
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
