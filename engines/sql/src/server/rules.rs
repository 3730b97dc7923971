//! Each call of the engine as a conversation with the database: read, decide, write what was decided if nothing changed
//! meanwhile.

use std::time::Duration;

use fencelock_core::engine::{Claim, Event, Evict, Grant, Leave, Place, Standing, Withdrawn};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Result, Token, Tokens};

use super::dialect::{Change, DbInstant, Dialect, Seen, Trouble, Write, Written};
use super::waiters::Waiter;
use crate::lease::{Holder, Rows, Step};

/// How long a place in line stands unless its process places again.
pub const CLAIM_WINDOW: Duration = RECHECK.saturating_mul(3);
/// When a process in line places again at the latest.
const RECHECK: Duration = Duration::from_secs(2);
/// How long a lock that was granted by whoever released it waits for a sign of life.
pub const REACH: Duration = Duration::from_secs(2);

/// A change that others got before: read again after this time at most, so that they are out of each other's way.
const STALE_PAUSE: Duration = Duration::from_millis(3);

type Tried<T> = Result<T, Trouble>;

/// What a call did, and whom in this process that concerns.
#[derive(Debug)]
pub(super) struct Done<T> {
    pub(super) answer: T,
    /// Those in line who may hold now.
    pub(super) call: Vec<ClaimId>,
}

impl<T> Done<T> {
    fn quietly(answer: T) -> Self {
        let call = Vec::new();
        Self { answer, call }
    }
}

impl Done<Withdrawn> {
    /// What the second of two withdrawals found, or what the first did if that left nothing to find.
    pub(super) fn or(self, first: Withdrawn) -> Withdrawn {
        match self.answer {
            Withdrawn::Expired | Withdrawn::NotOwner => first,
            found => found,
        }
    }
}

/// Take the lock, or a place in line. `fresh`: the claim was not placed before.
pub(super) async fn place<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    waiter: &Waiter,
    fresh: bool,
) -> Tried<Done<Standing>> {
    let mut free = fresh;
    loop {
        let mut asked_at = Clock::Boot.now();
        if free && let Some(tokens) = dialect.take_free(session, claim).await? {
            if tokens.first >= dialect.floor(session) {
                dialect.saw(session, tokens.first);
                return Ok(Done::quietly(held(claim, tokens, asked_at)));
            }
            // The counter was lost; what it gave is worth nothing.
            give_up(dialect, session, claim).await?;
            dialect.seed(session).await?;
            continue;
        }
        if free && claim.wait {
            asked_at = Clock::Boot.now();
            if let Some(queued) = dialect.queue(session, claim).await? {
                waiter.stands(asked_at, queued.drawn, queued.version);
                let left = queued.left.filter(|_| queued.ahead == 0);
                let place = waiting(asked_at, queued.ahead, left);
                return Ok(Done::quietly(place));
            }
        }
        let Some(seen) = dialect.read(session, &claim.name).await? else {
            free = true;
            continue;
        };
        free = false;
        let (change, answer) = match seen.rows.step(claim, seen.now) {
            Step::Prolong(tokens) => {
                if dialect.prolong(session, claim, tokens.first).await? {
                    return Ok(Done::quietly(held(claim, tokens, asked_at)));
                }
                continue;
            }
            Step::Refuse(mode) => {
                return Err(Trouble::Told(Error::unsupported(
                    dialect,
                    "a change from a weaker mode to a stronger one",
                    format!("the claim holds as {}; release it first", mode.as_str()),
                )));
            }
            Step::Downgrade => {
                let instead = holder(&seen.rows, claim.id);
                let ticket = None;
                (
                    Change::Grant {
                        claim,
                        ticket,
                        instead,
                    },
                    None,
                )
            }
            Step::Grant => {
                let ticket = ticket(&seen.rows, claim.id);
                let instead = None;
                (
                    Change::Grant {
                        claim,
                        ticket,
                        instead,
                    },
                    None,
                )
            }
            Step::Wait {
                ticket,
                ahead,
                until,
            } => {
                let left = until.map(|until| until.since(seen.now));
                let place = waiting(asked_at, ahead, left);
                waiter.stands(asked_at, seen.drawn, seen.version);
                if let Some(ticket) = ticket
                    && keep(dialect, session, claim, ticket, &seen).await?
                {
                    return Ok(Done::quietly(place));
                }
                // One that comes back late stands where it stood, as long as its row is there.
                let last = seen.rows.line.last().map_or(0, |last| last.ticket);
                let ticket = ticket.unwrap_or(last + 1);
                let change = Change::Stand { claim, ticket };
                // This write makes the next version.
                waiter.stands(asked_at, seen.drawn, seen.version + 1);
                (change, Some(place))
            }
            Step::Busy => match ticket(&seen.rows, claim.id) {
                None => return Ok(Done::quietly(Standing::Busy)),
                Some(ticket) => (Change::LeaveLine { ticket }, Some(Standing::Busy)),
            },
        };
        let (written, call) = write(dialect, session, &claim.name, &seen, change).await?;
        match (written, answer) {
            (Written::Stale, _) => pause().await,
            (Written::Done(_), Some(answer)) => return Ok(Done { answer, call }),
            (Written::Done(Some(tokens)), None) if tokens.first < dialect.floor(session) => {
                give_up(dialect, session, claim).await?;
                dialect.seed(session).await?;
            }
            (Written::Done(Some(tokens)), None) => {
                dialect.saw(session, tokens.first);
                let answer = held(claim, tokens, asked_at);
                return Ok(Done { answer, call });
            }
            (Written::Done(None), None) => {
                let why = "a grant came without its tokens".to_owned();
                let store = dialect.to_string();
                return Err(Trouble::Told(Error::Internal { store, why }));
            }
        }
    }
}

