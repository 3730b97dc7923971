//! What the replicas say about themselves when a store is opened, and later one that is new.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{ConfigPart, Error, Result};
use fencelock_wire::Store;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::config::Config;
use crate::connection::{Ask, Connections, NoAnswer};
use crate::error::{Action, refused};
use crate::home::{Home, Homes};
use crate::replicas::Replicas;

/// How many more connections are used to check that one replica is at an address.
const CONNECTIONS: usize = 3;

/// Once one replica has answered while a store is opened, the others have this long to answer.
const LATER: Duration = Duration::from_millis(500);

/// The replicas that take claims. Each must be reachable by an address of its own. Behind a load balancer, many requests about a
/// claim would reach a replica that does not have it.
pub(crate) async fn homes(config: &Config, said: &[(usize, Store)]) -> Result<Homes> {
    let mut found = vec![None; config.replicas.len()];
    for (index, store) in said {
        if store.advertise.is_none() {
            is_one_replica(config, *index, store).await?;
        }
        found[*index] = Some(Arc::new(Home::new(config, *index, store)?));
    }
    Ok(Homes::new(found))
}

/// Refuses an address at which several replicas answer. Each request uses a new connection, because load balancers choose by
/// connection.
async fn is_one_replica(config: &Config, index: usize, said: &Store) -> Result<()> {
    let address = &config.replicas[index];
    let asked = (0..CONNECTIONS).map(async |_| {
        let connections = Connections::new(config);
        ask_store(config, &connections, address, config.response_timeout).await
    });
    // A replica that does not answer now proves nothing.
    let others = join_all(asked).await.into_iter().flatten();
    for other in others {
        if other.replica != said.replica {
            let why = format!(
                "several replicas answer at {address}, and its store {} is one on which a claim belongs to the replica that \
                 took it; name the replicas themselves in the URL, or start each with its own URL as advertise",
                said.store
            );
            return Err(Error::config(&config.store, ConfigPart::Server, why));
        }
    }
    Ok(())
}

/// What each replica says about its store. Once one has answered, the others have only [`LATER`] left: the store can be opened
/// without them, and a replica that answers later is checked then.
pub(crate) async fn ask_all(
    config: &Config,
    connections: &Connections,
    replicas: &Replicas,
) -> Vec<Result<Store>> {
    let one_answered = watch::Sender::new(false);
    let asked = (0..replicas.len()).map(async |index| {
        let address = replicas.address(index);
        let asked = ask_store(config, connections, address, config.response_timeout);
        let mut answered = one_answered.subscribe();
        let too_late = async {
            // This cannot fail: the sender lives longer.
            let _ = answered.wait_for(|answered| *answered).await;
            sleep(LATER).await;
        };
        tokio::select! {
            biased;
            said = asked => {
                if said.is_ok() {
                    one_answered.send_replace(true);
                }
                said
            }
            () = too_late => {
                let why = format!("{address}: no answer {LATER:?} after another replica's");
                Err(Error::unavailable(&config.store, "opening the store", why))
            }
        }
    });
    join_all(asked).await
}

/// What one replica says about its store.
pub(crate) async fn ask_store(
    config: &Config,
    connections: &Connections,
    address: &str,
    limit: Duration,
) -> Result<Store> {
    let action = Action::plain("opening the store");
    let unavailable = |why: String| {
        let cause = format!("{address}: {why}");
        Error::unavailable(&config.store, action.text(), cause)
    };
    let answer = connections.ask(address, Ask::get("/v1/store"), limit).await;
    let answer = answer.map_err(|none| match none {
        NoAnswer::Closed => Error::Closed,
        NoAnswer::NotSent(why) | NoAnswer::InDoubt(why) => unavailable(why),
    })?;
    if !answer.status.is_success() {
        let refused = refused(&config.store, address, action, answer.status, &answer.body);
        return Err(refused.error);
    }
    let read = serde_json::from_slice(&answer.body);
    read.map_err(|error| {
        let why = format!(
            "{address} does not answer as the lock service does: {error}; check host and port"
        );
        Error::config(&config.store, ConfigPart::Server, why)
    })
}
