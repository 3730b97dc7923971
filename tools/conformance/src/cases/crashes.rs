//! Processes that are killed or stopped.

use std::time::Duration;

use fencelock::{Error, Evict, LeaseKind, Mode, Promises, Sequencer, Token};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, until, wait_for};
use crate::remote::Wanted;

pub(super) static CASES: &[Case] = &[
    case!(a_killed_holder_frees_the_lock_after_its_lease)
        .processes()
        .promised(outlives_connections),
    case!(a_killed_holder_frees_the_lock_with_its_connection)
        .processes()
        .promised(ends_with_its_connection),
    case!(a_killed_holder_leaves_its_lock_delay)
        .processes()
        .promised(delays),
    case!(a_killed_holder_that_had_waited_leaves_its_lock_delay)
        .processes()
        .promised(delays),
    case!(an_operator_cuts_a_lock_delay_short)
        .processes()
        .promised(delays),
    case!(a_killed_waiter_does_not_block_the_queue).processes(),
    case!(a_killed_waiting_writer_does_not_hold_up_readers)
        .processes()
        .promised(shares),
    case!(a_stopped_holder_believes_nothing_afterwards).processes(),
    case!(a_stopped_waiter_does_not_block_the_queue).processes(),
];

fn delays(promises: &Promises) -> bool {
    promises.lock_delay
}

fn shares(promises: &Promises) -> bool {
    promises.shared
}

fn outlives_connections(promises: &Promises) -> bool {
    !ends_with_its_connection(promises)
}

fn ends_with_its_connection(promises: &Promises) -> bool {
    promises.lease == LeaseKind::Connection
}

/// How late a busy machine may notice the end of a lease or a claim window.
const SLACK: Duration = Duration::from_secs(8);

