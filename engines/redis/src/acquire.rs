//! Placing a claim: without a script if no contention is expected, otherwise by script.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::support::jitter;
use fencelock_core::{BootInstant, Clock, Error, Mode, Result, Token, Tokens, in_words};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::cluster::Retries;
use crate::connection::Connection;
use crate::entry::{Entry, pause_after};
use crate::error::{about, unreadable};
use crate::keys::{COUNTER, Keys, check_name};
use crate::node::Node;
use crate::reply::unexpected;
use crate::servers::{Gate, Servers};
use crate::state::State;
use crate::stored::{MARK_LEN, kind, mark, millis, push_after_token, push_rest, px, unrecorded};
use crate::together::{Granted, Recorded, Taken};
use crate::writer::{Use, Writer};

const ACTION: &str = "taking lock";

/// The longest pause between attempts while a client of another kind holds, in ms.
const LONGEST_PAUSE: u32 = 200;

pub(crate) async fn place(servers: &Servers, claim: &Claim) -> Result<Standing> {
    let state = &servers.state;
    state.check_not_inspect_only("taking a lock")?;
    check_name(&claim.name)?;
    claim.check_floor(state.store(), &servers.promises)?;
    let raises = claim.floor.get() > 0 && raise_floor(servers, claim);
    let entry = state.entries.find(&claim.id);
    let contention = state.contention.of(&claim.name);
    let is_new = entry.is_none();
    let fast = is_new
        && claim.mode == Mode::Exclusive
        && claim.reserve <= 1
        && !raises
        && !state.config.timed()
        && !contention.is_contended();
    if fast {
        let (_, connection) = ready(servers, 0).await?;
        let granted = match claim.record {
            true => recorded_fast_path(servers, claim, &connection).await?,
            false => fast_path(servers, claim, &connection).await?,
        };
        if let Some(grant) = granted {
            return Ok(Standing::Held(grant));
        }
    }
    let entry = entry.or_else(|| claim.wait.then(|| state.entries.register(claim.id)));
    // Boxed, so that the future of the fast path stays small.
    let placing = Placing {
        servers,
        claim,
        keys: state.keys(&claim.name),
        entry: entry.as_deref(),
    };
    let standing = Box::pin(placing.run()).await;
    match &standing {
        Ok(Standing::Held(_)) if !fast && is_new => contention.lower(),
        Ok(Standing::Held(_)) => {}
        Ok(_) => contention.raise(),
        Err(error) if !error.is_retryable() => state.entries.remove(&claim.id),
        Err(_) => {}
    }
    standing
}

/// From now on this client accepts no token of the claim's counter that is not above the claim's floor, and the script lifts
/// the counter. Returns whether the floor was raised.
fn raise_floor(servers: &Servers, claim: &Claim) -> bool {
    let state = &servers.state;
    let slot = state.keys(&claim.name).slot;
    let raises = state.highest(slot) < claim.floor.get();
    state.saw(slot, claim.floor.get());
    raises
}

/// The server that may grant a claim of this slot now.
pub(crate) async fn ready(servers: &Servers, slot: u16) -> Result<(Arc<Node>, Arc<Connection>)> {
    let (node, connection) = servers.connection(slot).await?;
    match servers.gate(&node, &connection) {
        Gate::Open => Ok((node, connection)),
        Gate::ClosedUntil(from) => Err(not_yet(servers.state.store(), from)),
        Gate::Unconfirmed(error) => Err(error),
    }
}

/// The answer while a server that was started or promoted recently grants nothing.
fn not_yet(store: &str, from: BootInstant) -> Error {
    let left = in_words(from.since(Clock::Boot.now()));
    let cause = format!(
        "the server was started or promoted recently and may have forgotten who holds; it grants nothing for another \
         {left} (restart-delay, promotion-delay)"
    );
    Error::unavailable(store, about(ACTION, None), cause)
}

