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
    BootInstant, Clock, Engine, Error, Finding, LockName, Mode, Promises, Result, StoreUrl, Token,
    Tokens,
};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Mutex, mpsc};

use crate::cluster::Turns;
use crate::config::Config;
use crate::connection::{Connection, unexpected};
use crate::entry::Entry;
use crate::error::{explain, unreadable};
use crate::hub::{Gate, Hub, Terms};
use crate::keys::{COUNTER, Keys};
use crate::node::{Node, Writer};
use crate::stored::{MARK_LEN, kind, mark, millis, push_rest, px, unrecorded};

/// Locks on Redis or Valkey: one server, a master that Sentinels watch, or a cluster.
pub struct Redis {
    pub(crate) hub: Arc<Hub>,
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

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Without a script, for a claim that nobody is expected to contend with. `None`: go by script.
    async fn place_plainly(&self, claim: &Claim, link: &Connection) -> Result<Option<Grant>> {
        let hub = &self.hub;
        let floor = hub.highest(0);
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
            let error = unexpected(&drawn.unwrap_or_default());
            return Err(self.place_failed(claim, link, error));
        };
        let token = u64::try_from(token).unwrap_or(0);
        if !matches!(set, Some(Value::Okay)) {
            hub.contention.of(&claim.name).raise();
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
        hub.saw(0, token);
        Ok(Some(Grant {
            tokens: Tokens::one(Token(token)),
            counted_from: asked_at,
            lease: claim.ttl,
            recorded: false,
        }))
    }

    fn place_failed(&self, claim: &Claim, link: &Connection, error: RedisError) -> Error {
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

    /// The server that may grant the claim now; `Err` with what to answer if none may.
    async fn ready(
        &self,
        claim: &Claim,
        slot: u16,
    ) -> Result<(Arc<Node>, Arc<Connection>), Result<Standing>> {
        let found = self.hub.link(slot).await;
        let (node, link) = found.map_err(Err)?;
        match self.hub.gate(&node, &link) {
            Gate::Open => Ok((node, link)),
            Gate::ShutUntil(from) => Err(not_yet(self.hub.store(), claim, from)),
            Gate::Unsure(error) => Err(Err(error)),
        }
    }

    /// By script: in line, shared, recorded, or again.
    async fn place_by_script(&self, claim: &Claim, waiter: Option<&Entry>) -> Result<Standing> {
        let hub = &self.hub;
        let window = self.window(claim);
        let keys = hub.keys(&claim.name);
        let kind = kind(claim.mode);
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &hub.channel);
        let ticket = waiter.map_or(0, |waiter| waiter.ticket.load(Ordering::Relaxed));
        // A line that nobody asks about any more is forgotten after several rechecks.
        let line_px = (4 * millis(hub.config.window)).max(10_000);
        let id = mark(&claim.id);
        let replicas = hub.config.replicas;
        let mut turns = Turns::new(&hub.config);
        let mut late = false;
        loop {
            let (node, main) = match self.ready(claim, keys.slot).await {
                Ok(ready) => ready,
                Err(answer) => return answer,
            };
            if waiter.is_some()
                && let Some(channel) = keys.channel(&hub.channel)
                && let Err(error) = main.listen(&channel).await
            {
                if hub.turn(&mut turns, keys.slot, &error).await {
                    continue;
                }
                let action = "subscribing to a channel fencelock:*";
                return Err(self.failed(action, Some(&claim.name), error));
            }
            let mut writer = match replicas {
                0 => None,
                _ => Some(node.writer(hub, &main).await?),
            };
            let link = writer.as_deref().unwrap_or(&main);
            let floor = hub.highest(keys.slot);
            let deadline = link.deadline();
            let asked_at = Clock::Boot.now();
            let args = |command: &mut Cmd| {
                keys.push_all(command);
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
            let answer = match link.run(&hub.scripts.place, args).await {
                Ok(answer) => answer,
                Err(error) => {
                    if hub.turn(&mut turns, keys.slot, &error).await {
                        continue;
                    }
                    let error = self.place_failed(claim, link, error);
                    if let Some(writer) = &mut writer {
                        writer.spoil();
                    }
                    return Err(error);
                }
            };
            let Value::Array(parts) = &answer else {
                return Err(self.place_failed(claim, link, unexpected(&answer)));
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
                    hub.saw(keys.slot, first.get() + u64::from(count) - 1);
                    let grant = Grant {
                        tokens: Tokens { first, count },
                        counted_from: asked_at,
                        lease: claim.ttl,
                        recorded: true,
                    };
                    if let Some(writer) = &mut writer {
                        let terms = hub.terms(keys.slot, &node, &main);
                        self.replicate(claim, &keys, writer, &terms).await?;
                    }
                    hub.entries.remove(&claim.id);
                    return Ok(Standing::Held(grant));
                }
                b"waits" => {
                    let counter = positive(1);
                    hub.saw(keys.slot, counter);
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
                    hub.entries.remove(&claim.id);
                    return Ok(Standing::Busy);
                }
                b"late" if !late => {
                    link.set_server_time(asked_at, number(1));
                    main.set_server_time(asked_at, number(1));
                    late = true;
                }
                b"late" => {
                    let cause = "the server took the request too late";
                    return Err(Error::unavailable(hub.store(), "placing a claim", cause));
                }
                b"newer" => return Err(unreadable(hub.store(), &claim.name)),
                _ => return Err(self.place_failed(claim, link, unexpected(&answer))),
            }
        }
    }

