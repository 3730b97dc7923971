//! The floor: tokens that count after the hush must be above it.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, MAX_FLOOR, Standing};
use fencelock_core::{ClaimIds, Clock, Engine, Error, Floor, LockName, Result, Token};

/// The lock in which tokens are drawn, to see a store's counter. It also excludes a second administrator.
pub(crate) const PROBE: &str = "fencelock/migrate";

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
        drawn.push(probe(engine, Token(0)).await?);
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

/// Raises the counter of a store above the floor.
pub(crate) async fn raise(engine: &Arc<dyn Engine>, floor: Token) -> Result<()> {
    let token = probe(engine, floor).await?;
    match token > floor {
        true => Ok(()),
        false => {
            let why = format!("it granted token {token}, which is not above the floor {floor}");
            Err(Error::internal(engine, why))
        }
    }
}

/// Why one claim cannot raise all tokens of such a store; `None` if it can.
pub(crate) const fn why_not(promised: Floor) -> Option<&'static str> {
    match promised {
        Floor::Store => None,
        Floor::Name => Some(
            "it has several counters of tokens, and a token of one says nothing about the others",
        ),
        _ => Some("its tokens can be neither compared with those of another store nor raised"),
    }
}

/// Draws a token of the store, above this floor and above all earlier ones.
async fn probe(engine: &Arc<dyn Engine>, floor: Token) -> Result<Token> {
    let promises = engine.promises();
    let ttl = TTL.clamp(promises.min_ttl, promises.max_ttl);
    let ids = match engine.claim_ids() {
        Some(begin) => ClaimIds::with(begin),
        None => ClaimIds::new()?,
    };
    let until = Clock::Boot.now() + PATIENCE;
    loop {
        let claim = Claim::new(ids.next(), "fencelock migrate", LockName::new(PROBE)?);
        let claim = claim.ttl(ttl).wait(false).record(true).floor(floor);
        let placed = engine.place(&claim).await;
        // If releasing fails, the hold ends with its lease.
        let _ = engine.withdraw(&claim, Leave::Release).await;
        if let Standing::Held(grant) = placed? {
            let tokens = grant.tokens;
            return Ok(Token(tokens.first.get() + u64::from(tokens.count) - 1));
        }
        if Clock::Boot.now() >= until {
            let why = format!(
                "lock {PROBE} is held there: another `fencelock migrate` runs; wait until it has ended, and repeat"
            );
            return Err(Error::unavailable(engine, "drawing a token", why));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
