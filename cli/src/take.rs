//! `take`, `renew` and `release --grant`: a hold that processes hand to each other as a file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Engine, HeldClaim, Leave, Renewal, Withdrawn};
use fencelock::{BootInstant, Error, in_words};
use fencelock_wire::ClaimKey;
use tokio::time::Instant;

use crate::acquire::{self, Held, How};
use crate::args::{GrantOptions, Take};
use crate::exit::{Failure, Outcome, code, say, write_out};
use crate::grant::{Detached, GrantFile};
use crate::json;
use crate::keyed::{detachable, with_key};
use crate::signals::Signals;
use crate::store::{self, Wanted};

/// How long a store that does not answer is asked again if `--wait` does not say.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn take(args: Take, store: Wanted) -> Outcome {
    let times = args.options.times()?;
    let file = args.grant.as_deref().map(GrantFile::create).transpose()?;
    let mut file = file.flatten();
    let key = ClaimKey::draw().map_err(|error| Failure::internal("drawing a key", error))?;
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let (options, name) = (&args.options, &args.name);
    let held = acquire::acquire(
        options,
        &times,
        name,
        store,
        How::detached(&key),
        &mut signals,
    )
    .await?;
    let Held { client, guard } = held;
    let taken = async {
        if guard.joined() {
            return Err(Failure::usage(format!(
                "an outer `fencelock run` holds lock {name}; `take` cannot detach a part of its hold"
            )));
        }
        // The first lease may be short, and nobody renews while no process has the grant.
        if guard.remaining() < times.ttl / 10 * 9 {
            guard.refresh(times.ttl).await?;
        }
        let sequencer = guard.sequencer().await?;
        let grant = json::Taken {
            guard: &guard,
            sequencer: &sequencer,
            times: &times,
            label: options.label.as_deref(),
            home: client.home_of(&sequencer.claim),
        };
        let whole = grant.with_key(&key);
        match file.take() {
            Some(file) => {
                file.write(&whole)?;
                print(&grant.without_key())
            }
            None => print(&whole),
        }
    };
    match taken.await {
        Ok(()) => {
            if options.verbose {
                let (token, left) = (guard.token(), in_words(guard.remaining()));
                say(&format!("lock {name} is taken, token {token}, for {left}"));
            }
            // The hold stays: it is neither released nor renewed.
            std::mem::forget(guard);
            Ok(code::DONE)
        }
        Err(failure) => {
            let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, guard.release()).await;
            store::close(&client).await;
            Err(failure)
        }
    }
}

pub(crate) async fn renew(args: GrantOptions, store: Wanted) -> Outcome {
    let until = until(args.patience()?);
    let detached = Detached::read(&args.grant)?;
    let engine = open(store, &detached, until).await?;
    let name = &detached.held.claim.name;
    let held = [detached.held.clone()];
    let renewed = loop {
        let renewal = engine.renew(&held).await.into_iter().next();
        match renewal {
            Some(Renewal::Unknown(error)) if error.is_away() && Instant::now() < until => {
                tokio::time::sleep(PAUSE).await;
            }
            Some(Renewal::Unknown(error)) => break Err(error.into()),
            Some(Renewal::Kept {
                counted_from,
                lease,
                asked,
                ..
            }) => {
                let left = valid_until(counted_from, lease).since(engine.clock().now());
                break match left.is_zero() {
                    true => Err(lost(
                        &detached,
                        "the answer came after the end of its lease",
                    )),
                    false => Ok((left, asked)),
                };
            }
            _ => break Err(lost(&detached, "the store no longer has this grant")),
        }
    };
    close(&*engine).await;
    let (left, asked) = renewed?;
    print(&json::renewed(&detached.held, left, asked))?;
    if asked {
        say(&format!(
            "lock {name}: another client, or a replica of the lock service that is about to end, asks for it"
        ));
    }
    Ok(code::DONE)
}

