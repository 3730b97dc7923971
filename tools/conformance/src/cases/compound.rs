//! Locks made of locks: several locks at once, semaphores, and elections.

use std::time::Duration;

use fencelock::engine::Evict;
use fencelock::{Client, Error, Order, Promises, Release};
use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take};
use crate::remote::Wanted;

pub(super) static CASES: &[Case] = &[
    case!(several_locks_or_none),
    case!(several_locks_in_any_order_are_no_deadlock),
    case!(several_locks_dropped_leave_nothing),
    case!(the_loss_of_one_of_several_is_reported),
    case!(permits_are_counted).promised(permits),
    case!(permits_are_served_in_order).promised(fifo_permits),
    case!(permits_keep_exclusive_out).promised(permits),
    case!(permits_that_name_different_numbers_keep_each_other_out).promised(permits),
    case!(permits_are_renewed_and_expire_one_by_one).promised(permits),
    case!(candidates_lead_one_after_the_other),
    case!(a_killed_leader_is_succeeded).processes(),
];

fn permits(promises: &Promises) -> bool {
    promises.permits
}

fn fifo_permits(promises: &Promises) -> bool {
    promises.permits && promises.order == Order::Fifo
}

async fn several_locks_or_none(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let names = ["c", "a", "b"].map(|part| format!("{name}/{part}"));
    let held = take(&two, &names[2]).await;
    // Long enough that a store on a busy machine has answered before it ends.
    let patience = Duration::from_millis(2500);
    let error = soon("an answer", one.try_lock_all(&names))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Held { name, .. } if name.as_str() == names[2]),
        "{error:?}"
    );
    let begin = Instant::now();
    let request = one.lock_all(&names).timeout(patience);
    let error = soon("an answer", request).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(begin.elapsed() >= patience);
    for free in &names[..2] {
        let guard = soon("nothing of it is left", two.lock(free)).await.unwrap();
        guard.release().await.unwrap();
    }
    held.release().await.unwrap();
    let all = soon("all of them", one.lock_all(&names)).await.unwrap();
    for name in &names {
        let held = two.try_lock(name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
        let sequencer = all.get(name).unwrap().sequencer().await.unwrap();
        assert!(two.check(&sequencer).await.unwrap());
    }
    assert!(all.is_valid());
    assert_eq!(all.release().await.unwrap(), Release::Released);
    for name in &names {
        take(&two, name).await.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn several_locks_in_any_order_are_no_deadlock(ctx: Ctx) {
    let name = ctx.name();
    let mut tasks = Vec::new();
    for turn in 0..3 {
        let (client, name) = (ctx.client().await, name.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..8 {
                let mut names = ["a", "b", "c"].map(|part| format!("{name}/{part}"));
                names.rotate_left((turn + round) % 3);
                // Any two sets have a lock in common.
                let all = client.lock_all(&names[..2]).await.unwrap();
                assert!(all.is_valid());
                all.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon("all have had all their turns", task).await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn several_locks_dropped_leave_nothing(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let names = ["a", "b"].map(|part| format!("{name}/{part}"));
    let held = take(&two, &names[1]).await;
    let waiting = tokio::spawn(one.lock_all(&names).into_future());
    ctx.await_queued(&two, &names[1], 1).await;
    waiting.abort();
    let first = soon("the first of them", two.lock(&names[0])).await;
    first.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    let all = soon("all of them", one.lock_all(&names)).await.unwrap();
    drop(all);
    let all = soon("all of them", two.lock_all(&names)).await.unwrap();
    assert_eq!(all.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

async fn the_loss_of_one_of_several_is_reported(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let names = ["a", "b", "c"].map(|part| format!("{name}/{part}"));
    // A holder that the store cannot notify learns of a loss within the ttl.
    let request = one.lock_all(&names);
    let request = request.each(|request| request.ttl(Duration::from_secs(3)).recorded());
    let all = soon("all of them", request).await.unwrap();
    let token = all.token(&names[1]).unwrap();
    assert!(two.evict(&names[1], token, Evict::Release).await.unwrap());
    let (lost, _) = soon("the loss", all.lost()).await;
    assert_eq!(lost.as_str(), names[1]);
    assert!(!all.is_valid() && all.remaining().is_zero());
    // The others are held until their release.
    for other in [&names[0], &names[2]] {
        assert!(all.get(other).unwrap().is_valid());
        let held = two.try_lock(other).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    }
    assert_ne!(all.release().await.unwrap(), Release::Released);
    let all = soon("all of them", two.lock_all(&names)).await.unwrap();
    assert_eq!(all.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

async fn permits_are_counted(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let (of_one, of_two) = (
        one.semaphore(&name, 3).unwrap(),
        two.semaphore(&name, 3).unwrap(),
    );
    let mut held = Vec::new();
    for semaphore in [&of_one, &of_two, &of_one] {
        let permit = soon("a free permit", semaphore.try_acquire())
            .await
            .unwrap();
        held.push(permit);
    }
    assert!(
        held.windows(2)
            .all(|pair| pair[0].token() < pair[1].token())
    );
    for semaphore in [&of_one, &of_two] {
        let error = soon("an answer", semaphore.try_acquire()).await;
        assert!(matches!(error, Err(Error::Held { .. })), "{error:?}");
        assert_eq!(semaphore.available().await.unwrap(), 0);
    }
    let (first, second) = (
        held[0].sequencer().await.unwrap(),
        held[1].sequencer().await.unwrap(),
    );
    // A sequencer that was parsed does not contain the number of permits.
    let second = second.to_string().parse().unwrap();
    assert!(two.check(&first).await.unwrap() && two.check(&second).await.unwrap());
    let last = held[2].token();
    held.remove(0).release().await.unwrap();
    assert!(!two.check(&first).await.unwrap() && two.check(&second).await.unwrap());
    let next = soon("the permit that is free again", of_two.acquire())
        .await
        .unwrap();
    assert!(next.token() > last);
    next.release().await.unwrap();
    drop(held);
    ctx.await_nothing_left().await;
}

async fn permits_are_served_in_order(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name());
    let semaphore = one.semaphore(&name, 2).unwrap();
    let first = semaphore.acquire().await.unwrap();
    let second = semaphore.acquire().await.unwrap();
    let mut waiting = Vec::new();
    for count in 1..=3 {
        let semaphore = ctx.client().await.semaphore(&name, 2).unwrap();
        waiting.push(tokio::spawn(semaphore.acquire().into_future()));
        ctx.await_queued(&one, &name, count).await;
    }
    let mut last = second.token();
    let mut held = std::collections::VecDeque::from([first, second]);
    for task in waiting {
        held.pop_front().unwrap().release().await.unwrap();
        let next = got("the first in the queue is served", task).await;
        assert!(next.token() > last);
        last = next.token();
        held.push_back(next);
    }
    drop(held);
    ctx.await_nothing_left().await;
}

async fn permits_keep_exclusive_out(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let (of_one, of_two) = (
        one.semaphore(&name, 2).unwrap(),
        two.semaphore(&name, 2).unwrap(),
    );
    let permit = of_one.acquire().await.unwrap();
    let held = soon("an answer", two.try_lock(&name)).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    permit.release().await.unwrap();
    let alone = take(&two, &name).await;
    let held = soon("an answer", of_one.try_acquire()).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    let waiting = tokio::spawn(of_two.acquire().into_future());
    not_for("a permit beside an exclusive holder", ctx.ttl(150), async {
        while !waiting.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    alone.release().await.unwrap();
    let permit = got("the permit", waiting).await;
    permit.release().await.unwrap();
    ctx.await_nothing_left().await;
}

/// If they held together, neither number would be kept.
async fn permits_that_name_different_numbers_keep_each_other_out(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let semaphore = |client: &Client, permits| client.semaphore(&name, permits).unwrap();
    for (held, other) in [(1, 3), (3, 1)] {
        let (held, other) = (semaphore(&one, held), semaphore(&two, other));
        let permit = soon("a free permit", held.acquire()).await.unwrap();
        let refused = soon("an answer", other.try_acquire()).await;
        assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        permit.release().await.unwrap();
    }
    // A waiter with another number waits for the last of the permits.
    let of_three = semaphore(&one, 3);
    let first = soon("a free permit", of_three.acquire()).await.unwrap();
    let second = soon("a free permit", of_three.acquire()).await.unwrap();
    let waiting = tokio::spawn(semaphore(&two, 2).acquire().into_future());
    first.release().await.unwrap();
    not_for("a permit beside one of three", ctx.ttl(150), async {
        while !waiting.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    second.release().await.unwrap();
    got("the permit", waiting).await.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn permits_are_renewed_and_expire_one_by_one(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2000);
    let (of_one, of_two) = (
        one.semaphore(&name, 2).unwrap(),
        two.semaphore(&name, 2).unwrap(),
    );
    let kept = of_one.acquire().ttl(ttl).await.unwrap();
    let brief = of_one.acquire().ttl(ttl).renew(false).await.unwrap();
    // Its end frees exactly one permit.
    let next = soon("the permit that expired", of_two.acquire())
        .await
        .unwrap();
    assert!(!brief.is_valid());
    assert!(kept.is_valid() && next.token() > brief.token());
    let held = soon("an answer", of_two.try_acquire()).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    // The other permit has outlived its first lease by now. Its renewals go on.
    soon("a renewal", kept.prolonged()).await;
    assert!(kept.is_valid());
    assert!(two.check(&kept.sequencer().await.unwrap()).await.unwrap());
    drop((kept, brief, next));
    ctx.await_nothing_left().await;
}

async fn candidates_lead_one_after_the_other(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let voter = ctx.client().await.election(&name);
    let mut leaders = voter.observe();
    let none = soon("the first leader", leaders.next()).await.unwrap();
    assert_eq!(none, None);
    let first = soon("to lead", one.election(&name).campaign("http://one"));
    let first = first.await.unwrap();
    let seen = soon("the first leader is seen", leaders.next())
        .await
        .unwrap();
    let seen = seen.unwrap();
    assert_eq!((&*seen.value, seen.token), ("http://one", first.token()));
    let next = tokio::spawn(two.election(&name).campaign("two, later").into_future());
    ctx.await_queued(&one, &name, 1).await;
    assert_eq!(voter.leader().await.unwrap().unwrap().token, first.token());
    let before = first.token();
    let sequencer = first.sequencer().await.unwrap();
    assert!(two.check(&sequencer).await.unwrap());
    assert_eq!(first.resign().await.unwrap(), Release::Released);
    let second = soon("the next one leads", next).await.unwrap().unwrap();
    assert!(second.token() > before);
    // In between there may be no leader.
    let seen = loop {
        let seen = soon("the next leader is seen", leaders.next()).await;
        if let Some(seen) = seen.unwrap() {
            break seen;
        }
    };
    assert_eq!((&*seen.value, seen.token), ("two, later", second.token()));
    drop(second);
    let none = soon("no leader is seen", leaders.next()).await;
    assert_eq!(none.unwrap(), None);
    ctx.await_nothing_left().await;
}

async fn a_killed_leader_is_succeeded(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let mut leader = ctx.remote().await;
    let held = leader.take(Wanted::new(&name, ctx.ttl(2000))).await;
    let election = client.election(&name);
    let next = tokio::spawn(election.campaign("the next").into_future());
    ctx.await_queued(&client, &name, 1).await;
    leader.process().kill9();
    let next = soon("a leader is elected", next).await.unwrap().unwrap();
    assert!(next.token().get() > held["token"].as_u64().unwrap());
    let seen = election.leader().await.unwrap().unwrap();
    assert_eq!((&*seen.value, seen.token), ("the next", next.token()));
    assert_eq!(next.resign().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}
