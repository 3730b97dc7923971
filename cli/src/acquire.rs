//! From a command line to a lock that is held.

use std::time::Duration;

use fencelock::{Client, Clock, Error, Guard, LockName, Owner};
use fencelock_wire::ClaimKey;

use crate::args::{AcquireOptions, IfAway, Patience, Times};
use crate::away::AwayWatch;
use crate::environment::outer_owner;
use crate::exit::{Failure, code};
use crate::progress;
use crate::signals::Signals;
use crate::store::{self, Wanted};

/// The pause between two attempts to open a store for which a request waits.
const AGAIN: Duration = Duration::from_millis(250);

/// A lock that is held, and the client that holds it.
pub(crate) struct Held {
    pub(crate) client: Client,
    pub(crate) guard: Guard,
}

/// What is special about a request.
#[derive(Clone, Default)]
pub(crate) struct How<'a> {
    /// For a hold that is to be detached from this process: the key of its claim.
    pub(crate) key: Option<&'a ClaimKey>,
    /// What to do if the store is away.
    pub(crate) if_away: Option<IfAway>,
    /// Reports that the store is away; `None` if the request waits for the store.
    away: Option<AwayWatch>,
}

impl<'a> How<'a> {
    pub(crate) fn detached(key: &'a ClaimKey) -> Self {
        Self {
            key: Some(key),
            ..Self::default()
        }
    }

    pub(crate) fn if_away(choice: Option<IfAway>) -> Self {
        let watches = choice.is_some_and(|choice| choice != IfAway::Wait);
        Self {
            if_away: choice,
            away: watches.then(AwayWatch::new),
            ..Self::default()
        }
    }
}

/// Returns when the store is away, unless the request waits for the store.
async fn is_away(how: &How<'_>) -> Error {
    match &how.away {
        Some(watch) => watch.away().await,
        None => std::future::pending().await,
    }
}

/// Opens the store, again and again for as long as the request may wait, with `--if-away wait`.
async fn open(
    store: Wanted,
    options: &AcquireOptions,
    times: &Times,
    how: &How<'_>,
) -> Result<Client, Failure> {
    let begun = Clock::Boot.now();
    // A request that does not wait for the store makes one attempt.
    let left = || match times.patience {
        Patience::None => Some(Duration::ZERO),
        Patience::Until(most) => Some(most.saturating_sub(Clock::Boot.now().since(begun))),
        Patience::Endless => None,
    };
    loop {
        let patience = match (&how.away, times.patience, left()) {
            (Some(_), ..) => Patience::Until(Duration::ZERO),
            (None, Patience::Until(_), Some(left)) => Patience::Until(left),
            (None, patience, _) => patience,
        };
        let opened = store::open(
            store.clone(),
            options.purpose,
            patience,
            how.key,
            how.away.as_ref(),
        );
        let opened = opened.await;
        let left = left();
        match opened {
            Err(failure)
                if failure.is_away()
                    && how.if_away == Some(IfAway::Wait)
                    && left.is_none_or(|left| !left.is_zero()) =>
            {
                tokio::time::sleep(AGAIN.min(left.unwrap_or(AGAIN))).await;
            }
            opened => return opened,
        }
    }
}

/// Opens the store and acquires the lock.
pub(crate) async fn acquire(
    options: &AcquireOptions,
    times: &Times,
    name: &str,
    store: Wanted,
    how: How<'_>,
    signals: &mut Signals,
) -> Result<Held, Failure> {
    // A bad name is reported even if the store is unavailable.
    LockName::new(name)?;
    let client = tokio::select! {
        biased;
        signal = signals.next_end() => return Err(ended_by(signal)),
        client = open(store, options, times, &how) => client?,
    };
    let acquired = tokio::select! {
        biased;
        signal = signals.next_end() => Err(ended_by(signal)),
        guard = request(&client, options, times, name) => guard,
        away = is_away(&how) => Err(away.into()),
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
