//! How a claim comes to hold: it takes the stores that the phase demands, the old one before the new one.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Leave, Place, Standing};
use fencelock_core::{Error, Mode, Result, Token};
use tokio::time::timeout;

use crate::known::Route;
use crate::moving::entry::{Entry, Half, Waits, is_valid};
use crate::moving::knowledge::Now;
use crate::moving::state::State;

/// How often one call starts again because the phase changed, or a grant came too late.
const ROUNDS: u32 = 4;

/// How long a call for a claim that does not wait may at most wait for the end of the hush.
const LONGEST_HUSH: Duration = Duration::from_secs(5);

/// The error or reason for a request that comes in the hush.
const IN_THE_HUSH: &str = "the set is between two stores, and grants nothing until the next step of its move; if the move was interrupted, run `fencelock migrate finish` again, or `fencelock migrate abort` to go back";

pub(crate) async fn place(state: &State, claim: &Claim) -> Result<Standing> {
    let entry = state.entry_of(claim);
    let acquiring = Acquiring {
        state,
        claim,
        entry: &entry,
        believed: entry.is_believed(state.now()).await,
    };
    acquiring.run().await
}

struct Acquiring<'a> {
    state: &'a State,
    claim: &'a Claim,
    entry: &'a Arc<Entry>,
    /// Whether the client may believe in an earlier grant of the claim. Then no store is left on which it relies.
    believed: bool,
}

impl Acquiring<'_> {
    async fn run(&self) -> Result<Standing> {
        self.entry.wait_for(Waits::ForNothing);
        for _ in 0..ROUNDS {
            let (now, route) = self.state.fresh(&self.claim.name).await?;
            self.check_lock_delay(&now)?;
            if !self.believed && self.leave_others(route).await? {
                // Were it granted now, a step back would find it in one store alone, and it cannot be placed in the other one again.
                return Ok(Standing::Ended);
            }
            if let Some(standing) = self.take(&now, route).await? {
                return Ok(standing);
            }
            if let Some(grant) = self.believe(&now, route).await {
                return Ok(Standing::Held(grant));
            }
        }
        let why = "the phase of the set changed meanwhile, or answers took too long; ask again";
        Err(self.unavailable(why))
    }

    /// Refuses a lock-delay above that of the set. A store that was left does not keep out the next holder, so the steps of a
    /// change wait for the set's lock-delay.
    fn check_lock_delay(&self, now: &Now) -> Result<()> {
        let most = now.known.times.lock_delay;
        match self.claim.lock_delay <= most {
            true => Ok(()),
            false => Err(Error::unsupported(
                self.state,
                "such a long lock-delay",
                format!("the set's record allows {most:?} at most"),
            )),
        }
    }

    /// Leaves the stores to which the name no longer belongs. If such a store is away, its lease of the claim delays others at
    /// most until it ends, and the final withdrawal tries again. Returns whether there was such a store.
    async fn leave_others(&self, route: Route) -> Result<bool> {
        let mut any = false;
        for store in (0..self.entry.members()).filter(|store| !route.has(*store)) {
            match self.leave(store).await {
                Err(error) if error.is_away() => {
                    tracing::debug!(%error, "leaving a store");
                    any = true;
                }
                left => any |= left?,
            }
        }
        Ok(any)
    }

    /// Leaves a store. Returns whether it may have had something of the claim.
    async fn leave(&self, store: usize) -> Result<bool> {
        let mut half = self.entry.half(store).lock().await;
        if !half.asked {
            return Ok(false);
        }
        withdraw_half(self.state, store, &mut half, self.claim, Leave::Release).await?;
        Ok(true)
    }

    /// Takes the stores of the route in their order. `None` if the claim holds in all of them.
    async fn take(&self, now: &Now, route: Route) -> Result<Option<Standing>> {
        let hush = route.counts.is_none();
        if hush && !self.claim.wait {
            return self.wait_for_hush_end(now).await.map(|()| None);
        }
        match self.place_at(route, route.first).await? {
            Standing::Held(_) => {}
            other if self.believed => return self.no_grant(route, route.first, other),
            other => {
                // The holder of the first store may need the second one. So two claims never wait for each other.
                if let Some(second) = route.second
                    && self.leave(second).await?
                {
                    // It could not be placed there again, so its turn here would come to nothing.
                    return Ok(Some(Standing::Ended));
                }
                return Ok(Some(match other {
                    // In the hush the first waiter holds the old store, and waits as well.
                    Standing::Waiting(place) if hush => {
                        Standing::Waiting(place.stalled(IN_THE_HUSH))
                    }
                    other => other,
                }));
            }
        }
        if hush && self.believed {
            return Err(self.unavailable(IN_THE_HUSH));
        }
        if hush {
            let recheck = self.state.now() + self.prolonged().min(now.known.times.tight);
            self.entry.wait_for(Waits::ForPhase(now.known.version));
            let place = Place::new(recheck).stalled(IN_THE_HUSH);
            return Ok(Some(Standing::Waiting(place)));
        }
        let Some(second) = route.second else {
            return Ok(None);
        };
        match self.place_at(route, second).await? {
            Standing::Held(_) => Ok(None),
            other if self.believed => self.no_grant(route, second, other),
            Standing::Waiting(mut place) => {
                // Placing the claim again prolongs its hold in the first store.
                let recheck = self.state.now() + self.prolonged();
                place.recheck = place.recheck.min(recheck);
                Ok(Some(Standing::Waiting(place)))
            }
            Standing::Busy => {
                self.leave(route.first).await?;
                Ok(Some(Standing::Busy))
            }
            other => Ok(Some(other)),
        }
    }

    /// How often a claim that waits must prolong the store that it already holds.
    fn prolonged(&self) -> Duration {
        self.claim.ttl / 3
    }

    /// Waits for the hush to end. A claim that does not wait must not be told `Busy` when nobody holds the lock.
    async fn wait_for_hush_end(&self, now: &Now) -> Result<()> {
        let longest = (now.known.times.tight * 2).min(LONGEST_HUSH);
        let changed = self.state.knowledge.changed(now.known.version);
        let ended = timeout(longest, changed).await;
        ended.map_err(|_| self.unavailable(IN_THE_HUSH))
    }

    fn unavailable(&self, why: &str) -> Error {
        let action = format!("taking lock {}", self.claim.name);
        Error::unavailable(self.state, action, why)
    }

    /// What to answer for a hold in which the client believes, and which this store did not grant anew. Its other store is never
    /// left, because the client still relies on it.
    fn no_grant(&self, route: Route, store: usize, standing: Standing) -> Result<Option<Standing>> {
        match route.needs(store) {
            // The hold is lost.
            true => Ok(Some(standing)),
            false => {
                Err(self
                    .unavailable("the other store of its move does not grant it now; ask again"))
            }
        }
    }

    /// Places the claim at one store.
    async fn place_at(&self, route: Route, store: usize) -> Result<Standing> {
        let mut half = self.entry.half(store).lock().await;
        if half.over {
            // The claim was withdrawn from this store.
            return Ok(Standing::Ended);
        }
        let counts = route.counts == Some(store);
        let claim = at_store(self.claim, counts, route.floor);
        let standing = place_half(self.state, store, &mut half, &claim).await?;
        match &standing {
            // Granted before the floor was known. A downgrade does not come here: its token is new, or that of a late answer.
            Standing::Held(grant) if counts && grant.tokens.first <= route.floor => {
                Ok(Standing::Ended)
            }
            Standing::Waiting(_) => {
                self.entry.wait_for(Waits::AtStore(store));
                Ok(standing)
            }
            _ => Ok(standing),
        }
    }

    /// The grant, if the client may begin to believe in it now.
    async fn believe(&self, now: &Now, route: Route) -> Option<Grant> {
        believe(self.state, self.entry, (now, route), self.claim.mode).await
    }
}

