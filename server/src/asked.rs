//! Makes a claim for the engine from the members of a request.

use std::num::NonZeroU32;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, ClaimId, LockName, Mode, Token, in_words};
use fencelock_wire::{
    DEFAULT_TTL_MS, Kind, MOST_OWNER_BYTES, ModeWord, Release, Renew, RenewOne, SimpleTake, Take,
    millis,
};

use crate::caller::Caller;
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;

/// The longest label, in bytes.
const MOST_LABEL_BYTES: usize = 255;

/// What the requests about a claim have in common.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) name: LockName,
    mode: ModeWord,
    permit_count: Option<NonZeroU32>,
    /// `None`: the service's default.
    ttl: Option<Duration>,
    lock_delay: Duration,
    owner: String,
    label: Option<String>,
    /// Whether the claim holds already, and its lease is to become longer.
    prolongs: bool,
}

macro_rules! asked {
    ($body:expr) => {
        Asked {
            name: $body.name,
            mode: $body.mode,
            permit_count: $body.permit_count,
            ttl: $body.ttl_ms.map(Duration::from_millis),
            lock_delay: Duration::from_millis($body.lock_delay_ms),
            owner: $body.owner,
            label: $body.label,
            prolongs: false,
        }
    };
}

impl From<Take> for Asked {
    fn from(body: Take) -> Self {
        asked!(body)
    }
}

impl From<SimpleTake> for Asked {
    fn from(body: SimpleTake) -> Self {
        asked!(body)
    }
}

impl From<Renew> for Asked {
    fn from(body: Renew) -> Self {
        Self {
            prolongs: !body.shorten,
            ..asked!(body)
        }
    }
}

impl From<RenewOne> for Asked {
    fn from(body: RenewOne) -> Self {
        Self {
            prolongs: !body.shorten,
            ..asked!(body)
        }
    }
}

impl Asked {
    /// The claim, with a lease of the whole ttl.
    pub(crate) fn claim(
        self,
        id: ClaimId,
        replica: &Replica,
        caller: &Caller,
    ) -> Result<Claim, Refusal> {
        let name = self.name.clone();
        caller.must(Right::Take, &name)?;
        self.check(id, replica, caller)
            .map_err(|refusal| refusal.name(&name))
    }

    fn check(self, id: ClaimId, replica: &Replica, caller: &Caller) -> Result<Claim, Refusal> {
        let mode = self.mode.mode(self.permit_count);
        let mode = mode.map_err(Refusal::invalid)?;
        check_mode(mode, replica)?;
        let mut ttl = self
            .ttl
            .unwrap_or_else(|| default_ttl(self.lock_delay, replica));
        if self.prolongs {
            // The longest lease may have been set shorter since the grant. The holder gets what it may have, and keeps its
            // lock-delay. A lease that is to become shorter is not cut: its client may believe in the time that it asked for.
            check_longest(replica.min_ttl(), self.lock_delay, replica)?;
            let room = replica.promises().max_ttl.saturating_sub(self.lock_delay);
            ttl = ttl.min(replica.max_ttl()).min(room).max(replica.min_ttl());
        } else {
            check_longest(ttl, self.lock_delay, replica)?;
        }
        check_shortest(ttl, self.lock_delay, replica)?;
        check_text("owner", &self.owner, MOST_OWNER_BYTES)?;
        let owner = caller.owner(&self.owner);
        let mut claim = Claim::new(id, owner, self.name)
            .mode(mode)
            .ttl(ttl)
            .lock_delay(self.lock_delay)
            .record(true);
        if let Some(label) = self.label {
            check_text("label", &label, MOST_LABEL_BYTES)?;
            claim = claim.label(label);
        }
        Ok(claim)
    }
}

/// The claim that a release is about. It refuses little: a client that could take must be able to release.
pub(crate) fn released(
    body: Release,
    id: ClaimId,
    replica: &Replica,
    caller: &Caller,
) -> Result<Claim, Refusal> {
    caller.must(Right::Take, &body.name)?;
    let mode = body.mode.mode(body.permit_count);
    let mode = mode.map_err(|why| Refusal::invalid(why).name(&body.name))?;
    // Not the limit of this service, which may be shorter than when the lock was taken.
    let most = replica.promises().max_ttl;
    let least = replica.min_ttl().min(most);
    // A request without a ttl comes here with the usual one, which may be too long. The lock-delay must stay whole.
    let delay = Duration::from_millis(body.lock_delay_ms).min(most - least);
    let ttl = Duration::from_millis(body.ttl_ms).clamp(least, most - delay);
    Ok(Claim::new(id, caller.owner(""), body.name)
        .mode(mode)
        .ttl(ttl)
        .lock_delay(delay)
        .record(true))
}

