//! Recipes for one Redis.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::layers::{Fault, Trouble};
use fencelock::{DEFAULT_TTL, Guard, Release};
use fencelock_testbed::{Failure, Flow, Proxy, Redis, Result};

use super::story::{
    LOCK, LONG_LEASE, PAST, Scenario, Side, Sides, TTL, beside, let_go, open, take, take_for,
};
use crate::register::Marks;

/// The ttl, in milliseconds, of holders in the recipes that do not stall.
pub(super) const LONG: &str = "30000";

pub(super) static SCENARIOS: &[Scenario] = &[
    scenario!(
        "setnx-expire",
        "SETNX, then EXPIRE, and a crash in between",
        setnx_expire
    ),
    scenario!(
        "getset-skew",
        "an expiry as the value, stolen by a client whose clock is ahead",
        getset_skew
    ),
    scenario!(
        "getset-overwrite",
        "the loser of a race for an expired lock overwrites the winner's expiry",
        getset_overwrite
    ),
    scenario!(
        "timestamp-owner",
        "a timestamp as the owner's mark, drawn twice",
        timestamp_owner
    ),
    scenario!(
        "random-fence",
        "a random number as the fencing token",
        random_fence
    ),
    scenario!(
        "del-other",
        "DEL at the end, even of another client's lock",
        del_other
    ),
    scenario!(
        "get-compare-del",
        "GET, compare, DEL: in two steps",
        get_compare_del
    ),
    scenario!(
        "pause",
        "a pause past the lease, and a write after it",
        pause
    ),
];

/// Sends a command of the recipe, and records it.
pub(super) fn say<T>(redis: &Redis, side: &mut Side, who: &'static str, words: &[&str]) -> Result<T>
where
    T: ::redis::FromRedisValue + std::fmt::Debug,
{
    let answer = redis.command(words)?;
    side.note(who, format!("{} -> {answer:?}", words.join(" ")));
    Ok(answer)
}

/// `SET NX PX`: "OK", or nothing if the key is there.
fn set(
    redis: &Redis,
    side: &mut Side,
    who: &'static str,
    value: &str,
    ttl: Duration,
) -> Result<Option<String>> {
    let ttl = ttl.as_millis().to_string();
    say(redis, side, who, &["SET", LOCK, value, "NX", "PX", &ttl])
}

async fn setnx_expire() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    say::<i64>(&redis, &mut naive, "A", &["SETNX", LOCK, "A"])?;
    naive.note("A", "is killed before its EXPIRE");
    sleep(PAST);
    let got: i64 = say(&redis, &mut naive, "B", &["SETNX", LOCK, "B"])?;
    let left: i64 = say(&redis, &mut naive, "B", &["PTTL", LOCK])?;
    let naive = naive.end(
        got == 1 || left >= 0,
        "the lock never expires: no client will ever get it again",
    );

    redis.command::<()>(&["FLUSHALL"])?;
    let mut ours = Side::begin();
    let good = after_a_crash(&redis.url(), &mut ours).await?;
    let ours = ours.end(
        good,
        "lock and lease were set in one step; B got the lock when the lease ended",
    );
    Ok([naive, ours])
}

/// A acquires the lock and dies before it knows. True if B gets it when the lease ends, and not before.
pub(super) async fn after_a_crash(url: &str, ours: &mut Side) -> Result<bool> {
    // The request takes effect, but its sender dies before the answer.
    let of_crashed = url.to_owned();
    let crashed = std::thread::spawn(move || crash_in_acquisition(&of_crashed)).join();
    crashed.map_err(|_| Failure::new("the process that crashes panicked"))??;
    ours.note("A", "asks for the lock, and dies before the answer");
    let client = open(url).await?;
    let guard = take(&client, ours, "B").await?;
    let waited = ours.begin.elapsed();
    Ok(let_go(guard, ours, "B").await? == Release::Released && waited >= TTL / 2)
}

/// The server sees this as another process, which sends its requests and then dies.
fn crash_in_acquisition(url: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| Failure::new(e.to_string()))?;
    runtime.block_on(async {
        let lose = |engine: Arc<dyn Engine>| -> Arc<dyn Engine> {
            let (engine, faults) = Fault::new(engine);
            faults.next([Trouble::LoseReply]);
            faults.by_chance(|_| Trouble::LoseRequest);
            Arc::new(engine)
        };
        let client = fencelock::connect(url).layer(lose).await;
        let client = client.map_err(|error| Failure::new(error.to_string()))?;
        // An error, since no answer arrives.
        drop(client.try_lock(LOCK).ttl(TTL).await);
        Ok(())
    })
}

