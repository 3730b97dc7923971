//! Servers that hang, die and come back, and networks that lose, hold and cut.

use std::time::Duration;

use fencelock::{Client, Clock, Durability, Error, Guard, LeaseKind, Promises, Release, Result};
use fencelock_testbed::Flow;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, until, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(a_cut_holder_knows_before_the_next_is_granted).server(),
    case!(a_hung_server_ends_validity_in_time).server(),
    case!(a_late_renewal_revives_nothing).server(),
    case!(a_server_that_hangs_for_a_moment_costs_nothing).server(),
    case!(a_killed_server_that_remembers_keeps_holds)
        .server()
        .promised(remembers),
    case!(waiters_survive_a_restart)
        .server()
        .promised(remembers),
    case!(cut_connections_cost_neither_hold_nor_place)
        .server()
        .promised(outlives_connections),
    case!(a_grant_whose_answer_is_lost_is_undone).server(),
    case!(a_release_whose_answer_is_lost_is_done).server(),
    case!(requests_that_come_late_hold_nothing).server(),
    case!(everything_works_over_a_slow_network).server(),
];

/// The ttl of a hold that must outlive a restart, which takes time on a busy machine.
const BEYOND_A_RESTART: Duration = Duration::from_secs(12);

/// A hold after its first renewal. Before that renewal, the store may keep it for a claim window only.
async fn has_its_lease(client: &Client, name: &str, ttl: Duration) -> Guard {
    let guard = soon("the lock", client.lock(name).ttl(ttl)).await;
    let guard = guard.unwrap();
    let refreshed = soon("a renewal", guard.refresh(ttl)).await;
    refreshed.unwrap();
    guard
}

fn remembers(promises: &Promises) -> bool {
    promises.durability != Durability::Volatile
}

fn outlives_connections(promises: &Promises) -> bool {
    promises.lease != LeaseKind::Connection
}

async fn held_by(client: &Client, guard: &Guard) -> bool {
    let view = client.look(guard.name().as_str()).await.unwrap();
    view.holders
        .iter()
        .any(|holder| holder.claim == Some(guard.claim_id()))
}

