//! The engine: what the core asks, in the server's terms.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{
    BootInstant, Clock, Engine, Error, LockName, Mode, Promises, Result, StoreUrl, Token, Tokens,
};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Mutex, mpsc};

use crate::config::Config;
use crate::connection::{COUNTER, Link, odd};
use crate::hub::Hub;
use crate::refusal::{explain, unreadable};
use crate::value::{MARK_LEN, kind, line_key, mark, millis, push_rest, px, unrecorded};
use crate::waiters::Waiter;

/// How many exclusive holds one renewal script prolongs; it blocks the server for about a millisecond.
const RENEWED_AT_ONCE: usize = 500;
/// How many renewal scripts are under way at once.
const RENEWALS_UNDER_WAY: usize = 4;

/// Locks on one Redis or Valkey server.
pub struct Redis {
    hub: Arc<Hub>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

impl Redis {
    /// Connects to the server that a URL names. Needs a tokio runtime, and keeps a task there that restores the
    /// connection.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL cannot be used or the server is not fit, [`Error::Unavailable`] if it does not answer
    /// within `connect-timeout`, [`Error::Refused`] if it refuses this user.
    pub async fn connect(url: StoreUrl) -> Result<Self> {
        Self::open(Config::from_url(url)?).await
    }

    /// Connects with the address and credentials of a caller's own client.
    ///
    /// # Errors
    /// As [`Redis::connect`].
    pub async fn from_client(client: redis::Client) -> Result<Self> {
        Self::open(Config::from_client(&client)?).await
    }

