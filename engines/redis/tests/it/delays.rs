//! `restart-delay` and `promotion-delay`: no script grants anything before they are over.

use std::time::Duration;

use fencelock_core::engine::{Claim, Evict, Grant, Place, Renewal, Withdrawn};
use fencelock_core::{BootInstant, Client, Clock, Engine, Error, Token};
use fencelock_testbed::{Redis as Server, RedisSentinel};

use crate::support::{Store, calls, ms, open, open_with};

/// Long enough that a push is used even on a busy machine.
const WINDOW: &str = "claim-window=20s";

/// Locks, each with a holder and a waiter. The store `free` has no delay.
struct Locks {
    gated: Store,
    free: Store,
    /// A waiter with its place: the release of the holder pushes to it.
    pushed: (Claim, Claim, Place),
    /// A waiter whose holder is withdrawn.
    withdrawn: (Claim, Claim),
    evicted: (Claim, Token),
    /// A reader, followed by another one that is admitted.
    renewed: (Claim, Token),
    /// A holder whose lock is deleted.
    deleted: (Claim, Token),
    /// Queued on the server, but not waiting here: its grant is released.
    given_back: (Claim, Claim),
}

impl Locks {
    async fn new(gated: Store, free: Store, server: &Server) -> Self {
        // The server was started a short time ago.
        let first = gated.claim("first");
        gated.lock(&first).await;
        let holder = async |name: &str| {
            let claim = free.claim(name);
            let token = free.lock(&claim).await.tokens.first;
            (claim, token)
        };
        let push = holder("push").await.0;
        let pushed = gated.claim("push");
        let place = gated.waits(&pushed).await;
        let withdraw = holder("withdraw").await.0;
        let next = gated.claim("withdraw");
        gated.waits(&next).await;
        let evicted = holder("evict").await;
        free.waits(&free.claim("evict")).await;
        let deleted = holder("poke").await;
        free.waits(&free.claim("poke")).await;
        let reader = free.shared("renew");
        let token = free.lock(&reader).await.tokens.first;
        let writer = free.claim("renew");
        free.waits(&writer).await;
        free.waits(&free.shared("renew")).await;
        let _: i64 = server
            .command(&["ZREM", "{renew}:fencelock:line", &writer.id.to_string()])
            .unwrap();
        Self {
            pushed: (push, pushed, place),
            withdrawn: (withdraw, next),
            evicted,
            renewed: (reader, token),
            deleted,
            given_back: Self::queued_without_waiting(&gated, &free, server).await,
            gated,
            free,
        }
    }

    /// A claim that is in the server's queue and does not wait here, as if it were withdrawn at the same time.
    async fn queued_without_waiting(
        gated: &Store,
        free: &Store,
        server: &Server,
    ) -> (Claim, Claim) {
        let (queue, who) = (
            "{give-back}:fencelock:line",
            "{give-back}:fencelock:line:who",
        );
        let (holder, unaware) = (free.claim("give-back"), gated.claim("give-back"));
        free.lock(&holder).await;
        gated.waits(&unaware).await;
        let id = unaware.id.to_string();
        let stored: String = server.command(&["HGET", who, &id]).unwrap();
        let ticket: String = server.command(&["ZSCORE", queue, &id]).unwrap();
        assert_eq!(gated.release(&unaware).await, Withdrawn::LeftQueue);
        free.waits(&free.claim("give-back")).await;
        let _: i64 = server.command(&["HSET", who, &id, &stored]).unwrap();
        let _: i64 = server.command(&["ZADD", queue, &ticket, &id]).unwrap();
        (holder, unaware)
    }

    /// Tries every way to a grant, at a server that must not grant yet.
    async fn nothing_is_granted(&self, server: &Server) {
        let Self { gated, free, .. } = self;
        self.are_connected(server).await;
        let impatient = gated.plain("place").wait(false);
        let error = gated.engine.place(&impatient).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");

        let (holder, pushed, place) = &self.pushed;
        assert_eq!(free.release(holder).await, Withdrawn::Released);
        // The push arrives before this reply.
        assert_eq!(self.holders("push").await, [pushed.id.to_string()]);
        let changed = gated.engine.wait(pushed, place);
        let changed = tokio::time::timeout(Duration::from_secs(5), changed).await;
        assert!(matches!(changed, Ok(Ok(None))), "by push: {changed:?}");

        let (holder, _) = &self.withdrawn;
        assert_eq!(gated.release(holder).await, Withdrawn::Released);
        assert!(self.holders("withdraw").await.is_empty(), "by withdrawal");

        let (holder, token) = &self.evicted;
        let evicted = gated
            .engine
            .inspect()
            .evict(&holder.name, *token, Evict::Release);
        assert!(evicted.await.unwrap());
        assert!(self.holders("evict").await.is_empty(), "by eviction");

        let (reader, token) = &self.renewed;
        let renewed = gated.renew(reader, *token).await;
        // The renewal may be unknown for a moment, while too few Sentinels answer.
        assert!(!matches!(renewed, Renewal::Lost), "{renewed:?}");
        let readers = self.holders("renew").await;
        assert_eq!(readers, [reader.id.to_string()], "by renewal");

        let (holder, token) = &self.deleted;
        let _: i64 = server.command(&["DEL", "poke"]).unwrap();
        let before = calls(server, "eval");
        while !matches!(gated.renew(holder, *token).await, Renewal::Lost) {
            tokio::time::sleep(ms(5)).await;
        }
        // The server does not have the scripts yet.
        while calls(server, "eval") < before + 2 {
            tokio::time::sleep(ms(2)).await;
        }
        assert!(
            self.holders("poke").await.is_empty(),
            "by serving the queue"
        );

        let (holder, unaware) = &self.given_back;
        assert_eq!(free.release(holder).await, Withdrawn::Released);
        let unaware = [unaware.id.to_string()];
        let mut holders = self.holders("give-back").await;
        while holders == unaware {
            tokio::time::sleep(ms(2)).await;
            holders = self.holders("give-back").await;
        }
        assert!(holders.is_empty(), "by giving back");
    }