async fn a_cut_holder_knows_before_the_next_is_granted(ctx: Ctx) {
    let (cut, near, name) = (ctx.proxied().await, ctx.client().await, ctx.name());
    let proxy = ctx.server().proxy();
    for flow in [Flow::Hold, Flow::Lose] {
        let guard = soon("the lock", cut.lock(&name).ttl(ctx.ttl(2000)))
            .await
            .unwrap();
        let waiter = wait_for(&near, &name);
        // After a successful renewal, so that the cut also stops renewals.
        soon("a renewal", guard.prolonged()).await;
        proxy.both(flow);
        let next = got("the lock after the lease", waiter).await;
        let granted = Clock::Boot.now();
        assert!(
            !guard.is_valid() && guard.valid_until() < granted,
            "two believe to hold"
        );
        soon("the holder learns of it", guard.lost()).await;
        // The held bytes arrive now. They must not affect the next holder.
        proxy.both(Flow::Pass);
        if flow == Flow::Lose {
            proxy.reset();
        }
        let late = soon("the late release is answered", guard.release()).await;
        assert!(!matches!(late, Ok(Release::Released)), "{late:?}");
        sleep(Duration::from_millis(300)).await;
        assert!(next.is_valid() && held_by(&near, &next).await);
        next.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn a_hung_server_ends_validity_in_time(ctx: Ctx) {
    let clients = [&ctx.client().await, &ctx.client().await];
    let mut late: Vec<Duration> = Vec::new();
    // A busy machine may wake the holder late once, but not each time.
    while late
        .last()
        .is_none_or(|late| *late >= Duration::from_millis(500))
    {
        assert!(late.len() < 3, "told {late:?} after the end of validity");
        late.push(told_of_a_hung_server(&ctx, clients).await);
    }
    ctx.await_nothing_left().await;
}

/// How long after the end of its validity a holder knows of it while the server hangs.
async fn told_of_a_hung_server(ctx: &Ctx, [one, two]: [&Client; 2]) -> Duration {
    let name = ctx.name();
    let guard = soon("the lock", one.lock(&name).ttl(ctx.ttl(900)))
        .await
        .unwrap();
    ctx.server().pause().unwrap();
    soon("the loss", guard.lost()).await;
    let heard = Clock::Boot.now();
    assert!(!guard.is_valid());
    let late = heard.since(guard.valid_until());
    ctx.server().resume().unwrap();
    let next = got("the lock when the server is back", wait_for(two, &name)).await;
    assert!(next.token() > guard.token());
    drop(guard);
    let other = format!("{name}/other");
    let again = got("the other client is back, too", wait_for(one, &other)).await;
    assert!(next.is_valid());
    again.release().await.unwrap();
    next.release().await.unwrap();
    late
}

/// The server renews the hold in time, but its answer arrives after the client has given up.
async fn a_late_renewal_revives_nothing(ctx: Ctx) {
    let (far, near, name) = (ctx.proxied().await, ctx.client().await, ctx.name());
    let proxy = ctx.server().proxy();
    let guard = soon("the lock", far.lock(&name).ttl(ctx.ttl(600)))
        .await
        .unwrap();
    proxy.answers(Flow::Hold);
    let waiter = wait_for(&near, &name);
    soon("the loss", guard.lost()).await;
    proxy.answers(Flow::Pass);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        assert!(
            !guard.is_valid() && guard.remaining().is_zero(),
            "what is lost stays lost"
        );
        sleep(Duration::from_millis(1)).await;
    }
    let error = guard.refresh(Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let error = guard.sequencer().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_ne!(
        soon("the late release", guard.release()).await.ok(),
        Some(Release::Released)
    );
    got("the lock after the lease", waiter)
        .await
        .release()
        .await
        .unwrap();
    ctx.await_nothing_left().await;
}

async fn a_server_that_hangs_for_a_moment_costs_nothing(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = has_its_lease(&one, &name, Duration::from_secs(6)).await;
    let waiter = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 1).await;
    ctx.server().pause().unwrap();
    // Longer than the timeout of a request, shorter than the lease, and with one renewal inside.
    sleep(Duration::from_millis(2500)).await;
    ctx.server().resume().unwrap();
    soon("a renewal", guard.prolonged()).await;
    if !guard.is_valid() {
        panic!("it was lost: {}", guard.lost().await);
    }
    assert!(!waiter.is_finished(), "it ended: {:?}", waiter.await);
    assert_eq!(
        soon("the release", guard.release()).await.unwrap(),
        Release::Released
    );
    got("the waiter is served", waiter)
        .await
        .release()
        .await
        .unwrap();
    ctx.await_nothing_left().await;
}

async fn a_killed_server_that_remembers_keeps_holds(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = has_its_lease(&one, &name, BEYOND_A_RESTART).await;
    ctx.server().kill9();
    let down = soon("an answer", two.try_lock(&name)).await.unwrap_err();
    assert!(matches!(down, Error::Unavailable { .. }), "{down:?}");
    ctx.server().restart().unwrap();
    until(
        "the other client finds the server again",
        async || match two.try_lock(&name).await {
            Err(Error::Held { .. }) => true,
            Err(Error::Unavailable { .. }) => false,
            other => panic!("the hold survived: {other:?}"),
        },
    )
    .await;
    soon("a renewal at the new server", guard.prolonged()).await;
    assert!(guard.is_valid() && held_by(&two, &guard).await);
    assert_eq!(
        soon("the release", guard.release()).await.unwrap(),
        Release::Released
    );
    take(&two, &name).await.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn waiters_survive_a_restart(ctx: Ctx) {
    let (one, two, three) = (ctx.client().await, ctx.client().await, ctx.client().await);
    let name = ctx.name();
    let guard = has_its_lease(&one, &name, BEYOND_A_RESTART).await;
    let first = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 1).await;
    let second = wait_for(&three, &name);
    ctx.await_queued(&one, &name, 2).await;
    ctx.server().restart().unwrap();
    soon("a renewal at the new server", guard.prolonged()).await;
    assert!(!first.is_finished() && !second.is_finished());
    guard.release().await.unwrap();
    let next = got("the first in the queue is served", first).await;
    next.release().await.unwrap();
    got("the second in the queue is served", second)
        .await
        .release()
        .await
        .unwrap();
    ctx.await_nothing_left().await;
}

async fn cut_connections_cost_neither_hold_nor_place(ctx: Ctx) {
    let (one, two, near) = (ctx.proxied().await, ctx.proxied().await, ctx.client().await);
    let name = ctx.name();
    let guard = soon("the lock", one.lock(&name).ttl(Duration::from_secs(5)))
        .await
        .unwrap();
    let waiter = wait_for(&two, &name);
    ctx.await_queued(&near, &name, 1).await;
    for _ in 0..3 {
        ctx.server().proxy().reset();
        soon("a renewal on a new connection", guard.prolonged()).await;
    }
    assert!(guard.is_valid() && !waiter.is_finished());
    ctx.server().proxy().reset();
    let released = soon("the release", guard.release()).await;
    assert!(
        matches!(
            released,
            Ok(Release::Released) | Err(Error::Unavailable { .. })
        ),
        "{released:?}"
    );
    got("the waiter is served", waiter)
        .await
        .release()
        .await
        .unwrap();
    ctx.await_nothing_left().await;
}

/// A client does what must come before its first request for a lock.
async fn know_the_store(client: &Client, name: &str) {
    let guard = take(client, &format!("{name}/before")).await;
    guard.release().await.unwrap();
}

/// Requests a lock with a wait, in a task of its own. Without a wait some engines would look at the lock first.
fn ask(
    client: &Client,
    name: &str,
    ttl: Duration,
    patience: Duration,
) -> JoinHandle<Result<Guard>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(&name).timeout(patience).ttl(ttl).await })
}

