//! Opening the engine: the servers' limits, the session for waiting claims, and whether this user may lock at the chroot.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{Error, Result};
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use zookeeper_client::Error as Refusal;

use crate::config::Config;
use crate::connection::{Life, Link, prepare};
use crate::entry::Spot;
use crate::error::{Trouble, error};
use crate::server;
use crate::session::{Listeners, Session};
use crate::state::Store;

/// The state of an opened engine, and what its tasks and its event stream receive.
pub(crate) struct Opened {
    pub(crate) store: Arc<Store>,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    /// Sessions that the servers expired.
    pub(crate) ended: mpsc::UnboundedReceiver<Arc<Life>>,
    /// Connections over which a session goes on.
    pub(crate) resumed: mpsc::UnboundedReceiver<Arc<Link>>,
    /// Holds to watch.
    pub(crate) watched: mpsc::UnboundedReceiver<(Arc<Spot>, Arc<Link>)>,
}

/// Connects within `connect-timeout`.
pub(crate) async fn open(config: &Arc<Config>) -> Result<Opened> {
    let limit = config.connect_timeout;
    match tokio::time::timeout(limit, connect(config)).await {
        Ok(opened) => opened,
        Err(_) => {
            let why = format!("no server answered within {limit:?}");
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
        error(config, "connecting", Trouble::Silent(why))
    };
    let limits = retry(|| Box::pin(server::limits(config)));
    let limits = limits.await.map_err(failed)?;
    let (ended, ends) = mpsc::unbounded_channel();
    let (resumed, resumes) = mpsc::unbounded_channel();
    let listeners = Listeners { ended, resumed };
    let window = config.window.clamp(limits.0, limits.1);
    let line = retry(|| Box::pin(Session::open(config, window, listeners.clone())));
    let line = line.await.map_err(failed)?;
    let link = line.link().await;
    let link = link.map_err(|trouble| error(config, "checking its rights", trouble))?;
    prepare(config, &link).await?;
    let (tell, events) = mpsc::unbounded_channel();
    let (watch, watched) = mpsc::unbounded_channel();
    let store = Store::new(Arc::clone(config), line, limits, listeners, tell, watch);
    Ok(Opened {
        store: Arc::new(store),
        events,
        ended: ends,
        resumed: resumes,
        watched,
    })
}

/// Retries until a server accepts the connection: during an election none does. The caller sets the time limit.
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
            opened => return opened,
        }
    }
}