/// Releases the hold of a grant.
pub(crate) async fn release(file: &Path, patience: Option<Duration>, store: Wanted) -> Outcome {
    let detached = Detached::read(file)?;
    let until = until(patience);
    let engine = open(store, &detached, until).await?;
    // Whether a request had no answer after which the grant may have been released.
    let mut may_be_done = false;
    let withdrawn = loop {
        let seen = seen(&*engine, &detached.held).await;
        match withdraw(&*engine, &detached.held, seen).await {
            Err(error) if error.is_away() && Instant::now() < until => {
                may_be_done |= matches!(seen, None | Some(Seen::Held));
                tokio::time::sleep(PAUSE).await;
            }
            withdrawn => break withdrawn,
        }
    };
    close(&*engine).await;
    match withdrawn? {
        Withdrawn::Released => Ok(code::DONE),
        // An earlier request, whose answer was lost, has released it.
        _ if may_be_done => Ok(code::DONE),
        Withdrawn::Expired => Err(lost(&detached, "its lease had ended before the release")),
        _ => Err(lost(
            &detached,
            "its release found that it was not held any more",
        )),
    }
}

/// What the store shows of the claim of a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Held,
    /// It holds with another token or in another mode, so this grant is over.
    HeldAnew,
    NotHeld,
}

/// `None` if the store does not show it, for instance to a client that may release but not look.
async fn seen(engine: &dyn Engine, held: &HeldClaim) -> Option<Seen> {
    let view = engine.inspect().look(&held.claim.name).await.ok()?;
    let mut holders = view.holders.iter();
    let Some(holder) = holders.find(|holder| holder.claim == Some(held.claim.id)) else {
        return Some(Seen::NotHeld);
    };
    let same =
        holder.token.is_none_or(|token| token == held.token) && holder.mode == held.claim.mode;
    Some(if same { Seen::Held } else { Seen::HeldAnew })
}

/// Releases the grant, unless it is over.
async fn withdraw(
    engine: &dyn Engine,
    held: &HeldClaim,
    seen: Option<Seen>,
) -> Result<Withdrawn, Error> {
    match seen {
        Some(Seen::HeldAnew) => Ok(Withdrawn::NotOwner),
        _ => engine.withdraw(&held.claim, Leave::Release).await,
    }
}

/// Until when to ask a store that does not answer.
fn until(patience: Option<Duration>) -> Instant {
    Instant::now() + patience.unwrap_or(PATIENCE).max(PAUSE)
}

/// Opens the engine with the claim's key. Tries again while the store is away.
async fn open(
    store: Wanted,
    detached: &Detached,
    until: Instant,
) -> Result<Arc<dyn Engine>, Failure> {
    let url = store.resolve()?.url;
    let engine = loop {
        let opening =
            fencelock::open_engine(with_key(&url, &detached.key, detached.home.as_deref()));
        match tokio::time::timeout_at(until, opening).await {
            Ok(Err(error)) if error.is_away() && Instant::now() + PAUSE < until => {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(engine) => break engine?,
            Err(_) => {
                let why = "it did not answer in time (--wait)";
                let store = fencelock::StoreUrl::redacted(&url);
                return Err(Error::unavailable(store, "opening the store", why).into());
            }
        }
    };
    let promises = engine.promises();
    detachable(promises, engine.to_string())?;
    let ttl = detached.held.claim.ttl;
    if !(promises.min_ttl..=promises.max_ttl).contains(&ttl) {
        return Err(Failure::usage(format!(
            "the grant has a ttl of {}, and {engine} offers {} to {}",
            in_words(ttl),
            in_words(promises.min_ttl),
            in_words(promises.max_ttl)
        )));
    }
    Ok(engine)
}

fn lost(detached: &Detached, why: &str) -> Failure {
    let (name, token) = (&detached.held.claim.name, detached.held.token);
    Failure::new(
        code::LOST,
        format!("lock {name} was lost (token {token}): {why}"),
    )
}

/// The time until which the hold may be believed: clocks may differ in speed by 1 %, and 2 ms are for rounding.
fn valid_until(counted_from: BootInstant, lease: Duration) -> BootInstant {
    let drift = lease / 100 + Duration::from_millis(2);
    counted_from + lease.saturating_sub(drift)
}

/// Prints a line. A closed pipe is a failure, since its reader does not get the grant.
fn print(line: &str) -> Result<(), Failure> {
    write_out(&format!("{line}\n"))
        .map_err(|error| Failure::internal("writing to standard output", error))
}

async fn close(engine: &dyn Engine) {
    let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, engine.close()).await;
}