    async fn open(config: Config) -> Result<Self> {
        let (hub, events) = Hub::open(config).await?;
        let events = Mutex::new(events);
        Ok(Self { hub, events })
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Without a script, for a claim that nobody is expected to contend with. `None`: go by script.
    async fn place_plainly(&self, claim: &Claim, link: &Link) -> Result<Option<Grant>> {
        let hub = &self.hub;
        let floor = hub.highest();
        let name = claim.name.as_str();
        let mut commands = Pipeline::with_capacity(2);
        let mut set = Cmd::with_capacity(6, name.len() + MARK_LEN + 320);
        set.arg("SET").arg(name);
        set.arg(&unrecorded(claim, &hub.channel)[..]);
        set.arg("NX").arg("PX").arg(px(claim));
        commands.add_command(set);
        let mut draw = Cmd::with_capacity(3, 40);
        draw.arg("INCRBY").arg(COUNTER).arg(1);
        commands.add_command(draw);
        let asked_at = Clock::Boot.now();
        let answers = link.send_all(&commands).await;
        let answers = answers.map_err(|error| self.place_failed(claim, link, error))?;
        let mut answers = answers.into_iter();
        let (set, drawn) = (answers.next(), answers.next());
        for answer in [&set, &drawn] {
            if let Some(Value::ServerError(error)) = answer {
                let error = RedisError::from(error.clone());
                link.note(Some(&error));
                let taken = matches!(set, Some(Value::Okay));
                let error = explain(hub.store(), "placing a claim", Some(&claim.name), error);
                // What is set already must be undone, so the error must not read as final.
                return Err(match error {
                    error if taken && !error.is_transient() => {
                        Error::unavailable(hub.store(), "drawing a token", error)
                    }
                    error => error,
                });
            }
        }
        let Some(Value::Int(token)) = drawn else {
            let error = odd(&drawn.unwrap_or_default());
            return Err(self.place_failed(claim, link, error));
        };
        let token = u64::try_from(token).unwrap_or(0);
        if !matches!(set, Some(Value::Okay)) {
            hub.hot.of(&claim.name).heat();
            return Ok(None);
        }
        if token <= floor {
            // The counter was lost. The script lifts it, and draws another token for the lock that we have.
            tracing::warn!(
                store = hub.store(),
                token,
                floor,
                "the counter of tokens was lost"
            );
            return Ok(None);
        }
        hub.saw(token);
        Ok(Some(Grant {
            tokens: Tokens::one(Token(token)),
            counted_from: asked_at,
            lease: claim.ttl,
            recorded: false,
        }))
    }

    fn place_failed(&self, claim: &Claim, link: &Link, error: RedisError) -> Error {
        let error = explain(
            self.hub.store(),
            "placing a claim",
            Some(&claim.name),
            error,
        );
        if error.is_transient() {
            self.hub.unsettle(claim, link.generation);
        }
        error
    }

    /// By script: in line, shared, recorded, or again.
    async fn place_by_script(
        &self,
        claim: &Claim,
        link: &Link,
        waiter: Option<&Waiter>,
    ) -> Result<Standing> {
        let hub = &self.hub;
        let window = self.window(claim);
        let line = line_key(claim.name.as_str());
        let kind = kind(claim.mode);
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &hub.channel);
        let ticket = waiter.map_or(0, |waiter| waiter.ticket.load(Ordering::Relaxed));
        // A line that nobody asks about any more is forgotten after several rechecks.
        let line_px = (4 * millis(hub.config.window)).max(10_000);
        let id = mark(&claim.id);
        for attempt in 0.. {
            let floor = hub.highest();
            let deadline = link.deadline();
            let asked_at = Clock::Boot.now();
            let args = |command: &mut Cmd| {
                command
                    .arg(3)
                    .arg(claim.name.as_str())
                    .arg(&line)
                    .arg(COUNTER);
                command
                    .arg(&id[4..])
                    .arg(&kind)
                    .arg(px(claim))
                    .arg(millis(window));
                command
                    .arg(claim.reserve.max(1))
                    .arg(u8::from(claim.wait))
                    .arg(floor);
                command
                    .arg(deadline)
                    .arg(ticket)
                    .arg(&rest[..])
                    .arg(line_px);
            };
            let answer = link.run(&hub.scripts.place, args).await;
            let answer = answer.map_err(|error| self.place_failed(claim, link, error))?;
            let Value::Array(parts) = &answer else {
                return Err(self.place_failed(claim, link, odd(&answer)));
            };
            let word = match parts.first() {
                Some(Value::BulkString(word)) => &word[..],
                _ => b"",
            };
            let number = |at: usize| match parts.get(at) {
                Some(Value::Int(number)) => *number,
                _ => 0,
            };
            let positive = |at: usize| u64::try_from(number(at)).unwrap_or(0);
            match word {
                b"held" => {
                    let count = u32::try_from(positive(2)).unwrap_or(1).max(1);
                    let first = Token(positive(1));
                    hub.saw(first.get() + u64::from(count) - 1);
                    hub.waiters.remove(&claim.id);
                    return Ok(Standing::Held(Grant {
                        tokens: Tokens { first, count },
                        counted_from: asked_at,
                        lease: claim.ttl,
                        recorded: true,
                    }));
                }
                b"waits" => {
                    let counter = positive(1);
                    hub.saw(counter);
                    let foreign = number(5) == 1;
                    let recheck =
                        asked_at + self.recheck(window, positive(2), number(3), foreign, waiter);
                    if let Some(waiter) = waiter {
                        waiter.ticket.store(positive(4), Ordering::Relaxed);
                    }
                    return Ok(Standing::Waiting(Place {
                        ahead: Some(positive(2)),
                        recheck,
                        asked_at,
                        mark: counter,
                    }));
                }
                b"busy" => {
                    hub.waiters.remove(&claim.id);
                    return Ok(Standing::Busy);
                }
                b"late" if attempt == 0 => link.set_server_time(asked_at, number(1)),
                b"late" => {
                    let cause = "the server took the request too late";
                    return Err(Error::unavailable(hub.store(), "placing a claim", cause));
                }
                b"newer" => return Err(unreadable(hub.store(), &claim.name)),
                _ => return Err(self.place_failed(claim, link, odd(&answer))),
            }
        }
        unreachable!("the second attempt returns")
    }

    /// How long a lock that is handed to this claim waits for a sign of life.
    fn window(&self, claim: &Claim) -> Duration {
        self.hub
            .config
            .window
            .min(claim.ttl)
            .max(Duration::from_millis(1))
    }

