//! The least time that a server process has run. Its reported uptime does not count, because it follows the server's clock,
//! which may be set right after the start. Two times count: how long clients have seen the process, by the boot clocks of their
//! machines, and how much processor time it has used. The server remembers both, so that a new client need not wait for a
//! server that has run for long.

use std::time::Duration;

use fencelock_core::BootInstant;
use fencelock_core::support::Mutex;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

use crate::connection::ask;
use crate::machine::Machine;
use crate::server::ServerInfo;
use crate::state::State;

/// Where the server remembers its own start, a hash.
const STARTED: &str = "fencelock:started";

/// The server process that this client saw last, and since when.
#[derive(Debug, Default)]
pub(crate) struct Uptime(Mutex<Option<(String, BootInstant)>>);

impl Uptime {
    /// Since when this client has seen this process, to which it sends a request at `asked`.
    fn since(&self, run_id: &str, asked: BootInstant) -> BootInstant {
        let mut seen = self.0.lock();
        match &*seen {
            Some((known, since)) if known == run_id => *since,
            _ => seen.insert((run_id.to_owned(), asked)).1,
        }
    }

    /// The least time that the server has run; `None` if it does not identify its process.
    pub(crate) async fn ran(
        &self,
        driver: &mut MultiplexedConnection,
        info: &ServerInfo,
        state: &State,
        asked: BootInstant,
    ) -> Option<Duration> {
        let run_id = info.run_id()?;
        let seen = asked.since(self.since(&run_id, asked)).max(info.ran());
        if state.config.is_cluster() {
            // A node has the keys of its slots only.
            return Some(seen);
        }
        let mut command = redis::cmd("EVAL");
        command
            .arg(&state.scripts.uptime.text)
            .arg(1)
            .arg(STARTED)
            .arg(&run_id)
            .arg(Machine::this().id())
            .arg(Machine::now())
            .arg(u64::try_from(seen.as_millis()).unwrap_or(0));
        let told = ask(driver, &command).await;
        match told.and_then(|value| Ok(u64::from_redis_value(value)?)) {
            Ok(millis) => Some(Duration::from_millis(millis)),
            Err(error) => {
                // The user may not write this, or the server is full: the client uses only what it has seen itself.
                tracing::debug!(%error, "the server does not remember its start");
                Some(seen)
            }
        }
    }
}
