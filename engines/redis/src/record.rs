//! The store's record: a field of one hash, `VERSION:TEXT`.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_core::{Error, LockName, Result};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::cluster::Retries;
use crate::keys::{Keys, RECORD};
use crate::reply::{text, unexpected};
use crate::route::Route;
use crate::servers::Servers;

const READING: &str = "reading the record";
const CHANGING: &str = "changing the record";

pub(crate) async fn record(
    servers: &Servers,
    scope: &str,
    change: Option<&RecordChange>,
) -> Result<Record> {
    let state = &servers.state;
    // No lock can have this name.
    let name = LockName::new(RECORD)?;
    let keys = state.keys(&name);
    let (action, answer) = match change {
        None => (READING, read(servers, &keys, scope).await?),
        Some(change) => {
            state.check_not_inspect_only(CHANGING)?;
            (CHANGING, write(servers, &keys, scope, change).await?)
        }
    };
    let failed = |answer: &Value| failed(servers, action, unexpected(answer));
    match &answer {
        Value::Nil => Ok(Record::default()),
        found => parsed(found).ok_or_else(|| failed(found)),
    }
}

fn failed(servers: &Servers, action: &str, error: RedisError) -> Error {
    servers.state.failed(action, None, error)
}

/// Reads without a script, so that a user for inspection needs no right to run scripts.
async fn read(servers: &Servers, keys: &Keys<'_>, scope: &str) -> Result<Value> {
    let mut question = Pipeline::with_capacity(1);
    question.cmd("HGET").arg(RECORD).arg(scope);
    let mut answers = servers.ask(READING, keys, &question).await?;
    Ok(answers.pop().unwrap_or(Value::Nil))
}

async fn write(
    servers: &Servers,
    keys: &Keys<'_>,
    scope: &str,
    change: &RecordChange,
) -> Result<Value> {
    let state = &servers.state;
    let args = |command: &mut Cmd| {
        command.arg(1).arg(RECORD).arg(scope);
        command.arg(change.from).arg(&change.text);
    };
    let mut retries = Retries::new(&state.config);
    loop {
        let mut route = Route::over(servers, servers.connection(keys.slot).await?).await?;
        let ran = route.connection().run(&state.scripts.record, args).await;
        match ran {
            Ok(answer) => {
                route.answered();
                route.replicate(servers).await?;
                return Ok(answer);
            }
            Err(error) if servers.should_retry(&mut retries, keys.slot, &error).await => {}
            Err(error) => return Err(failed(servers, CHANGING, error)),
        }
    }
}

fn parsed(answer: &Value) -> Option<Record> {
    let found = text(answer)?;
    let (version, text) = found.split_once(':')?;
    match version.parse().ok()? {
        0 => Some(Record::default()),
        version => Some(Record::new(version, text)),
    }
}