    /// After how long to ask again: a push may be lost, and the holder may be gone.
    fn recheck(
        &self,
        window: Duration,
        ahead: u64,
        left: i64,
        foreign: bool,
        waiter: Option<&Waiter>,
    ) -> Duration {
        let jitter = |most: Duration| most.mul_f64(0.5 + fastrand::f64() / 2.0);
        let mut pause = jitter(window / 2);
        if foreign {
            // It will not hand over: ask again and again, less and less often.
            let last = waiter.map_or(10, |waiter| waiter.pause.load(Ordering::Relaxed).max(10));
            let next = fastrand::u32(10..=last * 3).min(200);
            if let Some(waiter) = waiter {
                waiter.pause.store(next, Ordering::Relaxed);
            }
            pause = pause.min(Duration::from_millis(next.into()));
        }
        match u64::try_from(left) {
            // The lease ends: those at the head look at once, the others are told by them.
            Ok(left) => pause.min(Duration::from_millis(
                left + 1 + fastrand::u64(0..=ahead.min(50)),
            )),
            // Free, with a line of the dead before us.
            Err(_) if left == -2 => Duration::from_millis(1),
            // Without end.
            Err(_) => pause,
        }
    }

    fn failed(&self, action: &str, name: Option<&LockName>, error: RedisError) -> Error {
        explain(self.hub.store(), action, name, error)
    }

    async fn renew_exclusive(&self, held: &[&HeldClaim]) -> Vec<Renewal> {
        let link = match self.hub.link().await {
            Ok(link) => link,
            Err(error) => return unknown(held.len(), &error, self.hub.store()),
        };
        let mut command = Cmd::with_capacity(3 + 5 * held.len(), 160 * held.len());
        let fill = |command: &mut Cmd| {
            command.arg(held.len());
            for held in held {
                command.arg(held.claim.name.as_str());
            }
            for held in held {
                let claim = &held.claim;
                command
                    .arg(&mark(&claim.id)[..])
                    .arg(held.token.get())
                    .arg(px(claim));
                if claim.reserve > 1 {
                    // Handed on inside the process, perhaps to another owner.
                    let mut rest = Vec::with_capacity(64 + claim.owner.len());
                    push_rest(&mut rest, claim, &self.hub.channel);
                    command.arg(&rest[..]);
                } else {
                    command.arg("");
                }
            }
        };
        let script = &self.hub.scripts.renew;
        command.arg("EVALSHA").arg(&script.sha);
        fill(&mut command);
        let asked_at = Clock::Boot.now();
        let answer = match link.send(&command).await {
            Err(error) if crate::refusal::is_noscript(&error) => link.run(script, fill).await,
            answer => answer,
        };
        match answer {
            Ok(Value::Array(codes)) if codes.len() == held.len() => {
                let codes = codes.into_iter().zip(held);
                codes
                    .map(|(code, held)| self.renewal(&code, asked_at, &held.claim))
                    .collect()
            }
            Ok(other) => {
                let error = self.failed("renewing", None, odd(&other));
                unknown(held.len(), &error, self.hub.store())
            }
            Err(error) => {
                let error = self.failed("renewing", None, error);
                unknown(held.len(), &error, self.hub.store())
            }
        }
    }

    async fn renew_shared(&self, held: &HeldClaim) -> Renewal {
        let claim = &held.claim;
        let hub = &self.hub;
        let link = match hub.link().await {
            Ok(link) => link,
            Err(error) => return Renewal::Unknown(error),
        };
        let line = line_key(claim.name.as_str());
        let (id, kind) = (mark(&claim.id), kind(claim.mode));
        let asked_at = Clock::Boot.now();
        let args = |command: &mut Cmd| {
            command
                .arg(3)
                .arg(claim.name.as_str())
                .arg(&line)
                .arg(COUNTER);
            command
                .arg(&id[4..])
                .arg(&kind)
                .arg(px(claim))
                .arg(hub.highest());
        };
        match link.run(&hub.scripts.renew_shared, args).await {
            Ok(code) => self.renewal(&code, asked_at, claim),
            Err(error) => Renewal::Unknown(self.failed("renewing", Some(&claim.name), error)),
        }
    }

    fn renewal(&self, code: &Value, counted_from: BootInstant, claim: &Claim) -> Renewal {
        match code {
            Value::Int(0) => Renewal::Lost,
            Value::Int(code @ (1 | 2)) => Renewal::Kept {
                counted_from,
                lease: claim.ttl,
                asked: *code == 2,
            },
            _ => {
                let action = format!("renewing lock {}", claim.name);
                let cause = "the server is out of memory (maxmemory); free some or allow more";
                Renewal::Unknown(Error::unavailable(self.hub.store(), action, cause))
            }
        }
    }

