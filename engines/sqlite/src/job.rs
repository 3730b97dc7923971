//! Requests to the worker.

use std::fmt;

use fencelock_core::{BootInstant, Error, LockName, Result};
use rusqlite::ErrorCode;
use tokio::sync::oneshot;

use crate::file::File;
use crate::stored::Sql;
use crate::transaction::Transaction;

/// What a request does, for errors.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    On(&'static str, LockName),
    Other(&'static str),
}

impl Action {
    pub(crate) fn on(verb: &'static str, name: &LockName) -> Self {
        Self::On(verb, name.clone())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(verb, name) => write!(f, "{verb} lock {name}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Work for a transaction. It may run twice: when a transaction of several jobs fails, each job is repeated alone.
pub(crate) trait Job: Send {
    fn action(&self) -> &Action;
    /// Until when it waits for processes that have the file locked.
    fn deadline(&self) -> BootInstant;
    fn work(&mut self, transaction: &mut Transaction<'_>) -> Sql<()>;
    /// Answers with the result of the last `work`, or with this error.
    fn answer(self: Box<Self>, error: Option<Error>);
}

pub(crate) type Answer<T> = oneshot::Receiver<Result<T>>;

pub(crate) fn request<T: Send + 'static>(
    action: Action,
    deadline: BootInstant,
    work: impl FnMut(&mut Transaction<'_>) -> Sql<T> + Send + 'static,
) -> (Box<dyn Job>, Answer<T>) {
    let (reply, answer) = oneshot::channel();
    let request = Request {
        action,
        deadline,
        work,
        result: None,
        reply,
    };
    (Box::new(request), answer)
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
    W: FnMut(&mut Transaction<'_>) -> Sql<T> + Send,
{
    fn action(&self) -> &Action {
        &self.action
    }

    fn deadline(&self) -> BootInstant {
        self.deadline
    }

    fn work(&mut self, transaction: &mut Transaction<'_>) -> Sql<()> {
        self.result = Some((self.work)(transaction)?);
        Ok(())
    }

    fn answer(self: Box<Self>, error: Option<Error>) {
        let answer = match (error, self.result) {
            (None, Some(result)) => Ok(result),
            (Some(error), _) => Err(error),
            (None, None) => Err(Error::Closed),
        };
        // Sending fails if the caller gave up.
        let _ = self.reply.send(answer);
    }
}

/// Why a job failed, before the error has the job's action.
pub(crate) enum Failure {
    Sql(rusqlite::Error),
    Error(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// Whether SQLite cannot make sense of its files. So it is if somebody deleted or replaced some of them, but not all.
    pub(crate) fn is_of_the_files(&self) -> bool {
        matches!(self, Self::Sql(error) if matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ))
    }

    pub(crate) fn explain(self, file: &File, action: &Action) -> Error {
        match self {
            Self::Sql(error) => file.error(&action.to_string(), &error),
            Self::Error(error) => error,
        }
    }
}
