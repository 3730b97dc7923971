//! From a command line to a lock that is held.

use fencelock::{Client, Guard, LockName, Owner};
use fencelock_wire::ClaimKey;

use crate::args::{AcquireOptions, Patience, Times};
use crate::environment::outer_owner;
use crate::exit::{Failure, code};
use crate::progress;
use crate::signals::Signals;
use crate::store;

/// A lock that is held, and the client that holds it.
pub(crate) struct Held {
    pub(crate) client: Client,
    pub(crate) guard: Guard,
}

/// Opens the store and acquires the lock. With a key, the hold is to be detached from this process, and its claim is of
/// that key.
pub(crate) async fn acquire(
    options: &AcquireOptions,
    times: &Times,
    name: &str,
    store: Option<String>,
    key: Option<&ClaimKey>,
    signals: &mut Signals,
) -> Result<Held, Failure> {
    // A bad name is reported even if the store is unavailable.
    LockName::new(name)?;
    let client = tokio::select! {
        biased;
        signal = signals.next_end() => return Err(ended_by(signal)),
        client = store::open(store, options.purpose, times.patience, key) => client?,
    };
    let acquired = tokio::select! {
        biased;
        signal = signals.next_end() => Err(ended_by(signal)),
        guard = request(&client, options, times, name) => guard,
    };
    match acquired {
        Ok(guard) => Ok(Held { client, guard }),
        Err(mut failure) => {
            if failure.is_conflict()
                && !options.quiet
                && let Some(held) = progress::held_now(&client, name).await
            {
                failure.add(&held);
            }
            // Closing withdraws the claim from the store.
            store::close(&client).await;
            Err(failure.conflict(options.conflict_exit_code, options.quiet))
        }
    }
}

fn ended_by(signal: u8) -> Failure {
    Failure::silent(code::SIGNAL.saturating_add(signal))
}

async fn request(
    client: &Client,
    options: &AcquireOptions,
    times: &Times,
    name: &str,
) -> Result<Guard, Failure> {
    let owner = owner(client)?;
    let mut request = match times.patience {
        Patience::None => client.try_lock(name),
        Patience::Until(most) => client.lock(name).timeout(most),
        Patience::Endless => client.lock(name),
    };
    request = request.ttl(times.ttl).lock_delay(times.lock_delay);
    if let Some(least) = times.at_least {
        request = request.at_least(least);
    }
    request = request.owner(&owner).recorded();
    if options.shared {
        request = request.shared();
    }
    if options.unfair {
        request = request.unfair();
    }
    if let Some(label) = &options.label {
        request = request.label(label);
    }
    let progress = async {
        if times.patience != Patience::None && !options.quiet {
            progress::report(client, name, owner.as_str(), options.verbose).await;
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        guard = request.into_future() => Ok(guard?),
        never = progress => never,
    }
}

/// The owner of the surrounding `run`, else a new one.
fn owner(client: &Client) -> Result<Owner, Failure> {
    match outer_owner() {
        None => Ok(client.owner()),
        Some(text) => Ok(client.join(&text.to_string_lossy())?),
    }
}