    /// Serves the lines of locks that were found lost.
    fn poke(&self, names: Vec<LockName>) {
        let hub = Arc::clone(&self.hub);
        tokio::spawn(async move {
            let Ok(link) = hub.link().await else { return };
            let (hub, link) = (&hub, &link);
            let pokes = names.into_iter().map(|name| async move {
                let line = line_key(name.as_str());
                let args = |command: &mut Cmd| {
                    command.arg(3).arg(name.as_str()).arg(&line).arg(COUNTER);
                    command.arg(hub.highest());
                };
                if let Err(error) = link.run(&hub.scripts.poke, args).await {
                    tracing::debug!(%name, %error, "a line could not be served; its waiters will ask");
                }
            });
            stream::iter(pokes)
                .buffer_unordered(16)
                .collect::<()>()
                .await;
        });
    }
}

fn alone(held: &HeldClaim) -> bool {
    held.claim.mode == Mode::Exclusive
}

fn unknown(count: usize, error: &Error, store: &str) -> Vec<Renewal> {
    let text = error.to_string();
    let one = || match error {
        Error::Closed => Renewal::Unknown(Error::Closed),
        _ => Renewal::Unknown(Error::unavailable(store, "renewing", text.clone())),
    };
    std::iter::repeat_with(one).take(count).collect()
}

#[async_trait]
impl Engine for Redis {
    fn promises(&self) -> Promises {
        self.hub.promises()
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let hub = &self.hub;
        let link = hub.link().await?;
        if let Some(from) = link.grants_from
            && Clock::Boot.now() < from
        {
            return not_yet(hub.store(), claim, from);
        }
        let waiting = hub.waiters.find(&claim.id);
        let hot = hub.hot.of(&claim.name);
        let plain = waiting.is_none()
            && claim.mode == Mode::Exclusive
            && claim.reserve <= 1
            && !claim.record
            && !hot.is_hot();
        if plain && let Some(grant) = self.place_plainly(claim, &link).await? {
            return Ok(Standing::Held(grant));
        }
        let fresh = waiting.is_none();
        let waiting = waiting.or_else(|| claim.wait.then(|| hub.waiters.register(claim.id)));
        // Boxed, so that the future of the plain way stays small.
        let standing = Box::pin(self.place_by_script(claim, &link, waiting.as_deref())).await;
        match &standing {
            // At once: nobody else is here.
            Ok(Standing::Held(_)) if !plain && fresh => hot.cool(),
            Ok(Standing::Held(_)) => {}
            Ok(Standing::Waiting(_) | Standing::Busy) => hot.heat(),
            Err(error) if !error.is_transient() => hub.waiters.remove(&claim.id),
            Err(_) => {}
        }
        standing
    }

    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let Some(waiter) = self.hub.waiters.find(&claim.id) else {
            Clock::Boot.sleep_until(place.recheck).await;
            return Ok(None);
        };
        let Some(pushed) = waiter.next(place.mark).await else {
            return Ok(None);
        };
        let window = self.window(claim);
        let late = Clock::Boot.now().since(place.asked_at) > window.mul_f64(0.75);
        // With a lock-delay, or with little time left, placing again confirms first.
        if late || !claim.lock_delay.is_zero() {
            return Ok(None);
        }
        self.hub.waiters.remove(&claim.id);
        let tokens = Tokens {
            first: Token(pushed.first),
            count: pushed.count.max(1),
        };
        Ok(Some(Grant {
            tokens,
            counted_from: place.asked_at,
            lease: window,
            recorded: true,
        }))
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        // The futures stand in vectors: a lazy iterator of them would not be `Send` for every lifetime.
        let exclusive: Vec<&HeldClaim> = held.iter().filter(|held| alone(held)).collect();
        let chunks = exclusive.chunks(RENEWED_AT_ONCE);
        let chunks: Vec<_> = chunks.map(|chunk| self.renew_exclusive(chunk)).collect();
        let chunks = stream::iter(chunks).buffered(RENEWALS_UNDER_WAY);
        let mut renewed = chunks.collect::<Vec<_>>().await.into_iter().flatten();
        let others = held.iter().filter(|held| !alone(held));
        let others: Vec<_> = others.map(|held| self.renew_shared(held)).collect();
        let others = stream::iter(others).buffered(64);
        let mut others = others.collect::<Vec<_>>().await.into_iter();
        let answers = held.iter().map(|held| {
            let answer = if alone(held) {
                renewed.next()
            } else {
                others.next()
            };
            // Each batch answers for all it was given.
            answer.unwrap_or(Renewal::Unknown(Error::Closed))
        });
        let answers: Vec<Renewal> = answers.collect();
        let lost = held.iter().zip(&answers);
        let lost = lost.filter(|(held, answer)| alone(held) && matches!(answer, Renewal::Lost));
        let lost: Vec<LockName> = lost.map(|(held, _)| held.claim.name.clone()).collect();
        if !lost.is_empty() {
            self.poke(lost);
        }
        answers
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let hub = &self.hub;
        let link = hub.link().await;
        let link = link.inspect_err(|_| hub.waiters.remove(&claim.id))?;
        let line = line_key(claim.name.as_str());
        let mark = mark(&claim.id);
        let args = |command: &mut Cmd| {
            command
                .arg(3)
                .arg(claim.name.as_str())
                .arg(&line)
                .arg(COUNTER);
            command.arg(&mark[..]);
            match how {
                Leave::Release => command.arg(""),
                Leave::Abandon => command.arg(millis(claim.lock_delay)),
            };
            command.arg(hub.highest());
        };
        let answer = link.run(&hub.scripts.withdraw, args).await;
        // Only now: what was pushed before is undone by the script; what is pushed later is given back.
        hub.waiters.remove(&claim.id);
        let answer =
            answer.map_err(|e| self.failed("withdrawing a claim", Some(&claim.name), e))?;
        let withdrawn = match answer {
            Value::Int(1) => Withdrawn::Released,
            Value::Int(2) => Withdrawn::LeftLine,
            Value::Int(3) => Withdrawn::Expired,
            Value::Int(4) => Withdrawn::NotOwner,
            other => return Err(self.failed("withdrawing a claim", None, odd(&other))),
        };
        if !hub.settle(&claim.id, &link) {
            return Ok(Withdrawn::Unknown);
        }
        Ok(withdrawn)
    }

