//! The floor: tokens that count after the hush must be above it.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Leave, MAX_FLOOR, Standing, check_floor};
use fencelock_core::{ClaimIds, Clock, Engine, Error, Floor, LockName, Result, Token};

/// The lock in which tokens are drawn, to see a store's counter. It also excludes a second administrator.
pub(crate) const PROBE: &str = "fencelock/migrate";

/// The lock in which [`raise_all`] draws tokens. Who moves tokens from or to a set holds [`PROBE`] meanwhile.
const RAISED: &str = "fencelock/raise";

/// The lease of the probe, if it is not released.
const TTL: Duration = Duration::from_secs(5);

/// How long a step waits for the probe of another administrator.
const PATIENCE: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(100);

/// The tokens that were drawn in the hush.
pub(crate) struct Taken {
    /// The highest of them.
    pub(crate) floor: Token,
    /// That of each store.
    pub(crate) drawn: Vec<Token>,
}

/// Draws a token in each of these stores, and raises the counters of `targets` above the highest of them and `room` more. It is
/// called in the hush, when no client can begin to believe in a grant. So every token in which a client believes is at most the
/// result.
///
/// The tokens of the new store are included. So a grant that it made before it counted is not above the floor, and everybody
/// can tell which store's token its holder uses.
pub(crate) async fn take(
    engines: &[Arc<dyn Engine>],
    targets: &[Arc<dyn Engine>],
    room: u64,
) -> Result<Taken> {
    let mut drawn = Vec::new();
    for engine in engines {
        drawn.push(probe(engine, PROBE, Token(0)).await?);
    }
    let highest = drawn.iter().map(|token| token.get()).max().unwrap_or(0);
    let floor = Token(highest.saturating_add(room));
    if floor > MAX_FLOOR {
        let why = format!(
            "new tokens would have to be above {floor}, and tokens cannot be raised above more than {MAX_FLOOR}; use new names for the locks"
        );
        return Err(Error::invalid("floor", floor.to_string(), why));
    }
    #[cfg(fencelock_planted)]
    if fencelock_core::planted::is("floor-ignored") {
        return Ok(Taken { floor, drawn });
    }
    for engine in targets {
        raise(engine, floor).await?;
    }
    Ok(Taken { floor, drawn })
}

/// Raises the counters of a store to the floor, or above it. Returns what they were raised to: no earlier token of the store is
/// above that, and all later ones are.
pub(crate) async fn raise(engine: &Arc<dyn Engine>, floor: Token) -> Result<Token> {
    raise_by(engine, PROBE, floor).await
}

async fn raise_by(engine: &Arc<dyn Engine>, name: &'static str, floor: Token) -> Result<Token> {
    let token = probe(engine, name, floor).await?;
    match token >= floor {
        true => Ok(token),
        false => {
            let why =
                format!("its tokens were raised to {token}, which is below the floor {floor}");
            Err(Error::internal(engine, why))
        }
    }
}

/// Why nobody can raise all tokens of such a store; `None` if that is possible.
pub(crate) const fn why_not(promised: Floor) -> Option<&'static str> {
    match promised {
        Floor::Store | Floor::Name => None,
        _ => Some("its tokens can be neither compared with those of another store nor raised"),
    }
}

/// See [`Engine::raise_tokens`], for a set of these stores.
pub(crate) async fn raise_all(engines: &[Arc<dyn Engine>], floor: Token) -> Result<Token> {
    let mut highest = floor;
    for engine in engines {
        highest = highest.max(probe(engine, RAISED, floor).await?);
    }
    check_floor(highest)?;
    for engine in engines {
        raise_by(engine, RAISED, highest).await?;
    }
    Ok(highest)
}

/// Draws a token of the store that is not below the floor. No earlier token of the store is above it, and all later ones are.
async fn probe(engine: &Arc<dyn Engine>, name: &'static str, floor: Token) -> Result<Token> {
    let promises = engine.promises();
    let ttl = TTL.clamp(promises.min_ttl, promises.max_ttl);
    let ids = match engine.claim_ids() {
        Some(begin) => ClaimIds::with(begin),
        None => ClaimIds::new()?,
    };
    let until = Clock::Boot.now() + PATIENCE;
    loop {
        let claim = Claim::new(ids.next(), "fencelock migrate", LockName::new(name)?);
        let claim = claim.ttl(ttl).wait(false).record(true).floor(floor);
        let drawn = match engine.place(&claim).await {
            Ok(Standing::Held(grant)) => Some(highest(engine, &grant, floor).await),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        // If releasing fails, the hold ends with its lease.
        let _ = engine.withdraw(&claim, Leave::Release).await;
        if let Some(drawn) = drawn {
            return drawn;
        }
        if Clock::Boot.now() >= until {
            let why = format!(
                "lock {name} is held there: another `fencelock migrate` runs; wait until it has ended, and repeat"
            );
            return Err(Error::unavailable(engine, "drawing a token", why));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The highest token of the store, by the grant of a claim with this floor.
async fn highest(engine: &Arc<dyn Engine>, grant: &Grant, floor: Token) -> Result<Token> {
    match engine.promises().floor {
        // The grant's token says nothing about other names.
        Floor::Name => engine.raise_tokens(floor).await,
        _ => {
            let tokens = grant.tokens;
            Ok(Token(tokens.first.get() + u64::from(tokens.count) - 1))
        }
    }
}