/// Keeps a place in line if that is needed by now. `false` if it has to be taken anew.
async fn keep<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    ticket: i64,
    seen: &Seen,
) -> Tried<bool> {
    let mine = seen.rows.line.iter().find(|mine| mine.ticket == ticket);
    let left = mine.map_or(Duration::ZERO, |mine| mine.expiry.since(seen.now));
    if left.is_zero() {
        return Ok(false);
    }
    // While half of the window is left, there is nothing to write.
    if left > CLAIM_WINDOW / 2 && mine.is_some_and(|mine| mine.mode == claim.mode) {
        return Ok(true);
    }
    dialect
        .keep_place(session, claim, ticket, CLAIM_WINDOW)
        .await
}

/// Release, leave the line, or abandon.
pub(super) async fn withdraw<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    how: Leave,
) -> Tried<Done<Withdrawn>> {
    let abandons = how == Leave::Abandon && !claim.lock_delay.is_zero();
    if !abandons && dialect.release(session, claim).await? {
        return Ok(Done::quietly(Withdrawn::Released));
    }
    loop {
        let Some(seen) = dialect.read(session, &claim.name).await? else {
            return Ok(Done::quietly(Withdrawn::Expired));
        };
        let (change, answer) = if let Some(holder) = holder(&seen.rows, claim.id) {
            match holder.expiry > seen.now {
                true if abandons => {
                    let lock_delay = claim.lock_delay;
                    (Change::Abandon { holder, lock_delay }, Withdrawn::Released)
                }
                true => (Change::Release { holder }, Withdrawn::Released),
                false => (Change::Bury, Withdrawn::Expired),
            }
        } else if let Some(ticket) = ticket(&seen.rows, claim.id) {
            (Change::LeaveLine { ticket }, Withdrawn::LeftQueue)
        } else {
            let free = (seen.rows.holders.iter()).all(|holder| holder.expiry <= seen.now);
            let answer = match free {
                true => Withdrawn::Expired,
                false => Withdrawn::NotOwner,
            };
            return Ok(Done::quietly(answer));
        };
        let (written, call) = write(dialect, session, &claim.name, &seen, change).await?;
        match written {
            Written::Done(_) => return Ok(Done { answer, call }),
            Written::Stale => pause().await,
        }
    }
}

/// Force-release, or ask for release; the claim that was meant.
pub(super) async fn evict<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
    token: Token,
    how: Evict,
) -> Tried<Done<Option<Event>>> {
    loop {
        let Some(seen) = dialect.read(session, name).await? else {
            return Ok(Done::quietly(None));
        };
        let meant = |holder: &&Holder<DbInstant>| {
            let asks_nobody = how == Evict::Ask && holder.abandoned;
            holder.tokens.contains(token) && holder.expiry > seen.now && !asks_nobody
        };
        let Some(holder) = seen.rows.holders.iter().find(meant) else {
            return Ok(Done::quietly(None));
        };
        let (change, event) = match how {
            Evict::Release => (Change::Release { holder }, Event::Lost(holder.claim)),
            Evict::Ask => (Change::Ask { holder }, Event::Asked(holder.claim)),
        };
        let (written, call) = write(dialect, session, name, &seen, change).await?;
        if let Written::Done(_) = written {
            dialect.tell(session, event).await?;
            let answer = Some(event);
            return Ok(Done { answer, call });
        }
        pause().await;
    }
}

