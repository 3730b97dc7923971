//! The store handle: the store's URL, opening the store and closing it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::{Client, Error, StoreUrl, in_words};
use fencelock_wire::ClaimKey;

use crate::args::{Patience, Purpose};
use crate::away::AwayWatch;
use crate::environment::{STORE, or_variable};
use crate::exit::{Failure, say};
use crate::keyed::{Keyed, detachable, with_key};

/// How long the end of this process waits for the store. A hold whose release is not confirmed by then ends with its lease.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a server may be silent while it is opened, however short `--wait` is.
const SILENCE: Duration = Duration::from_secs(2);

/// The options of the command line that say which store to use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The value of `--store`.
    pub(crate) store: Option<String>,
    /// The value of `--config`.
    pub(crate) config: Option<PathBuf>,
}

/// The store to use.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) url: String,
    /// What its locks are for, if the configuration file says so.
    pub(crate) purpose: Option<fencelock::Purpose>,
}

impl Wanted {
    /// The store of the command line, else of the environment, else the default. The configuration file is read if the store
    /// has a name there.
    pub(crate) fn resolve(self) -> Result<Resolved, Failure> {
        let store = or_variable(self.store.clone(), STORE)?;
        let url = store.unwrap_or_else(|| "sqlite:".to_owned());
        if !url.starts_with('@') {
            let purpose = None;
            return Ok(Resolved { url, purpose });
        }
        let file = self.config_file()?;
        let purpose = file.purpose(&url);
        let url = file.url(&url)?;
        Ok(Resolved { url, purpose })
    }

    /// The configuration file: of the command line, else of the environment, else of this machine.
    pub(crate) fn config_file(self) -> Result<fencelock::Config, Failure> {
        Ok(match self.config {
            Some(path) => fencelock::Config::load(path)?,
            None => fencelock::Config::find()?,
        })
    }
}

/// Opens the store for inspection only.
pub(crate) async fn open_to_inspect(store: Wanted) -> Result<Client, Failure> {
    Ok(fencelock::connect(store.resolve()?.url)
        .inspect_only()
        .await?)
}

/// Opens the store's engine for inspection only, with one attempt.
pub(crate) async fn engine_to_inspect(url: &str) -> Result<Arc<dyn Engine>, Error> {
    let mut url = StoreUrl::parse(url)?;
    url.inspect_only = true;
    fencelock::open_engine(url).await
}

/// Opens the store. While the store does not answer, the client retries for as long as the URL says,
/// but no longer than `patience`. With a key, its claims are of that key, and a store whose holds cannot be detached from
/// this process is refused.
pub(crate) async fn open(
    store: Wanted,
    purpose: Option<Purpose>,
    patience: Patience,
    key: Option<&ClaimKey>,
    away: Option<&AwayWatch>,
) -> Result<Client, Failure> {
    let Resolved { url, purpose: said } = store.resolve()?;
    let mut connect = match key {
        None => fencelock::connect(&url),
        Some(key) => {
            let ids = key.claim_ids();
            // One token for each grant, since no other task of this process takes the lock next.
            fencelock::connect(with_key(&url, key, None))
                .batch(1)
                .layer(move |engine| Arc::new(Keyed { engine, ids }))
        }
    };
    let purpose = purpose.map(Into::into).or(said);
    connect = connect.purpose(purpose.unwrap_or_default());
    if let Some(watch) = away.cloned() {
        // A request with such a watch never has a key.
        connect = connect.layer(move |engine| watch.around(engine));
    }
    if let Patience::Until(most) = patience {
        connect = connect.patience(most);
    }
    let client = match patience {
        Patience::Until(most) if !most.is_zero() => {
            // A server that accepts connections and is silent would take the time of `connect-timeout`.
            let most = most.max(SILENCE);
            let opened = tokio::time::timeout(most, connect).await;
            opened.map_err(|_| {
                let why = format!("no answer within {}", in_words(most));
                Error::unavailable(StoreUrl::redacted(&url), "opening the store", why)
            })??
        }
        _ => connect.await?,
    };
    if key.is_some()
        && let Err(error) = detachable(client.promises(), client.store())
    {
        close(&client).await;
        return Err(error.into());
    }
    for finding in client.warnings() {
        say(&format!("warning: {}; {}", finding.what, finding.change));
    }
    Ok(client)
}

/// Closes a client, for at most [`CLOSE_TIMEOUT`].
pub(crate) async fn close(client: &Client) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, client.close()).await;
}