async fn getset_skew() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    let expiry = 1_000_000 + 10_000;
    say::<i64>(
        &redis,
        &mut naive,
        "A",
        &["SETNX", LOCK, &expiry.to_string()],
    )?;
    naive.note("A", "has the lock until 1010000, by its clock (1000000)");
    let seen: i64 = say(&redis, &mut naive, "B", &["GET", LOCK])?;
    let ahead = 1_000_000 + 60_000;
    naive.note(
        "B",
        format!("its clock shows {ahead}, a minute more: the lock has expired"),
    );
    let mine = (ahead + 10_000).to_string();
    let stolen: i64 = say(&redis, &mut naive, "B", &["GETSET", LOCK, &mine])?;
    let naive = naive.end(
        seen >= ahead || stolen != seen,
        "A and B both have the lock",
    );

    redis.command::<()>(&["FLUSHALL"])?;
    let mut ours = Side::begin();
    let (one, two) = (open(&redis.url()).await?, open(&redis.url()).await?);
    let first = take_for(&one, &mut ours, "A", LONG_LEASE).await?;
    let early = two.try_lock(LOCK).ttl(TTL).await;
    ours.note("B", "only the server's clock matters: the lock is held");
    let kept = early.is_err() && first.is_valid();
    let released = let_go(first, &mut ours, "A").await?;
    let second = take(&two, &mut ours, "B").await?;
    drop(second);
    let ours = ours.end(kept && released == Release::Released, "B waited for A");
    Ok([naive, ours])
}

async fn getset_overwrite() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    redis.command::<()>(&["SET", LOCK, "1000"])?;
    naive.note("-", "the lock expired at 1000; it is 2000 now");
    let winner: i64 = say(&redis, &mut naive, "B", &["GETSET", LOCK, "2300"])?;
    naive.note("B", "the old value has expired: B has the lock until 2300");
    let loser: i64 = say(&redis, &mut naive, "C", &["GETSET", LOCK, "2900"])?;
    naive.note("C", "the old value has not expired: C has lost the race");
    let value: i64 = say(&redis, &mut naive, "B", &["GET", LOCK])?;
    naive.note(
        "B",
        "wants to release, but finds another value than its own",
    );
    let naive = naive.end(
        winner != 1000 || loser != 2300 || value == 2300,
        "B cannot release its lock, which stays taken until C's 2900",
    );

    redis.command::<()>(&["FLUSHALL"])?;
    let mut ours = Side::begin();
    let (one, two) = (open(&redis.url()).await?, open(&redis.url()).await?);
    let winner = take_for(&one, &mut ours, "B", LONG_LEASE).await?;
    let loser = two.try_lock(LOCK).ttl(10 * DEFAULT_TTL).await;
    ours.note("C", "has lost the race, and changed nothing");
    let left = winner
        .ttl()
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    let same = loser.is_err() && left.is_some_and(|left| left <= DEFAULT_TTL);
    let released = let_go(winner, &mut ours, "B").await?;
    let ours = ours.end(
        same && released == Release::Released,
        "B's lease stayed B's",
    );
    Ok([naive, ours])
}

async fn timestamp_owner() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    let stamp = "1795260796412";
    naive.note(
        "-",
        "A's clock is behind B's: both will use the same millisecond",
    );
    set(&redis, &mut naive, "A", stamp, TTL)?;
    sleep(PAST);
    naive.note("A", "stalls past its lease");
    set(&redis, &mut naive, "B", stamp, LONG_LEASE)?;
    let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let deleted: i64 = redis.command(&["EVAL", script, "1", LOCK, stamp])?;
    naive.note(
        "A",
        format!("releases the lock with its mark, in one step -> {deleted}"),
    );
    let third = set(&redis, &mut naive, "C", "x", TTL)?;
    let naive = naive.end(
        third.is_none(),
        "A has released B's lock, and C holds at the same time as B",
    );

    let ours = late_release(&redis, "every claim has its own id; B kept the lock").await?;
    Ok([naive, ours])
}

/// This library, where a holder stalls past its lease and then releases.
async fn late_release(redis: &Redis, good: &'static str) -> Result<Side> {
    redis.command::<()>(&["FLUSHALL"])?;
    let mut ours = Side::begin();
    let (one, two) = (open(&redis.url()).await?, open(&redis.url()).await?);
    let third = open(&redis.url()).await?;
    let late = take(&one, &mut ours, "A").await?;
    tokio::time::sleep(PAST).await;
    ours.note(
        "A",
        format!("stalls past its lease; is_valid() says {}", late.is_valid()),
    );
    let lost = !late.is_valid();
    let next = take_for(&two, &mut ours, "B", LONG_LEASE).await?;
    let released = let_go(late, &mut ours, "A").await?;
    let beside = beside(&third, &mut ours, "C").await;
    let kept = lost && released != Release::Released && !beside && next.is_valid();
    let_go(next, &mut ours, "B").await?;
    Ok(ours.end(kept, good))
}

async fn random_fence() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    let mut fence = Marks::default();
    // Possible results of a random generator.
    let (first, second) = ("7301", "2265");
    set(&redis, &mut naive, "A", first, TTL)?;
    sleep(PAST);
    naive.note("A", "stalls past its lease");
    set(&redis, &mut naive, "B", second, LONG_LEASE)?;
    let stale = fence.admit(7301, "A", false);
    naive.note("A", format!("writes with 7301: {}", taken(stale)));
    let holder = fence.admit(2265, "B", false);
    naive.note("B", format!("writes with 2265: {}", taken(holder)));
    let naive = naive.end(
        !stale || holder,
        "the resource took the write of A, which had lost the lock, and refuses the holder",
    );

    redis.command::<()>(&["FLUSHALL"])?;
    let ours = fenced_pause(&redis, true).await?;
    Ok([naive, ours])
}

