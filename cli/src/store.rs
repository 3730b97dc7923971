//! The store handle: the store's URL, opening the store and closing it.

use std::sync::Arc;
use std::time::Duration;

use fencelock::Client;
use fencelock_wire::ClaimKey;

use crate::args::{Patience, Purpose};
use crate::environment::STORE;
use crate::exit::{Failure, say};
use crate::keyed::{Keyed, detachable, with_key};

/// How long the end of this process waits for the store. What the store has not confirmed by then ends with its lease.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The store of the command line, else of the environment, else the default.
pub(crate) fn store_url(store: Option<String>) -> String {
    let from_environment = || std::env::var(STORE).ok().filter(|url| !url.is_empty());
    store
        .or_else(from_environment)
        .unwrap_or_else(|| "sqlite:".to_owned())
}

/// Opens the store (see [`store_url`]) for inspection only.
pub(crate) async fn open_to_inspect(store: Option<String>) -> Result<Client, Failure> {
    Ok(fencelock::connect(store_url(store)).inspect_only().await?)
}

/// Opens the store (see [`store_url`]). While the store does not answer, the client retries for as long as the URL says,
/// but no longer than `patience`. With a key, its claims are of that key, and a store whose holds cannot be detached from
/// this process is refused.
pub(crate) async fn open(
    store: Option<String>,
    purpose: Purpose,
    patience: Patience,
    key: Option<&ClaimKey>,
) -> Result<Client, Failure> {
    let url = store_url(store);
    let mut connect = match key {
        None => fencelock::connect(&url),
        Some(key) => {
            let ids = key.claim_ids();
            // One token for each grant: nobody in this process takes the next one.
            fencelock::connect(with_key(&url, key))
                .batch(1)
                .layer(move |engine| Arc::new(Keyed { engine, ids }))
        }
    };
    connect = connect.purpose(purpose.into());
    if let Patience::Until(most) = patience {
        connect = connect.patience(most);
    }
    let client = connect.await?;
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