/// The server grants the lock, and the answer is lost.
async fn a_grant_whose_answer_is_lost_is_undone(ctx: Ctx) {
    let (far, near) = (ctx.proxied().await, ctx.client().await);
    // The names are in one slot of a cluster.
    let name = format!("{{{}}}", ctx.name());
    let proxy = ctx.server().proxy();
    // The client connects first: it can see the grant only until the other client gives up.
    let patience = Duration::from_millis(2500);
    near.look(&name).await.unwrap();
    for (round, flow) in [Flow::Hold, Flow::Lose].into_iter().enumerate() {
        know_the_store(&far, &name).await;
        let name = format!("{name}/{round}");
        proxy.answers(flow);
        let asked = ask(&far, &name, ctx.ttl(30_000), patience);
        // A hold that is bound to a connection is recorded only after its holder knows of it.
        if outlives_connections(ctx.promises()) {
            until("the server granted it", async || {
                near.look(&name).await.unwrap().holders.len() == 1
            })
            .await;
        }
        let error = soon("an error", asked).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        proxy.answers(Flow::Pass);
        proxy.reset();
        let begin = Instant::now();
        let guard = got(
            "the lock, long before a lease is over",
            wait_for(&near, &name),
        )
        .await;
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(20), "free only after {took:?}");
        guard.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn a_release_whose_answer_is_lost_is_done(ctx: Ctx) {
    let (far, near, name) = (ctx.proxied().await, ctx.client().await, ctx.name());
    // A first hold, so that the server knows the script or prepared statement of a release.
    let guard = take(&far, &name).await;
    let waiter = wait_for(&near, &name);
    ctx.await_queued(&near, &name, 1).await;
    guard.release().await.unwrap();
    got("the waiter is served", waiter)
        .await
        .release()
        .await
        .unwrap();
    let guard = take(&far, &name).await;
    let waiter = wait_for(&near, &name);
    ctx.await_queued(&near, &name, 1).await;
    ctx.server().proxy().answers(Flow::Lose);
    let released = tokio::spawn(guard.release());
    let next = got("the waiter is served", waiter).await;
    let error = soon("an error", released).await.unwrap();
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
    ctx.server().proxy().answers(Flow::Pass);
    ctx.server().proxy().reset();
    // The client repeats the release until it is confirmed. The release never affects the next holder.
    take(&far, &format!("{name}/other"))
        .await
        .release()
        .await
        .unwrap();
    sleep(Duration::from_millis(300)).await;
    assert!(next.is_valid() && held_by(&near, &next).await);
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

/// The network holds a request back, and delivers it long after its sender has given up.
async fn requests_that_come_late_hold_nothing(ctx: Ctx) {
    let (far, near) = (ctx.proxied().await, ctx.client().await);
    // The names are in one slot of a cluster.
    let name = format!("{{{}}}", ctx.name());
    let proxy = ctx.server().proxy();
    know_the_store(&far, &name).await;
    proxy.requests(Flow::Hold);
    let ttl = ctx.ttl(2000);
    let asked = ask(&far, &name, ttl, Duration::from_secs(1));
    let error = soon("an error", asked).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    sleep(Duration::from_millis(500)).await;
    proxy.requests(Flow::Pass);
    let begin = Instant::now();
    let guard = got("the lock", wait_for(&near, &name)).await;
    let took = begin.elapsed();
    assert!(
        took < ttl + Duration::from_secs(4),
        "free only after {took:?}"
    );
    guard.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn everything_works_over_a_slow_network(ctx: Ctx) {
    let (far, near, name) = (ctx.proxied().await, ctx.client().await, ctx.name());
    ctx.server()
        .proxy()
        .both(Flow::Delay(Duration::from_millis(40)));
    let guard = soon("the lock", far.lock(&name).ttl(ctx.ttl(3000)))
        .await
        .unwrap();
    let waiter = wait_for(&near, &name);
    for _ in 0..3 {
        soon("a renewal", guard.prolonged()).await;
    }
    assert!(guard.is_valid() && !waiter.is_finished());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let guard = got("the waiter is served", waiter).await;
    let waiter = wait_for(&far, &name);
    ctx.await_queued(&near, &name, 1).await;
    guard.release().await.unwrap();
    let guard = got("the far waiter is served", waiter).await;
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}