/// The grant of a claim that holds in all stores of its route, if its client may begin to believe in it now. Knowledge must
/// carry a new grant, and each store must still keep the claim.
pub(crate) async fn believe(
    state: &State,
    entry: &Entry,
    (now, route): (&Now, Route),
    mode: Mode,
) -> Option<Grant> {
    let counts = route.counts?;
    let mut counted = None;
    let at = state.now();
    for store in route.stores() {
        let grant = entry.half(store).lock().await.grant?;
        if !is_valid(&grant, at) {
            return None;
        }
        if store == counts {
            counted = Some(grant);
        }
    }
    // Read after the grants, so that nothing learnt meanwhile is missed.
    let latest = state.knowledge.now()?;
    let at = state.now();
    if !state.knowledge.carries_grant(now, route, at) {
        return None;
    }
    let mut grant = counted?;
    entry.believe(counts, grant.tokens, mode);
    let ends = latest.ends();
    grant.lease = grant.lease.min(ends.since(grant.counted_from));
    Some(grant)
}

/// The claim as it is sent to a store. Only the store that counts gives a range of tokens, and only its tokens must be above the
/// floor.
pub(crate) fn at_store(claim: &Claim, counts: bool, floor: Token) -> Claim {
    let mut claim = claim.clone();
    if counts {
        claim.floor = claim.floor.max(floor);
    } else {
        claim.floor = Token(0);
        claim.reserve = 1;
        // So an operator can evict the holder from both stores.
        claim.record = true;
    }
    claim
}

/// Places a claim at a store, and notes the result.
pub(crate) async fn place_half(
    state: &State,
    store: usize,
    half: &mut Half,
    claim: &Claim,
) -> Result<Standing> {
    let member = &state.members[store];
    let engine = member.engine().await?;
    // Set before the answer, since it may not come.
    half.asked = true;
    let standing = engine.place(claim).await;
    let standing = standing.map_err(|error| member.named(error))?;
    match &standing {
        Standing::Held(grant) => half.grant = Some(*grant),
        Standing::Busy => *half = Half::default(),
        _ => half.grant = None,
    }
    Ok(standing)
}

/// Withdraws a claim from a store, and notes the result. The id must not be placed there again.
pub(crate) async fn withdraw_half(
    state: &State,
    store: usize,
    half: &mut Half,
    claim: &Claim,
    how: Leave,
) -> Result<fencelock_core::engine::Withdrawn> {
    half.over = true;
    half.grant = None;
    let member = &state.members[store];
    let withdrawn = member.engine().await?.withdraw(claim, how).await;
    let withdrawn = withdrawn.map_err(|error| member.named(error))?;
    half.asked = false;
    Ok(withdrawn)
}