    /// Waits until both stores listen at this server.
    async fn are_connected(&self, server: &Server) {
        let listen = || {
            let channels = server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "fencelock:*"]);
            channels.is_ok_and(|channels| channels.len() == 2)
        };
        let begin = Clock::Boot.now();
        while !listen() || self.look("push").await.is_none() {
            assert!(Clock::Boot.now().since(begin) < Duration::from_secs(20));
            tokio::time::sleep(ms(5)).await;
        }
    }

    async fn look(&self, name: &str) -> Option<Vec<String>> {
        let name = fencelock_core::LockName::new(name).unwrap();
        let view = self.gated.engine.inspect().look(&name).await.ok()?;
        let claims = view.holders.iter().filter_map(|holder| holder.claim);
        Some(claims.map(|claim| claim.to_string()).collect())
    }

    /// The claims that hold the lock.
    async fn holders(&self, name: &str) -> Vec<String> {
        self.look(name).await.unwrap()
    }

    /// Checks that the waiters are granted the lock, but not before this instant.
    async fn are_granted_from(&self, from: BootInstant) {
        for claim in [&self.pushed.1, &self.withdrawn.1] {
            let granted = self.gated.lock(claim);
            let granted = tokio::time::timeout(Duration::from_secs(30), granted).await;
            let Grant { counted_from, .. } = granted.unwrap();
            let early = from.since(counted_from);
            assert!(counted_from >= from, "{} {early:?} early", claim.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_nothing_is_granted_before_the_delay_is_over() {
    let mut server = Server::builder().append_only("always").start().unwrap();
    let delay = Duration::from_secs(6);
    let gated = open_with(&server, &format!("restart-delay=6s&{WINDOW}")).await;
    let free = open_with(&server, WINDOW).await;
    let locks = Locks::new(gated, free, &server).await;
    let before = Clock::Boot.now();
    server.restart().unwrap();
    locks.nothing_is_granted(&server).await;
    let judged = Clock::Boot.now().since(before);
    assert!(judged < delay, "too slow to tell: {judged:?}");
    locks.are_granted_from(before + delay).await;
}

/// No claim holds the lock, and a waiter that gives up learns why it was not granted.
#[tokio::test]
async fn a_waiter_learns_that_the_delay_is_not_over() {
    let server = Server::start().unwrap();
    let gated = open_with(&server, "restart-delay=1h").await;
    let client = Client::new(gated.engine).unwrap();
    let error = client.lock("a").timeout(ms(3000)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("restart-delay"), "{error}");
}

#[tokio::test]
async fn a_name_that_is_a_key_of_fencelock_is_refused() {
    let server = Server::start().unwrap();
    let store = open(&server.url()).await;
    for name in ["fencelock:counter", "{a}:fencelock:line"] {
        let error = store.engine.place(&store.claim(name)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{name}: {error}");
    }
    store.held(&store.claim("{a}:fencelocked")).await;
}

/// The server has lost its queue, but the waiter continues to wait.
#[tokio::test]
async fn after_a_restart_without_memory_a_claim_that_waited_is_granted_when_the_delay_is_over() {
    let mut server = Server::start().unwrap();
    let gated = open_with(&server, "restart-delay=2s").await;
    let free = open(&server.url()).await;
    let (holder, waiter) = (free.claim("a"), gated.claim("a"));
    free.held(&holder).await;
    let waiting = tokio::spawn(async move { gated.lock(&waiter).await });
    let begin = Clock::Boot.now();
    let queued = || server.command::<i64>(&["ZCARD", "{a}:fencelock:line"]);
    while queued().unwrap() == 0 {
        assert!(Clock::Boot.now().since(begin) < Duration::from_secs(20));
        tokio::time::sleep(ms(20)).await;
    }
    let before = Clock::Boot.now();
    server.restart_empty().unwrap();
    let granted = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let grant = granted.unwrap().unwrap();
    assert!(grant.counted_from >= before + Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_nothing_is_granted_before_the_delay_is_over() {
    let group = RedisSentinel::start().unwrap();
    let gated = format!("{}&promotion-delay=5s&{WINDOW}", group.url());
    // 4 s more than the option, so that every earlier lease has ended for all clients.
    let delay = Duration::from_secs(5 + 4);
    let (gated, free) = (
        open(&gated).await,
        open(&format!("{}&{WINDOW}", group.url())).await,
    );
    let master = &group.servers()[0];
    let locks = Locks::new(gated, free, master).await;
    // Replicas that have this key have everything before it.
    let _: String = master.command(&["SET", "mark", "1"]).unwrap();
    for replica in &group.servers()[1..] {
        while replica.command::<i64>(&["EXISTS", "mark"]).unwrap() == 0 {
            tokio::time::sleep(ms(5)).await;
        }
    }
    let before = Clock::Boot.now();
    master.kill9();
    let next = tokio::task::block_in_place(|| group.await_failover(0)).unwrap();
    locks.nothing_is_granted(&group.servers()[next]).await;
    let judged = Clock::Boot.now().since(before);
    assert!(judged < delay, "too slow to tell: {judged:?}");
    locks.are_granted_from(before + delay).await;
}
