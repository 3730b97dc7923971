//! Takes a lock, or a place in the queue: read, decide, and write the decision if nothing changed meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Leave, Place, Standing};
use fencelock_core::support::NameContention;
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Token, Tokens};

use super::change::{Change, Written};
use super::dialect::Dialect;
use super::entry::Entry;
use super::error::Failure;
use super::pool::{Lane, attempt};
use super::release::withdraw;
use super::state::{Done, State, Tried, Unsettled, action, pause, write};
use super::stored::Snapshot;
use crate::lease::{CLAIM_WINDOW, RECHECK, Step};

impl<D: Dialect> State<D> {
    pub(super) async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_writes("a lock")?;
        let dialect = &self.pool.dialect;
        if claim.floor > Token(0) {
            claim.check_floor(dialect, &dialect.promises())?;
        }
        let mut call = self.pool.call(action("taking", &claim.name));
        let known = self.entries.get(claim.id);
        let fresh = known.is_none();
        if !fresh {
            dialect.await_turn(claim);
        }
        let entry = known.unwrap_or_else(|| self.entries.register(claim.id));
        let contention = self.contention.of(&claim.name);
        let done = async {
            Ok(attempt!(call, Lane::Others, |session| {
                self.raise_tokens(session, claim.floor).await?;
                place(dialect, session, claim, (&entry, contention), fresh).await
            }))
        };
        let done: Result<Done<Standing>> = done.await;
        // After a retryable error the claim is placed again, or withdrawn.
        let is_over = |error: &Error| fresh && !error.is_retryable();
        if done.as_ref().is_err_and(is_over) {
            self.forget(claim.id);
        }
        if !call.lost.is_empty() {
            let until = Clock::Boot.now() + claim.ttl.saturating_add(claim.lock_delay);
            let connections = Vec::new();
            let mut unsettled = self.unsettled.lock();
            let new = Unsettled { connections, until };
            let unsettled = unsettled.entry(claim.id).or_insert(new);
            unsettled.connections.append(&mut call.lost);
            unsettled.until = until;
        }
        let done = done?;
        if !matches!(done.answer, Standing::Waiting(_)) {
            self.forget(claim.id);
        }
        self.wake(&done.next);
        // After this answer nobody withdraws the claim. But a request that was lost on its way may still take the lock.
        if matches!(done.answer, Standing::Busy) && self.unsettled.lock().contains_key(&claim.id) {
            self.withdraw(claim, Leave::Release).await?;
        }
        Ok(done.answer)
    }

    /// Lifts the token counter above the floor of a claim, unless this was done before. From then on this connection accepts no
    /// token that is not above it.
    async fn raise_tokens(&self, session: &mut D::Session, floor: Token) -> Tried<()> {
        let dialect = &self.pool.dialect;
        let raised = self.raised.load(Ordering::SeqCst) >= floor.get();
        if floor == Token(0) || (raised && dialect.token_floor(session) > floor) {
            return Ok(());
        }
        dialect.saw_token(session, Token(floor.get() + 1));
        dialect.lift_tokens(session).await?;
        self.raised.fetch_max(floor.get(), Ordering::SeqCst);
        Ok(())
    }
}

/// `fresh`: the claim was not placed before.
async fn place<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    (entry, contention): (&Arc<Entry>, &NameContention),
    fresh: bool,
) -> Tried<Done<Standing>> {
    if fresh
        && is_likely_taken(claim, contention)
        && let Some(standing) = join(dialect, session, claim, entry).await?
    {
        contention.raise();
        return Ok(Done::alone(standing));
    }
    let mut may_be_free = fresh;
    loop {
        if may_be_free {
            let standing = fast_path(dialect, session, claim, (entry, contention));
            if let Some(standing) = standing.await? {
                return Ok(Done::alone(standing));
            }
        }
        let asked_at = Clock::Boot.now();
        let Some(read) = dialect.read(session, &claim.name).await? else {
            may_be_free = true;
            continue;
        };
        may_be_free = false;
        let decision = decide(dialect, session, claim, entry, &read, asked_at).await?;
        let (change, answer) = match decision {
            Decision::Answer(standing) => return Ok(Done::alone(standing)),
            Decision::Again => continue,
            Decision::Grant(change) => (change, None),
            Decision::Write(change, answer) => (change, Some(answer)),
        };
        let (written, next) = write(dialect, session, &claim.name, &read, change).await?;
        match (written, answer) {
            (Written::Stale, _) => pause().await,
            (Written::Done(_), Some(answer)) => return Ok(Done { answer, next }),
            (Written::Done(Some(tokens)), None) => {
                if accept(dialect, session, claim, tokens).await? {
                    let answer = held(claim, tokens, asked_at);
                    return Ok(Done { answer, next });
                }
            }
            (Written::Done(None), None) => {
                let why = "a grant came without its tokens".to_owned();
                let store = dialect.to_string();
                return Err(Failure::Final(Error::internal(store, why)));
            }
        }
    }
}