/// Removes what is past its expiry.
pub(super) async fn bury<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
) -> Tried<Done<()>> {
    let Some(seen) = dialect.read(session, name).await? else {
        return Ok(Done::quietly(()));
    };
    // If somebody else changed it meanwhile, that one has buried them.
    let (_, call) = write(dialect, session, name, &seen, Change::Bury).await?;
    Ok(Done { answer: (), call })
}

/// Takes back a grant whose tokens are no good.
async fn give_up<D: Dialect>(dialect: &D, session: &mut D::Session, claim: &Claim) -> Tried<()> {
    Box::pin(withdraw(dialect, session, claim, Leave::Release))
        .await
        .map(|_| ())
}

async fn write<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
    seen: &Seen,
    change: Change<'_>,
) -> Tried<(Written, Vec<ClaimId>)> {
    let write = prepare(name, seen, change);
    let written = dialect.write(session, &write).await?;
    let call = match written {
        Written::Done(_) => write.call.into_iter().map(|(claim, _)| claim).collect(),
        Written::Stale => Vec::new(),
    };
    Ok((written, call))
}

/// A change with all that follows from it.
fn prepare<'a>(name: &'a LockName, seen: &'a Seen, change: Change<'a>) -> Write<'a> {
    let now = seen.now;
    let (mut after, mut dead_waiters) = (seen.rows.clone(), Vec::new());
    let is_dead = |holder: &&Holder<DbInstant>| holder.expiry <= now;
    let dead_holders = seen.rows.holders.iter().filter(is_dead).collect();
    after.holders.retain(|holder| holder.expiry > now);
    // One that returns late from the dead has its place back, unless somebody was faster.
    let returns = match change {
        Change::Grant { ticket, .. } => ticket,
        Change::LeaveLine { ticket } => Some(ticket),
        _ => None,
    };
    after.line.retain(|waiter| {
        let live = waiter.expiry > now;
        if !live && returns != Some(waiter.ticket) {
            dead_waiters.push(waiter.ticket);
        }
        live
    });
    let remove = |rows: &mut Rows<DbInstant>, gone: &Holder<DbInstant>| {
        let stays = |holder: &Holder<DbInstant>| holder.tokens.first != gone.tokens.first;
        rows.holders.retain(stays);
    };
    let mut comes = false;
    match change {
        Change::Grant {
            claim,
            ticket,
            instead,
        } => {
            comes = true;
            after.line.retain(|waiter| Some(waiter.ticket) != ticket);
            if let Some(holder) = instead {
                remove(&mut after, holder);
            }
            after.holders.push(Holder {
                claim: claim.id,
                mode: claim.mode,
                tokens: Tokens::one(Token(0)),
                expiry: crate::lease::expiry(claim, now),
                abandoned: false,
            });
        }
        Change::Stand { .. } => comes = true,
        Change::LeaveLine { ticket } => after.line.retain(|waiter| waiter.ticket != ticket),
        Change::Release { holder } => remove(&mut after, holder),
        Change::Abandon { .. } | Change::Ask { .. } | Change::Bury => {}
    }
    let call = after.next(now).into_iter();
    let call = call.map(|waiter| (waiter.claim, waiter.address.clone()));
    Write {
        name,
        version: seen.version,
        dead_holders,
        dead_waiters,
        change,
        alone: after.holders.len() == 1 && after.line.is_empty(),
        last: !comes && after.holders.is_empty() && after.line.is_empty(),
        call: call.collect(),
    }
}

/// In line; `left` is what the holder has left of its lease, if only it is in the way.
fn waiting(asked_at: BootInstant, ahead: u64, left: Option<Duration>) -> Standing {
    let over = left.map_or(RECHECK, |left| left + Duration::from_millis(1));
    Standing::Waiting(Place {
        ahead: Some(ahead),
        recheck: asked_at + over.min(RECHECK),
    })
}

fn held(claim: &Claim, tokens: Tokens, asked_at: BootInstant) -> Standing {
    Standing::Held(Grant {
        tokens,
        counted_from: asked_at,
        lease: claim.ttl,
        recorded: true,
    })
}

/// The hold of a claim, dead or alive.
fn holder(rows: &Rows<DbInstant>, claim: ClaimId) -> Option<&Holder<DbInstant>> {
    let mine = |holder: &&Holder<DbInstant>| holder.claim == claim && !holder.abandoned;
    rows.holders.iter().find(mine)
}

fn ticket(rows: &Rows<DbInstant>, claim: ClaimId) -> Option<i64> {
    let mine = rows.line.iter().find(|waiter| waiter.claim == claim);
    mine.map(|mine| mine.ticket)
}

async fn pause() {
    tokio::time::sleep(STALE_PAUSE.mul_f32(fastrand::f32())).await;
}