/// A token of a request.
pub(crate) fn token(token: Token) -> Result<Token, Refusal> {
    match (Token(1)..Token::END).contains(&token) {
        true => Ok(token),
        false => Err(Refusal::invalid(format!(
            "the token {token} cannot be used: it must be at least 1 and below 2^53"
        ))),
    }
}

/// The token of a request to evict. Zero is accepted here: it is no holder's token, so it evicts nobody.
pub(crate) fn any_token(asked: Token) -> Result<Token, Refusal> {
    match asked.get() {
        0 => Ok(asked),
        _ => token(asked),
    }
}

/// How long a client may believe, in milliseconds since it sent its request. It sent the request before `received`.
pub(crate) fn since_sent(until: BootInstant, received: BootInstant) -> u64 {
    millis(until.since(received))
}

/// Refuses a request that lists a claim twice.
pub(crate) fn check_once(claims: impl Iterator<Item = ClaimId>) -> Result<(), Refusal> {
    let mut ids: Vec<ClaimId> = claims.collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => {
            let detail = format!("the claim {} occurs more than once", twice[0]);
            Err(Refusal::invalid(detail))
        }
        None => Ok(()),
    }
}

fn check_mode(mode: Mode, replica: &Replica) -> Result<(), Refusal> {
    let promises = replica.promises();
    let (has, what) = match mode {
        Mode::Exclusive => return Ok(()),
        Mode::Shared => (promises.shared, "shared mode"),
        Mode::Permit { .. } => (promises.permits, "permits"),
    };
    match has {
        true => Ok(()),
        false => Err(not_offered(replica, what)),
    }
}

fn not_offered(replica: &Replica, what: &str) -> Refusal {
    let detail = format!("store {} does not offer {what}", replica.engine);
    Refusal::new(Kind::Unsupported, detail)
}

/// The lease of a request without a ttl.
fn default_ttl(lock_delay: Duration, replica: &Replica) -> Duration {
    let most = replica.max_ttl().saturating_sub(lock_delay);
    let ttl = Duration::from_millis(DEFAULT_TTL_MS).min(most);
    ttl.max(replica.min_ttl())
}

fn check_shortest(ttl: Duration, lock_delay: Duration, replica: &Replica) -> Result<(), Refusal> {
    if !lock_delay.is_zero() && !replica.promises().lock_delay {
        return Err(not_offered(replica, "a lock-delay"));
    }
    let least = replica.min_ttl();
    if ttl < least {
        let what = format!(
            "a lease of {} (ttl_ms); the shortest is {}",
            in_words(ttl),
            in_words(least)
        );
        return Err(not_offered(replica, &what));
    }
    Ok(())
}

fn check_longest(ttl: Duration, lock_delay: Duration, replica: &Replica) -> Result<(), Refusal> {
    let most = replica.max_ttl();
    if ttl.saturating_add(lock_delay) > most {
        let whole = ttl.saturating_add(lock_delay);
        let what = format!(
            "a lease of {} (ttl_ms and lock_delay_ms together); the longest is {}",
            in_words(whole),
            in_words(most)
        );
        if most < replica.promises().max_ttl {
            let detail =
                format!("this service does not offer {what} (max_ttl of its configuration)");
            return Err(Refusal::new(Kind::Unsupported, detail));
        }
        return Err(not_offered(replica, &what));
    }
    Ok(())
}

fn check_text(what: &str, text: &str, most: usize) -> Result<(), Refusal> {
    if text.len() > most {
        let detail = format!("the {what} has {} bytes; {most} are allowed", text.len());
        return Err(Refusal::invalid(detail));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        let detail = format!(
            "the {what} has the control character U+{:04X}",
            u32::from(bad)
        );
        return Err(Refusal::invalid(detail));
    }
    Ok(())
}