async fn a_killed_holder_frees_the_lock_after_its_lease(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2500);
    let mut holder = ctx.remote().await;
    let held = holder.take(Wanted::new(&name, ttl)).await;
    let waiter = wait_for(&client, &name);
    ctx.await_queued(&ctx.client().await, &name, 1).await;
    holder.process().kill9();
    let killed = Instant::now();
    let error = client.try_lock(&name).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    let next = got("the lock after the lease", waiter).await;
    let after = killed.elapsed();
    assert!(after <= ttl + SLACK, "free only after {after:?}");
    assert!(next.token().get() > held["token"].as_u64().unwrap());
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_killed_holder_frees_the_lock_with_its_connection(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let mut holder = ctx.remote().await;
    let held = holder
        .take(Wanted::new(&name, Duration::from_secs(60)))
        .await;
    let waiter = wait_for(&client, &name);
    ctx.await_queued(&ctx.client().await, &name, 1).await;
    holder.process().kill9();
    let killed = Instant::now();
    let next = got("the lock, long before its lease is over", waiter).await;
    let after = killed.elapsed();
    assert!(after <= SLACK, "free only after {after:?}");
    assert!(next.token().get() > held["token"].as_u64().unwrap());
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_killed_holder_leaves_its_lock_delay(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let ttl = ctx.ttl(1500);
    // Longer than any lease without a lock-delay: some stores count in seconds or poll.
    let lock_delay = ttl + Duration::from_secs(3);
    let mut holder = ctx.remote().await;
    let wanted = Wanted {
        lock_delay,
        ..Wanted::new(&name, ttl)
    };
    holder.take(wanted).await;
    let waiter = wait_for(&client, &name);
    holder.process().kill9();
    let killed = Instant::now();
    let next = got("the lock after lease and lock-delay", waiter).await;
    let after = killed.elapsed();
    // The lock-delay follows the rest of the lease.
    assert!(after >= lock_delay, "free after {after:?}");
    assert!(
        after <= ttl + lock_delay + SLACK,
        "free only after {after:?}"
    );
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

/// A waiter's place in the queue does not extend a hold by its lock-delay.
async fn a_killed_holder_that_had_waited_leaves_its_lock_delay(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let ttl = ctx.ttl(1500);
    // Longer than the store keeps the place of a silent waiter.
    let lock_delay = ctx.claim_window() + ttl + Duration::from_secs(1);
    let guard = take(&client, &name).await;
    let mut holder = ctx.remote().await;
    let asked = holder.lock(Wanted {
        lock_delay,
        ..Wanted::new(&name, ttl)
    });
    ctx.await_queued(&client, &name, 1).await;
    guard.release().await.unwrap();
    holder.answer("it has its turn", asked).await;
    let waiter = wait_for(&client, &name);
    holder.process().kill9();
    let killed = Instant::now();
    let next = got("the lock after lease and lock-delay", waiter).await;
    let after = killed.elapsed();
    assert!(after >= lock_delay, "free after {after:?}");
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

/// The eviction is fenced by the token, like every other one.
async fn an_operator_cuts_a_lock_delay_short(ctx: Ctx) {
    let (client, operator, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2000);
    let mut holder = ctx.remote().await;
    let wanted = Wanted {
        lock_delay: Duration::from_secs(600),
        ..Wanted::new(&name, ttl)
    };
    let held = holder.take(wanted).await;
    let token = Token(held["token"].as_u64().unwrap());
    let waiter = wait_for(&client, &name);
    ctx.await_queued(&operator, &name, 1).await;
    let view = operator.look(&name).await.unwrap();
    let sequencer = Sequencer::new(
        view.name,
        Mode::Exclusive,
        token,
        view.holders[0].claim.unwrap(),
    );
    assert!(operator.check(&sequencer).await.unwrap());
    holder.process().kill9();
    // Until the lease itself has ended.
    sleep(ttl * 5 / 4).await;
    // The lock is not free, but has no live holder. A session does not show how much time is left.
    if ctx.promises().lease == LeaseKind::Lease {
        assert!(!operator.check(&sequencer).await.unwrap());
    }
    assert!(!waiter.is_finished(), "granted within the lock-delay");
    let wrong = Token(token.get() + 1);
    assert!(!operator.evict(&name, wrong, Evict::Release).await.unwrap());
    assert!(!waiter.is_finished());
    assert!(operator.evict(&name, token, Evict::Release).await.unwrap());
    let next = got("the lock without the rest of the lock-delay", waiter).await;
    assert!(next.token() > token);
    assert!(!operator.evict(&name, token, Evict::Release).await.unwrap());
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_killed_waiter_does_not_block_the_queue(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let mut first = ctx.remote().await;
    // With a long ttl, so that its turn does not end with the lease of the killed process.
    first.lock(Wanted::new(&name, Duration::from_secs(60)));
    ctx.await_queued(&one, &name, 1).await;
    let second = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 2).await;
    first.process().kill9();
    let released = Instant::now();
    guard.release().await.unwrap();
    let next = got("the second in the queue is served", second).await;
    let after = released.elapsed();
    assert!(
        after <= ctx.claim_window() + SLACK,
        "served only after {after:?}"
    );
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_killed_waiting_writer_does_not_hold_up_readers(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    // A reader holds all the time, so the writer's turn never comes.
    let reader = one.lock(&name).shared().await.unwrap();
    let mut writer = ctx.remote().await;
    writer.lock(Wanted::new(&name, Duration::from_secs(60)));
    ctx.await_queued(&one, &name, 1).await;
    writer.process().kill9();
    let killed = Instant::now();
    // A store learns of a waiter's death only when the waiter stays silent.
    let bound = 3 * ctx.claim_window() + SLACK;
    let beside = two.lock(&name).timeout(bound).shared().await.unwrap();
    assert!(killed.elapsed() <= bound);
    assert!(reader.is_valid() && beside.is_valid());
    reader.release().await.unwrap();
    beside.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_stopped_holder_believes_nothing_afterwards(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let mut holder = ctx.remote().await;
    let held = holder.take(Wanted::new(&name, ctx.ttl(700))).await;
    let waiter = wait_for(&client, &name);
    holder.process().pause().unwrap();
    let next = got("the lock after the lease", waiter).await;
    // This is sent before the process continues, so that the process reads it first.
    let asked = holder.ask(json!({"do": "see", "guard": held["guard"]}));
    let lost = holder.ask(json!({"do": "lost", "guard": held["guard"]}));
    holder.process().resume().unwrap();
    let seen = holder.answer("the holder answers", asked).await;
    assert_eq!(seen["valid"], false, "two believe to hold");
    let lost = holder.answer("the holder learns of its loss", lost).await;
    assert!(!lost["reason"].as_str().unwrap().is_empty());
    // Its earlier and later requests do not affect the next holder.
    sleep(Duration::from_millis(300)).await;
    next.sequencer().await.unwrap();
    assert!(next.is_valid());
    assert_eq!(
        client.look(&name).await.unwrap().token(),
        Some(next.token())
    );
    let released = holder.ask(json!({"do": "release", "guard": held["guard"]}));
    drop(holder.answer_or_error("the late release", released).await);
    assert_eq!(
        client.look(&name).await.unwrap().token(),
        Some(next.token())
    );
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_stopped_waiter_does_not_block_the_queue(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let mut first = ctx.remote().await;
    let asked = first.lock(Wanted::new(&name, Duration::from_secs(60)));
    ctx.await_queued(&one, &name, 1).await;
    let second = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 2).await;
    first.process().pause().unwrap();
    let released = Instant::now();
    guard.release().await.unwrap();
    let next = got("the second in the queue is served", second).await;
    let after = released.elapsed();
    assert!(
        after <= ctx.claim_window() + SLACK,
        "served only after {after:?}"
    );
    let token = next.token().get();
    first.process().resume().unwrap();
    sleep(Duration::from_millis(200)).await;
    assert!(next.is_valid());
    next.release().await.unwrap();
    // It gets the lock in the end, by a new grant.
    let held = first.answer("the first is served after all", asked).await;
    assert!(held["token"].as_u64().unwrap() > token, "{held}");
    let released = first.ask(json!({"do": "release", "guard": held["guard"]}));
    soon("its release", first.answer("its release", released)).await;
    until("the lock is free", async || {
        one.look(&name).await.unwrap().holders.is_empty()
    })
    .await;
    ctx.await_nothing_left().await;
}