    /// Waits until as many replicas as were asked for have the grant. A shortfall withdraws it.
    async fn replicate(
        &self,
        claim: &Claim,
        keys: &Keys<'_>,
        link: &mut Writer,
        terms: &Terms,
    ) -> Result<()> {
        let hub = &self.hub;
        let asked = hub.config.replicas;
        let patience = hub.config.response_timeout / 2;
        let have = match link.replicated(asked, patience).await {
            Ok(have) if have >= asked => return Ok(()),
            Ok(have) => have,
            Err(error) => {
                link.spoil();
                return Err(self.place_failed(claim, link, error));
            }
        };
        let mark = mark(&claim.id);
        let args = |command: &mut Cmd| {
            keys.push_all(command);
            command.arg(&mark[..]).arg("");
            terms.push(command);
        };
        if let Err(error) = link.run(&hub.scripts.withdraw, args).await {
            link.spoil();
            // The core withdraws it again.
            let error = self.failed("withdrawing a claim", Some(&claim.name), error);
            tracing::debug!(name = %claim.name, %error, "a grant that too few replicas have stays for a while");
        }
        Err(shortfall(hub.store(), have, asked, patience))
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
        waiter: Option<&Entry>,
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

    pub(crate) fn failed(&self, action: &str, name: Option<&LockName>, error: RedisError) -> Error {
        explain(self.hub.store(), action, name, error)
    }

    /// With whatever there is to do besides.
    async fn withdraw_in_full(
        &self,
        keys: &Keys<'_>,
        mark: &[u8],
        claim: &Claim,
        how: Leave,
    ) -> Result<(Value, Arc<Node>, Arc<Connection>)> {
        let hub = &self.hub;
        let args = |command: &mut Cmd, terms: &Terms| {
            keys.push_all(command);
            command.arg(mark);
            match how {
                Leave::Release => command.arg(""),
                Leave::Abandon => command.arg(millis(claim.lock_delay)),
            };
            terms.push(command);
        };
        let script = &hub.scripts.withdraw;
        hub.run("withdrawing a claim", keys, script, args).await
    }
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
        hub.check_whole("taking a lock")?;
        let waiting = hub.entries.find(&claim.id);
        let contention = hub.contention.of(&claim.name);
        let plain = waiting.is_none()
            && claim.mode == Mode::Exclusive
            && claim.reserve <= 1
            && !claim.record
            && !hub.config.timed()
            && !contention.is_contended();
        if plain {
            let (_, link) = match self.ready(claim, 0).await {
                Ok(ready) => ready,
                Err(answer) => return answer,
            };
            if let Some(grant) = self.place_plainly(claim, &link).await? {
                return Ok(Standing::Held(grant));
            }
        }
        let fresh = waiting.is_none();
        let waiting = waiting.or_else(|| claim.wait.then(|| hub.entries.register(claim.id)));
        // Boxed, so that the future of the plain way stays small.
        let standing = Box::pin(self.place_by_script(claim, waiting.as_deref())).await;
        match &standing {
            // At once: nobody else is here.
            Ok(Standing::Held(_)) if !plain && fresh => contention.lower(),
            Ok(Standing::Held(_)) => {}
            Ok(Standing::Waiting(_) | Standing::Busy) => contention.raise(),
            Err(error) if !error.is_transient() => hub.entries.remove(&claim.id),
            Err(_) => {}
        }
        standing
    }

    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let Some(waiter) = self.hub.entries.find(&claim.id) else {
            Clock::Boot.sleep_until(place.recheck).await;
            return Ok(None);
        };
        let Some(pushed) = waiter.next(place.mark).await else {
            return Ok(None);
        };
        let window = self.window(claim);
        let late = Clock::Boot.now().since(place.asked_at) > window.mul_f64(0.75);
        // With a lock-delay, with little time left, or before any replica has it, placing again confirms first.
        if late || !claim.lock_delay.is_zero() || self.hub.config.replicas > 0 {
            return Ok(None);
        }
        // Another client's script granted it, perhaps one that goes by no delay. Placing again waits for the delay.
        let slot = self.hub.keys(&claim.name).slot;
        if self.hub.config.delays() && self.ready(claim, slot).await.is_err() {
            return Ok(None);
        }
        self.hub.entries.remove(&claim.id);
        self.hub.contention.of(&claim.name).raise();
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
        self.renew_all(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let hub = &self.hub;
        hub.check_whole("releasing a lock")?;
        let keys = hub.keys(&claim.name);
        hub.end_earlier(&claim.id, keys.slot).await;
        let mark = mark(&claim.id);
        let action = "withdrawing a claim";
        let mut answer = None;
        let contention = hub.contention.of(&claim.name);
        let common =
            how == Leave::Release && claim.mode == Mode::Exclusive && !contention.is_contended();
        if common {
            let args = |command: &mut Cmd, _: &Terms| {
                keys.push_two(command);
                command.arg(&mark[..]);
            };
            let released = hub.run(action, &keys, &hub.scripts.release, args).await;
            let released = released.inspect_err(|_| hub.entries.remove(&claim.id))?;
            answer = Some(released).filter(|(answer, ..)| *answer != Value::Int(0));
        }
        let tried_in_vain = common && answer.is_none();
        let answer = match answer {
            Some(answer) => Ok(answer),
            // Boxed, so that the future of the common case stays small.
            None => Box::pin(self.withdraw_in_full(&keys, &mark, claim, how)).await,
        };
        if matches!(answer, Ok((Value::Int(1), ..))) {
            if tried_in_vain {
                // It holds, so somebody is in line.
                contention.raise();
            } else {
                contention.clear_last();
            }
        }
        // Only now: what was pushed before is undone by the script; what is pushed later is given back.
        hub.entries.remove(&claim.id);
        let (answer, node, link) = answer?;
        let withdrawn = match answer {
            Value::Int(1) => Withdrawn::Released,
            Value::Int(2) => Withdrawn::LeftLine,
            Value::Int(3) => Withdrawn::Expired,
            Value::Int(4) => Withdrawn::NotOwner,
            other => return Err(self.failed(action, None, unexpected(&other))),
        };
        if !hub.settle(&claim.id, &node, &link) {
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
        hub.check_whole("taking a lock from its holder")?;
        let keys = hub.keys(name);
        let args = |command: &mut Cmd, terms: &Terms| {
            keys.push_all(command);
            command.arg(token.get());
            command.arg(match how {
                Evict::Release => "release",
                Evict::Ask => "ask",
            });
            terms.push(command);
        };
        let (answer, ..) = hub.run("evicting", &keys, &hub.scripts.evict, args).await?;
        match answer {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            Value::Int(-1) => Err(unreadable(hub.store(), name)),
            other => Err(self.failed("evicting", Some(name), unexpected(&other))),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.findings().await
    }

    async fn close(&self) -> Result<()> {
        self.hub.close();
        Ok(())
    }
}

/// Fewer replicas have a write than were asked for.
pub(crate) fn shortfall(store: &str, have: u32, asked: u32, patience: Duration) -> Error {
    let cause = format!(
        "{have} of {asked} replicas had it within {patience:?}, so it does not count (replicas={asked})"
    );
    Error::unavailable(store, "waiting for replicas", cause)
}

/// The server was started or promoted a moment ago and may have forgotten who holds.
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
        "the server was started or promoted of late and may have forgotten who holds; for {left:?} more nothing is \
         granted (restart-delay, promotion-delay)"
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