/// Takes a free lock in two commands without a script. `None` if the script must decide.
async fn fast_path(
    servers: &Servers,
    claim: &Claim,
    connection: &Connection,
) -> Result<Option<Grant>> {
    let state = &servers.state;
    let floor = state.highest(0);
    let name = claim.name.as_str();
    let mut set = Cmd::with_capacity(6, name.len() + MARK_LEN + 320);
    set.arg("SET").arg(name);
    set.arg(&unrecorded(claim, &state.channel)[..]);
    set.arg("NX").arg("PX").arg(px(claim));
    let failed = |error| servers.place_failed(claim, connection, error);
    let taken = take(connection, set).await.map_err(failed)?;
    let Taken {
        set,
        drawn,
        asked_at,
    } = taken;
    for answer in [&set, &drawn] {
        if let Value::ServerError(error) = answer {
            let error = RedisError::from(error.clone());
            connection.note(Some(&error));
            let taken = matches!(set, Value::Okay);
            let error = state.failed(ACTION, Some(&claim.name), error);
            // If the key was set, it must be withdrawn, so the error must not read as final.
            return Err(match error {
                error if taken && !error.is_retryable() => {
                    Error::unavailable(state.store(), "drawing a token", error)
                }
                error => error,
            });
        }
    }
    let Value::Int(token) = drawn else {
        return Err(failed(unexpected(&drawn)));
    };
    let token = u64::try_from(token).unwrap_or(0);
    if !matches!(set, Value::Okay) {
        state.contention.of(&claim.name).raise();
        return Ok(None);
    }
    if token <= floor {
        // The counter was lost. The script lifts it, and draws another token for the lock, which the claim holds.
        let store = state.store();
        tracing::warn!(store, token, floor, "the counter of tokens was lost");
        return Ok(None);
    }
    state.saw(0, token);
    Ok(Some(
        Grant::new(Tokens::one(Token(token)), asked_at, claim.ttl).recorded(false),
    ))
}

/// Sets the key, and draws a token after that. Takes that come together are sent in batches.
async fn take(connection: &Connection, set: Cmd) -> Result<Taken, RedisError> {
    let others = connection.together.as_ref();
    let others = others.map(|together| (together, together.begin()));
    if let Some((together, under_way)) = &others
        && !under_way.goes_alone
    {
        return together.take(set).await;
    }
    let mut commands = Pipeline::with_capacity(2);
    commands.add_command(set);
    let mut draw = Cmd::with_capacity(3, 40);
    draw.arg("INCRBY").arg(COUNTER).arg(1);
    commands.add_command(draw);
    let asked_at = Clock::Boot.now();
    let mut answers = connection.send_all(&commands).await?.into_iter();
    match (answers.next(), answers.next()) {
        (Some(set), Some(drawn)) => Ok(Taken {
            set,
            drawn,
            asked_at,
        }),
        (set, _) => Err(unexpected(&set.unwrap_or_default())),
    }
}

/// Takes a free lock by a small script, which records the token. `None` if the general script must decide.
async fn recorded_fast_path(
    servers: &Servers,
    claim: &Claim,
    connection: &Connection,
) -> Result<Option<Grant>> {
    let state = &servers.state;
    let (keys, mark) = (state.keys(&claim.name), mark(&claim.id));
    let mut rest = Vec::with_capacity(64 + claim.owner.len());
    push_after_token(&mut rest, claim, &state.channel);
    let failed = |error| servers.place_failed(claim, connection, error);
    let others = connection.together.as_ref();
    let others = others.map(|together| (together, together.begin()));
    if let Some((together, under_way)) = &others
        && !under_way.goes_alone
    {
        let take = Recorded {
            lock: claim.name.clone(),
            queue: keys.queue().to_owned(),
            mark,
            px: px(claim),
            rest: rest.clone(),
            floor: state.highest(0),
            deadline: connection.deadline(),
        };
        let granted = together.take_recorded(take).await.map_err(failed)?;
        if let Some(Granted { token, asked_at }) = granted {
            return recorded(state, claim, token, asked_at).map_err(failed);
        }
    }
    let args = |command: &mut Cmd| {
        keys.push_lock_queue_and_counter(command);
        command.arg(&mark[..]).arg(px(claim)).arg(&rest[..]);
        command.arg(state.highest(0)).arg(connection.deadline());
    };
    let _turn = connection.turn().await;
    let asked_at = Clock::Boot.now();
    let answer = connection.run(&state.scripts.take, args).await;
    let token = answer.map_err(failed)?;
    recorded(state, claim, token, asked_at).map_err(failed)
}

/// The grant of this token; `None` if it is 0.
fn recorded(
    state: &State,
    claim: &Claim,
    token: Value,
    asked_at: BootInstant,
) -> Result<Option<Grant>, RedisError> {
    match token {
        Value::Int(0) => {
            state.contention.of(&claim.name).raise();
            Ok(None)
        }
        Value::Int(token) => {
            let token = u64::try_from(token).unwrap_or(0);
            state.saw(0, token);
            let tokens = Tokens::one(Token(token));
            Ok(Some(Grant::new(tokens, asked_at, claim.ttl)))
        }
        other => Err(unexpected(&other)),
    }
}