/// What to do for a claim after its lock was read.
enum Decision<'a> {
    /// Nothing needs to be written.
    Answer(Standing),
    /// The lock has changed since it was read: read again.
    Again,
    /// Write this change, which grants the lock.
    Grant(Change<'a>),
    /// Write this change, and then answer.
    Write(Change<'a>, Standing),
}

async fn decide<'a, D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &'a Claim,
    entry: &Entry,
    read: &'a Snapshot,
    asked_at: BootInstant,
) -> Tried<Decision<'a>> {
    Ok(match read.rows.step(claim, read.now) {
        Step::Prolong(tokens) => match dialect.prolong(session, claim, tokens.first).await? {
            true => Decision::Answer(held(claim, tokens, asked_at)),
            false => Decision::Again,
        },
        Step::Refuse(mode) => return Err(Failure::Final(Error::stronger_mode(dialect, mode))),
        Step::Downgrade => Decision::Grant(Change::Grant {
            claim,
            ticket: None,
            replaces: read.rows.holder(claim.id),
        }),
        Step::Grant => Decision::Grant(Change::Grant {
            claim,
            ticket: read.rows.ticket(claim.id),
            replaces: None,
        }),
        Step::Wait {
            ticket,
            ahead,
            until,
        } => {
            let left = until.map(|until| until.since(read.now));
            let standing = waiting(asked_at, ahead, left);
            entry.queued(asked_at, read.drawn, read.version);
            dialect.await_turn(claim);
            if let Some(ticket) = ticket
                && keep_place(dialect, session, claim, ticket, read).await?
            {
                return Ok(Decision::Answer(standing));
            }
            // The write makes the next version.
            entry.queued(asked_at, read.drawn, read.version + 1);
            Decision::Write(enqueue(claim, ticket, read), standing)
        }
        Step::Busy => match read.rows.ticket(claim.id) {
            None => Decision::Answer(Standing::Busy),
            Some(ticket) => Decision::Write(Change::LeaveQueue { ticket }, Standing::Busy),
        },
    })
}

/// One request for a lock that may be free, and one more for a place in its queue. `None` if neither decides.
async fn fast_path<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    (entry, contention): (&Entry, &NameContention),
) -> Tried<Option<Standing>> {
    loop {
        let asked_at = Clock::Boot.now();
        let Some(tokens) = dialect.acquire_free(session, claim).await? else {
            break;
        };
        if accept(dialect, session, claim, tokens).await? {
            contention.lower();
            return Ok(Some(held(claim, tokens, asked_at)));
        }
    }
    if claim.mode == Mode::Exclusive {
        contention.raise();
    }
    match claim.wait {
        true => join(dialect, session, claim, entry).await,
        false => Ok(None),
    }
}

/// Whether the claim first asks for a place in the queue: a free lock then costs one more request, a taken one costs one less. (A
/// claim for shared mode may hold beside others.)
fn is_likely_taken(claim: &Claim, contention: &NameContention) -> bool {
    claim.wait && claim.mode == Mode::Exclusive && contention.is_contended()
}

/// One request for a place in the queue. `None` if the claim may not have to wait.
async fn join<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    entry: &Entry,
) -> Tried<Option<Standing>> {
    let asked_at = Clock::Boot.now();
    dialect.await_turn(claim);
    let Some(queued) = dialect.enqueue(session, claim).await? else {
        return Ok(None);
    };
    entry.queued(asked_at, queued.drawn, queued.version);
    let left = queued.left.filter(|_| queued.ahead == 0);
    Ok(Some(waiting(asked_at, queued.ahead, left)))
}

/// Whether these tokens can be used. If not, the counter was lost: the grant is taken back and the counter is lifted.
async fn accept<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    tokens: Tokens,
) -> Tried<bool> {
    if tokens.first >= dialect.token_floor(session) {
        dialect.saw_token(session, tokens.first);
        return Ok(true);
    }
    Box::pin(withdraw(dialect, session, claim, Leave::Release)).await?;
    dialect.lift_tokens(session).await?;
    Ok(false)
}

/// Keeps a place in the queue if it exists and must be prolonged now. `false` if the place must be taken again.
async fn keep_place<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    claim: &Claim,
    ticket: i64,
    read: &Snapshot,
) -> Tried<bool> {
    let mine = read.rows.queue.iter().find(|mine| mine.ticket == ticket);
    let left = mine.map_or(Duration::ZERO, |mine| mine.expiry.since(read.now));
    if left.is_zero() {
        return Ok(false);
    }
    // While half of the window is left, nothing must be written, unless another process placed the claim before.
    let same = mine.is_some_and(|mine| mine.mode == claim.mode && dialect.hears(mine));
    if left > CLAIM_WINDOW / 2 && same {
        return Ok(true);
    }
    dialect
        .keep_place(session, claim, ticket, CLAIM_WINDOW)
        .await
}

/// A place in the queue: the old one of a claim that comes back late, or one at the end.
fn enqueue<'a>(claim: &'a Claim, ticket: Option<i64>, read: &Snapshot) -> Change<'a> {
    let last = read.rows.queue.last().map_or(0, |last| last.ticket);
    let ticket = ticket.unwrap_or(last + 1);
    Change::Enqueue { claim, ticket }
}

/// The answer for a claim in the queue. `left` is the remaining time of the holder that expires first, if only holders are in
/// the way.
fn waiting(asked_at: BootInstant, ahead: u64, left: Option<Duration>) -> Standing {
    let over = left.map_or(RECHECK, |left| left + Duration::from_millis(1));
    Standing::Waiting(Place::new(asked_at + over.min(RECHECK)).ahead(ahead))
}

fn held(claim: &Claim, tokens: Tokens, asked_at: BootInstant) -> Standing {
    Standing::Held(Grant::new(tokens, asked_at, claim.ttl))
}
