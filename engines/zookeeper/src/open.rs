//! Opening the engine: the servers' limits, the session for waiting claims, and whether this user may lock at the chroot.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::EventSource;
use fencelock_core::{Error, Result};
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use zookeeper_client::Error as Refusal;

use crate::config::Config;
use crate::connection::{Connection, prepare};
use crate::entry::Entry;
use crate::error::{Failure, error};
use crate::server;
use crate::session::{ManagedSession, SessionEvent};
use crate::session_pool::SessionPool;
use crate::state::State;

/// The state of an opened engine, and the channels of its tasks.
pub(crate) struct Opened {
    pub(crate) state: Arc<State>,
    pub(crate) events: EventSource,
    pub(crate) session_events: mpsc::UnboundedReceiver<SessionEvent>,
    /// Requests to watch a hold.
    pub(crate) watch_requests: mpsc::UnboundedReceiver<(Arc<Entry>, Arc<Connection>)>,
}

/// Connects within `connect-timeout`.
pub(crate) async fn open(config: &Arc<Config>) -> Result<Opened> {
    let limit = config.connect_timeout;
    match tokio::time::timeout(limit, connect(config)).await {
        Ok(opened) => opened,
        Err(_) => {
            let why = format!(
                "no server answered within {limit:?}; are they up and reachable (connect-timeout)?"
            );
            Err(Error::unavailable(&config.store, "connecting", why))
        }
    }
}

async fn connect(config: &Arc<Config>) -> Result<Opened> {
    let failed = |refusal: Refusal| {
        let why = match refusal {
            Refusal::NoHosts => "no server accepted the connection".into(),
            other => other.to_string(),
        };
        error(config, "connecting", Failure::Unanswered(why))
    };
    let limits = retry(|| Box::pin(server::session_limits(config)));
    let limits = limits.await.map_err(failed)?;
    let (sender, session_events) = mpsc::unbounded_channel();
    let window = config.claim_window.clamp(limits.0, limits.1);
    let waiting = retry(|| Box::pin(ManagedSession::open(config, window, sender.clone())));
    let waiting = waiting.await.map_err(failed)?;
    let connection = waiting.connection().await;
    let connection = connection.map_err(|failure| error(config, "checking its rights", failure))?;
    prepare(config, &connection).await?;
    let sessions = SessionPool::new(Arc::clone(config), waiting, limits, sender);
    let (event_sender, events) = EventSource::channel();
    let (watch_sender, watch_requests) = mpsc::unbounded_channel();
    let state = State::new(Arc::clone(config), sessions, event_sender, watch_sender);
    Ok(Opened {
        state: Arc::new(state),
        events,
        session_events,
        watch_requests,
    })
}

/// Retries until a server accepts the connection, which no server does during an election. The caller sets the time limit.
async fn retry<'a, T>(
    mut attempt: impl FnMut() -> BoxFuture<'a, Result<T, Refusal>>,
) -> Result<T, Refusal> {
    loop {
        match attempt().await {
            Err(Refusal::AuthFailed) => return Err(Refusal::AuthFailed),
            Err(error) => {
                tracing::debug!(%error, "no connection to ZooKeeper; trying again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            done => return done,
        }
    }
}