/// The answers of `place.lua`.
enum Placed {
    Held(Tokens),
    Waits(Queued),
    Busy,
    /// The request came after its deadline. With the server's time in ms.
    Late(i64),
    /// A newer version of fencelock stored the lock.
    Newer,
}

struct Queued {
    counter: u64,
    ahead: u64,
    /// The answer of `PTTL` for the lock.
    left: i64,
    ticket: u64,
    /// Whether a client of another kind holds.
    foreign: bool,
}

impl Placed {
    fn read(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else {
            return None;
        };
        let Some(Value::BulkString(word)) = parts.first() else {
            return None;
        };
        let number = |at: usize| match parts.get(at) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        };
        let positive = |at: usize| u64::try_from(number(at)).unwrap_or(0);
        match &word[..] {
            b"held" => Some(Self::Held(Tokens::new(
                Token(positive(1)),
                u32::try_from(positive(2)).unwrap_or(1).max(1),
            ))),
            b"waits" => Some(Self::Waits(Queued {
                counter: positive(1),
                ahead: positive(2),
                left: number(3),
                ticket: positive(4),
                foreign: number(5) == 1,
            })),
            b"busy" => Some(Self::Busy),
            b"late" => Some(Self::Late(number(1))),
            b"newer" => Some(Self::Newer),
            _ => None,
        }
    }
}

/// Placing a claim by script: to wait, shared, recorded, or again.
struct Placing<'a> {
    servers: &'a Servers,
    claim: &'a Claim,
    keys: Keys<'a>,
    entry: Option<&'a Entry>,
}

