//! For how long a server process has run at least. Its uptime does not tell: that follows its clock, which may be set right
//! after its start. What counts is since when clients have seen it, by the boot clocks of their machines, and how much
//! processor time it has used. The server remembers both, so that a new client need not wait for a server that is long up.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::BootInstant;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

use crate::connection::ask;
use crate::machine::Machine;
use crate::scripts::Script;
use crate::server::ServerInfo;

/// What a server remembers of its own start, a hash.
const STARTED: &str = "fencelock:started";

/// The server process that a client has seen last, and since when.
#[derive(Debug, Default)]
pub(crate) struct Watching(Mutex<Option<(String, BootInstant)>>);

impl Watching {
    /// Since when this client has seen this process, which it is asking at `asked`.
    fn since(&self, run_id: &str, asked: BootInstant) -> BootInstant {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((known, since)) if known == run_id => *since,
            _ => seen.insert((run_id.to_owned(), asked)).1,
        }
    }

    /// For how long the server has run at least; `None` if it does not say which process it is. `remembers`: it has the keys
    /// of this client, not those of some slots.
    pub(crate) async fn ran(
        &self,
        connection: &mut MultiplexedConnection,
        facts: &ServerInfo,
        script: &Script,
        asked: BootInstant,
        remembers: bool,
    ) -> Option<Duration> {
        let run_id = facts.run_id()?;
        let seen = asked.since(self.since(&run_id, asked)).max(facts.ran());
        if !remembers {
            return Some(seen);
        }
        let mut command = redis::cmd("EVAL");
        command.arg(&script.text).arg(1).arg(STARTED);
        command.arg(&run_id).arg(Machine::this().id());
        command
            .arg(Machine::now())
            .arg(u64::try_from(seen.as_millis()).unwrap_or(0));
        let told = ask(connection, &command).await;
        match told.and_then(|value| Ok(u64::from_redis_value(value)?)) {
            Ok(millis) => Some(Duration::from_millis(millis)),
            Err(error) => {
                // One that may not write this, or is full, goes by what it sees itself.
                tracing::debug!(%error, "the server does not remember its start");
                Some(seen)
            }
        }
    }
}