    async fn events(&self) -> Result<Event> {
        let event = self.events.lock().await.recv().await;
        event.ok_or(Error::Closed)
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.look_until(name, unlike).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.list_part(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let hub = &self.hub;
        let link = hub.link().await?;
        let line = line_key(name.as_str());
        let args = |command: &mut Cmd| {
            command.arg(3).arg(name.as_str()).arg(&line).arg(COUNTER);
            command.arg(token.get());
            command.arg(match how {
                Evict::Release => "release",
                Evict::Ask => "ask",
            });
            command.arg(hub.highest());
        };
        match link.run(&hub.scripts.evict, args).await {
            Ok(Value::Int(1)) => Ok(true),
            Ok(Value::Int(0)) => Ok(false),
            Ok(Value::Int(-1)) => Err(unreadable(hub.store(), name)),
            Ok(other) => Err(self.failed("evicting", Some(name), odd(&other))),
            Err(error) => Err(self.failed("evicting", Some(name), error)),
        }
    }

    async fn close(&self) -> Result<()> {
        self.hub.close();
        Ok(())
    }
}

/// The server was started a moment ago and may have forgotten who holds.
fn not_yet(store: &str, claim: &Claim, from: BootInstant) -> Result<Standing> {
    let now = Clock::Boot.now();
    if claim.wait {
        return Ok(Standing::Waiting(Place {
            ahead: None,
            recheck: from,
            asked_at: now,
            mark: u64::MAX,
        }));
    }
    let left = from.since(now);
    let cause = format!(
        "the server was restarted and may have forgotten who holds; for {left:?} more nothing is granted (restart-delay)"
    );
    Err(Error::unavailable(store, "placing a claim", cause))
}

impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hub.store())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.hub.store())
    }
}