impl Placing<'_> {
    async fn run(&self) -> Result<Standing> {
        let (servers, claim, slot) = (self.servers, self.claim, self.keys.slot);
        let state = &servers.state;
        let mut retries = Retries::new(&state.config);
        let mut was_late = false;
        loop {
            let (node, main) = ready(servers, slot).await.inspect_err(|_| {
                if let Some(entry) = self.entry {
                    entry.not_asked();
                }
            })?;
            if let Err(error) = self.listen(&main).await {
                if servers.should_retry(&mut retries, slot, &error).await {
                    continue;
                }
                let action = "subscribing to a channel fencelock:*";
                return Err(state.failed(action, Some(&claim.name), error));
            }
            let mut writer = node.writer(Use::Grant, state, &main).await?;
            let connection = writer.as_deref().unwrap_or(&main);
            let turn = connection.turn().await;
            if !matches!(servers.gate(&node, &main), Gate::Open) {
                // Its turn came late. Another server may be the master by now.
                continue;
            }
            let asked_at = Clock::Boot.now();
            let answer = self.send(connection).await;
            drop(turn);
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    if servers.should_retry(&mut retries, slot, &error).await {
                        continue;
                    }
                    let error = servers.place_failed(claim, connection, error);
                    if let Some(writer) = &mut writer {
                        writer.spoil();
                    }
                    return Err(error);
                }
            };
            match Placed::read(&answer) {
                Some(Placed::Held(tokens)) => {
                    state.saw(slot, tokens.first.get() + u64::from(tokens.count) - 1);
                    if let Some(writer) = &mut writer {
                        self.replicate(writer).await?;
                    }
                    return Ok(self.held(tokens, asked_at));
                }
                Some(Placed::Waits(queued)) => return Ok(self.waiting(&queued, asked_at)),
                Some(Placed::Busy) => {
                    state.entries.remove(&claim.id);
                    return Ok(Standing::Busy);
                }
                Some(Placed::Late(now)) if !was_late => {
                    connection.set_server_time(asked_at, now);
                    main.set_server_time(asked_at, now);
                    was_late = true;
                }
                Some(Placed::Late(_)) => {
                    let cause = "the request reached the server too late";
                    let action = about(ACTION, Some(&claim.name));
                    return Err(Error::unavailable(state.store(), action, cause));
                }
                Some(Placed::Newer) => return Err(unreadable(state.store(), &claim.name)),
                None => return Err(servers.place_failed(claim, connection, unexpected(&answer))),
            }
        }
    }

    /// Before a claim is queued in a cluster: listens to the channel of its slot.
    async fn listen(&self, main: &Connection) -> Result<(), RedisError> {
        match self.keys.channel(&self.servers.state.channel) {
            Some(channel) if self.entry.is_some() => main.listen(&channel).await,
            _ => Ok(()),
        }
    }

    async fn send(&self, connection: &Connection) -> Result<Value, RedisError> {
        let (state, claim, keys) = (&self.servers.state, self.claim, &self.keys);
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &state.channel);
        let ticket = self
            .entry
            .map_or(0, |entry| entry.ticket.load(Ordering::Relaxed));
        // A queue whose waiters have not been placed again for several rechecks is forgotten.
        let queue_px = (4 * millis(state.config.claim_window)).max(10_000);
        let (id, kind) = (mark(&claim.id), kind(claim.mode));
        let (floor, deadline) = (state.highest(keys.slot), connection.deadline());
        let args = |command: &mut Cmd| {
            keys.push_all(command);
            command
                .arg(&id[4..])
                .arg(&kind)
                .arg(px(claim))
                .arg(millis(window(self.servers, claim)))
                .arg(claim.reserve.max(1))
                .arg(u8::from(claim.wait))
                .arg(floor)
                .arg(deadline)
                .arg(ticket)
                .arg(&rest[..])
                .arg(queue_px);
        };
        connection.run(&state.scripts.place, args).await
    }

    fn held(&self, tokens: Tokens, asked_at: BootInstant) -> Standing {
        self.servers.state.entries.remove(&self.claim.id);
        Standing::Held(Grant::new(tokens, asked_at, self.claim.ttl))
    }

    fn waiting(&self, queued: &Queued, asked_at: BootInstant) -> Standing {
        self.servers.state.saw(self.keys.slot, queued.counter);
        if let Some(entry) = self.entry {
            entry.ticket.store(queued.ticket, Ordering::Relaxed);
            entry.waits(asked_at, queued.counter);
        }
        let window = window(self.servers, self.claim);
        Standing::Waiting(
            Place::new(asked_at + recheck(window, queued, self.entry)).ahead(queued.ahead),
        )
    }

    /// Waits until the wanted number of replicas has the grant. If too few have it, the claim keeps its place: the core asks
    /// again, or withdraws the claim. A withdrawal from here could arrive late, and end the next grant of the claim.
    async fn replicate(&self, writer: &mut Writer) -> Result<()> {
        let state = &self.servers.state;
        let asked = state.config.replicas;
        let timeout = state.config.response_timeout / 2;
        match writer.replicated(asked, timeout).await {
            Ok(have) if have >= asked => Ok(()),
            Ok(have) => Err(too_few_replicas(state.store(), have, asked, timeout)),
            Err(error) => {
                writer.spoil();
                Err(self.servers.place_failed(self.claim, writer, error))
            }
        }
    }
}

pub(crate) fn too_few_replicas(store: &str, have: u32, asked: u32, timeout: Duration) -> Error {
    let cause = format!(
        "{have} of {asked} replicas had it within {timeout:?}, so it does not count (replicas={asked}); find out why the others are away"
    );
    Error::unavailable(store, "waiting for replicas", cause)
}

/// For how long a lock that is handed over to this claim waits for it to confirm.
pub(crate) fn window(servers: &Servers, claim: &Claim) -> Duration {
    let window = servers.state.config.claim_window.min(claim.ttl);
    window.max(Duration::from_millis(1))
}

/// When to place the claim again: a push may be lost, or the holder may be gone.
fn recheck(window: Duration, queued: &Queued, entry: Option<&Entry>) -> Duration {
    let mut pause = jitter(window / 2);
    if queued.foreign {
        // The holder will not hand the lock over.
        let next = entry.map_or_else(
            || pause_after(0, LONGEST_PAUSE),
            |entry| entry.next_pause(LONGEST_PAUSE),
        );
        pause = pause.min(Duration::from_millis(next.into()));
    }
    match u64::try_from(queued.left) {
        // The first waiters are placed again as soon as the lease ends. The waiters after them get a push.
        Ok(left) => {
            let spread = fastrand::u64(0..=queued.ahead.min(50));
            pause.min(Duration::from_millis(left + 1 + spread))
        }
        // The lock is free: expired waiters are ahead of the claim.
        Err(_) if queued.left == -2 => Duration::from_millis(1),
        // The lease has no end.
        Err(_) => pause,
    }
}
