//! Watching the servers' clocks.

use std::pin::Pin;
use std::time::Duration;

use fencelock_core::Finding;
use fencelock_core::support::{Asked, ClockWatch};
use redis::{Cmd, RedisError, Value};

use crate::reply::time_micros;

pub(crate) type Asking<'a> = Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send + 'a>>;

/// Watches the clocks of these servers for a second, all at once. `time` sends `TIME` to one of them.
pub(crate) async fn watch<S: Send + Sync>(
    servers: Vec<(String, S)>,
    time: impl for<'a> Fn(&'a S, &'a Cmd) -> Asking<'a> + Send + Sync,
) -> Vec<Finding> {
    let mut command = Cmd::new();
    command.arg("TIME");
    let mut watched: Vec<_> = servers
        .into_iter()
        .map(|(name, server)| (ClockWatch::new(name), server))
        .collect();
    for round in 0..ClockWatch::TIMES {
        if round > 0 {
            tokio::time::sleep(ClockWatch::PAUSE).await;
        }
        for (watch, server) in &mut watched {
            let asked = Asked::now();
            if let Ok(answer) = time(server, &command).await
                && let Some(micros) = time_micros(&answer)
            {
                let micros = u64::try_from(micros).unwrap_or(0);
                watch.told(asked, Duration::from_micros(micros));
            }
        }
    }
    watched
        .iter()
        .flat_map(|(watch, _)| watch.findings())
        .collect()
}