fn taken(taken: bool) -> &'static str {
    match taken {
        true => "the resource takes it",
        false => "the resource refuses it",
    }
}

/// This library, where a holder stalls past its lease and then writes without a check.
async fn fenced_pause(redis: &Redis, stale_first: bool) -> Result<Side> {
    let mut ours = Side::begin();
    let mut fence = Marks::default();
    let (one, two) = (open(&redis.url()).await?, open(&redis.url()).await?);
    let late = take(&one, &mut ours, "A").await?;
    tokio::time::sleep(PAST).await;
    ours.note(
        "A",
        format!("stalls past its lease; is_valid() says {}", late.is_valid()),
    );
    let lost = !late.is_valid();
    let next = take_for(&two, &mut ours, "B", LONG_LEASE).await?;
    let mut write = |side: &mut Side, who, guard: &Guard| {
        let took = fence.admit(guard.token().get(), &guard.claim_id().to_string(), false);
        side.note(who, format!("writes with its token: {}", taken(took)));
        took
    };
    if stale_first {
        // No newer holder has written yet, so the write does no harm.
        write(&mut ours, "A", &late);
    }
    let holder = write(&mut ours, "B", &next);
    let stale = write(&mut ours, "A", &late);
    let_go(next, &mut ours, "B").await?;
    let_go(late, &mut ours, "A").await?;
    Ok(ours.end(
        lost && holder && !stale,
        "A learned of the loss, and the fence refused its write after that of B",
    ))
}

async fn del_other() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    set(&redis, &mut naive, "A", "A", TTL)?;
    sleep(PAST);
    naive.note("A", "stalls past its lease");
    set(&redis, &mut naive, "B", "B", LONG_LEASE)?;
    say::<i64>(&redis, &mut naive, "A", &["DEL", LOCK])?;
    let third = set(&redis, &mut naive, "C", "C", TTL)?;
    let naive = naive.end(
        third.is_none(),
        "A has released B's lock, and C holds at the same time as B",
    );
    let ours = late_release(&redis, "A's release changed only its own lock").await?;
    Ok([naive, ours])
}

async fn get_compare_del() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    set(&redis, &mut naive, "A", "A", TTL)?;
    say::<String>(&redis, &mut naive, "A", &["GET", LOCK])?;
    naive.note("A", "it is its own value; then A stalls");
    sleep(PAST);
    set(&redis, &mut naive, "B", "B", LONG_LEASE)?;
    say::<i64>(&redis, &mut naive, "A", &["DEL", LOCK])?;
    let third = set(&redis, &mut naive, "C", "C", TTL)?;
    let naive = naive.end(
        third.is_none(),
        "A has released B's lock, and C holds at the same time as B",
    );

    redis.command::<()>(&["FLUSHALL"])?;
    let mut ours = Side::begin();
    let proxy = Proxy::start(redis.port())?;
    let slow = open(&redis.url_at(proxy.port())).await?;
    let (two, three) = (open(&redis.url()).await?, open(&redis.url()).await?);
    let late = take(&slow, &mut ours, "A").await?;
    // The release begins in time, but its request is in flight until the lease has ended.
    proxy.requests(Flow::Hold);
    ours.note("A", "releases; its request is stuck in the network");
    let release = tokio::spawn(late.release());
    let next = take_for(&two, &mut ours, "B", LONG_LEASE).await?;
    proxy.requests(Flow::Pass);
    let released = release.await;
    ours.note("A", "the request arrives");
    // The release must not have changed B's lock.
    drop(released);
    let beside = beside(&three, &mut ours, "C").await;
    let kept = !beside && next.is_valid();
    let_go(next, &mut ours, "B").await?;
    let ours = ours.end(
        kept,
        "the server compared and deleted in one step: B kept the lock",
    );
    Ok([naive, ours])
}

async fn pause() -> Result<Sides> {
    let redis = Redis::start()?;
    let mut naive = Side::begin();
    set(&redis, &mut naive, "A", "A", TTL)?;
    sleep(PAST);
    naive.note("A", "stalls past its lease");
    set(&redis, &mut naive, "B", "B", LONG_LEASE)?;
    let mut written = "B's";
    naive.note("B", "writes");
    let still: String = say(&redis, &mut naive, "-", &["GET", LOCK])?;
    if still == "B" {
        written = "A's";
        naive.note("A", "continues where it was, and writes");
    }
    let naive = naive.end(written == "B's", "A has overwritten what B wrote");

    redis.command::<()>(&["FLUSHALL"])?;
    let ours = fenced_pause(&redis, false).await?;
    Ok([naive, ours])
}
