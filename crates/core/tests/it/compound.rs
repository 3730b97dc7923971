//! Several locks at once, permits, elections, downgrades, and unhealthy holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencelock_core::layers::Trouble;
use fencelock_core::{Error, Evict, LossReason, Mode, Release};

use crate::{World, ms, settle};

#[tokio::test(start_paused = true)]
async fn several_locks_share_one_order_and_one_deadline() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let held = b.lock("m").await.unwrap();
    let begun = tokio::time::Instant::now();
    // The wait for "m" uses up the time for all three.
    let error = a
        .lock_all(["z", "m", "a"])
        .timeout(ms(700))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::TimedOut { name, waited, .. } if name.as_str() == "m" && *waited == ms(700)),
        "{error}"
    );
    assert_eq!(begun.elapsed(), ms(700));
    settle().await;
    let error = a.try_lock_all(["z", "m", "a"]).await.unwrap_err();
    assert!(matches!(&error, Error::Held { name, .. } if name.as_str() == "m"));
    for name in ["a", "z"] {
        assert!(b.look(name).await.unwrap().holders.is_empty());
    }
    held.release().await.unwrap();
    let all = a.lock_all(["z", "m", "a", "m"]).await.unwrap();
    let names: Vec<_> = all.iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, ["a", "m", "z"]);
    assert!(all.is_valid() && all.remaining() > ms(1000));
    assert_eq!(all.token("m"), all.get("m").map(|guard| guard.token()));
    assert!(all.get("b").is_none());
    for sequencer in all.sequencers().await.unwrap() {
        assert!(b.check(&sequencer).await.unwrap());
    }
    assert_eq!(all.release().await.unwrap(), Release::Released);
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_names_are_refused_before_any_lock_is_taken() {
    let world = World::new();
    let (client, meter) = world.metered();
    for names in [&["a", "b\n"][..], &["", "a"], &[]] {
        let error = client.lock_all(names).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    let request = client
        .lock_all(["a", "b"])
        .each(|request| request.ttl(ms(0)));
    assert!(matches!(request.await, Err(Error::Invalid { .. })));
    assert_eq!(meter.counts(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_another_is_waited_for_ends_the_request() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let held = b.lock("b").await.unwrap();
    let waiting = tokio::spawn(a.lock_all(["a", "b"]).into_future());
    settle().await;
    let token = b.look("a").await.unwrap().token().unwrap();
    assert!(b.evict("a", token, Evict::Release).await.unwrap());
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Lost { name, .. } if name.as_str() == "a"));
    settle().await;
    assert!(b.look("b").await.unwrap().waiters.is_empty());
    drop(held);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_is_the_loss_of_all() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let all = a.lock_all(["a", "b", "c"]).await.unwrap();
    let token = all.token("b").unwrap();
    assert!(b.evict("b", token, Evict::Release).await.unwrap());
    let (lost, reason) = all.lost().await;
    assert_eq!((lost.as_str(), reason), ("b", LossReason::TakenAway));
    assert!(!all.is_valid());
    assert_eq!(all.remaining(), ms(0));
    assert_ne!(all.release().await.unwrap(), Release::Released);
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn permits_are_counted_and_served_in_order() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    assert!(matches!(a.semaphore("s", 0), Err(Error::Invalid { .. })));
    let (sa, sb) = (a.semaphore("s", 2).unwrap(), b.semaphore("s", 2).unwrap());
    assert_eq!(sa.available().await.unwrap(), 2);
    let one = sa.acquire().await.unwrap();
    let two = sb.try_acquire().await.unwrap();
    assert!(two.token() > one.token());
    assert_eq!((sa.permits(), sa.available().await.unwrap()), (2, 0));
    assert!(matches!(sa.try_acquire().await, Err(Error::Held { .. })));
    let error = sb.acquire().timeout(ms(50)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }));
    let third = tokio::spawn(sb.acquire().into_future());
    settle().await;
    one.release().await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(third.token() > two.token());
    drop((two, third));
    settle().await;
    let alone = a.lock("s").await.unwrap();
    assert_eq!(sa.available().await.unwrap(), 0);
    assert!(matches!(sa.try_acquire().await, Err(Error::Held { .. })));
    drop(alone);
}

#[tokio::test(start_paused = true)]
async fn leaders_follow_one_another_and_are_visible() {
    let world = World::new();
    let (a, b, c) = (world.client(), world.client(), world.client());
    let seen = c.election("e");
    let mut leaders = seen.observe();
    assert_eq!(leaders.next().await.unwrap(), None);
    let first = a.election("e").campaign("node a").await.unwrap();
    let leader = leaders.next().await.unwrap().unwrap();
    assert_eq!((&*leader.value, leader.token), ("node a", first.token()));
    let next = tokio::spawn(b.election("e").campaign("node b").into_future());
    settle().await;
    assert_eq!(seen.leader().await.unwrap().unwrap().value, "node a");
    assert_eq!(first.resign().await.unwrap(), Release::Released);
    let second = next.await.unwrap().unwrap();
    let leader = leaders.next().await.unwrap().unwrap();
    assert_eq!((&*leader.value, leader.token), ("node b", second.token()));
    drop(second);
    assert_eq!(leaders.next().await.unwrap(), None);
    // A reader of the same name is not a leader.
    let reader = a.lock("e").shared().await.unwrap();
    assert_eq!(seen.leader().await.unwrap(), None);
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_admits_readers_also_of_this_process() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.lock("x").ttl(ms(300)).await.unwrap();
    let before = guard.sequencer().await.unwrap();
    let reader = tokio::spawn(b.lock("x").shared().into_future());
    settle().await;
    let here = tokio::spawn(a.lock("x").into_future());
    settle().await;
    let shared = guard.downgrade().await.unwrap();
    assert_eq!(shared.mode(), Mode::Shared);
    assert!(shared.token() > before.token);
    let reader = reader.await.unwrap().unwrap();
    assert!(!b.check(&before).await.unwrap());
    assert!(b.check(&shared.sequencer().await.unwrap()).await.unwrap());
    // The shared hold is renewed.
    tokio::time::sleep(ms(2000)).await;
    assert!(shared.is_valid() && reader.is_valid());
    assert!(!here.is_finished());
    let same = shared.token();
    let shared = shared.downgrade().await.unwrap();
    assert_eq!(shared.token(), same);
    reader.release().await.unwrap();
    assert_eq!(shared.release().await.unwrap(), Release::Released);
    let writer = here.await.unwrap().unwrap();
    assert!(writer.token() > same);
    drop(writer);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_is_retried_until_the_validity_ends() {
    let world = World::new();
    let (a, faults) = world.faulty();
    let b = world.client();
    for trouble in [Trouble::LoseRequest, Trouble::LoseReply] {
        let guard = a.lock("x").await.unwrap();
        faults.next([trouble, trouble]);
        let shared = guard.downgrade().await.unwrap();
        let reader = b.try_lock("x").shared().await.unwrap();
        assert!(shared.is_valid() && reader.token() > shared.token());
        shared.release().await.unwrap();
        reader.release().await.unwrap();
    }
    let guard = a.lock("x").ttl(ms(300)).await.unwrap();
    faults.by_chance(|_| Trouble::LoseRequest);
    let error = guard.downgrade().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    faults.calm();
    let next = b.lock("x").await.unwrap();
    drop(next);
    tokio::time::sleep(ms(2000)).await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn impossible_downgrades_are_refused() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let owner = a.owner();
    let outer = a.lock("x").owner(&owner).await.unwrap();
    let inner = a.lock("x").owner(&owner).await.unwrap();
    assert!(matches!(
        inner.downgrade().await,
        Err(Error::Invalid { .. })
    ));
    settle().await;
    // The refused call has consumed only its own guard.
    assert!(outer.is_valid());
    let joined = b.join(owner.as_str()).unwrap();
    let child = b.lock("x").owner(&joined).await.unwrap();
    let outer = outer.downgrade().await.unwrap();
    assert_eq!(outer.mode(), Mode::Shared);
    // The child had joined an exclusive hold, and that one has ended.
    child.lost().await;
    assert!(matches!(
        a.lock("x").owner(&owner).await,
        Err(Error::Invalid { .. })
    ));
    drop(outer);
    settle().await;
    let child = b.lock("x").owner(&joined).await.unwrap();
    assert!(!child.joined());
    let permit = a.semaphore("s", 2).unwrap().acquire().await.unwrap();
    assert!(matches!(
        permit.downgrade().await,
        Err(Error::Invalid { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_downgrade_leaves_nothing() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").await.unwrap();
    faults.next([Trouble::Hold]);
    let downgrade = tokio::time::timeout(ms(1), guard.downgrade());
    assert!(downgrade.await.is_err());
    // The request was under way when the downgrade was dropped, and takes effect now.
    faults.open(1);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_holder_loses_its_lock_in_time() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let well = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&well);
    let request = a.lock("x").ttl(ms(300)).lock_delay(ms(500));
    let guard = request.healthy(move || asked.load(Ordering::SeqCst));
    let guard = guard.await.unwrap();
    tokio::time::sleep(ms(1000)).await;
    assert!(guard.is_valid());
    // A short unhealthy time does not matter.
    well.store(false, Ordering::SeqCst);
    tokio::time::sleep(ms(150)).await;
    well.store(true, Ordering::SeqCst);
    tokio::time::sleep(ms(1000)).await;
    assert!(guard.is_valid());
    well.store(false, Ordering::SeqCst);
    assert_eq!(guard.lost().await, LossReason::Unhealthy);
    let lost = tokio::time::Instant::now();
    // The lock-delay runs, although the guard still exists.
    let next = b.lock("x").await.unwrap();
    assert!(lost.elapsed() >= ms(500) && lost.elapsed() < ms(700));
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_health_check_that_panics_ends_its_own_hold_only() {
    let world = World::new();
    let client = world.client();
    let sick = client.lock("x").ttl(ms(300));
    let sick = sick.healthy(|| panic!("on purpose")).await.unwrap();
    let well = client.lock("y").ttl(ms(300)).await.unwrap();
    sick.lost().await;
    tokio::time::sleep(ms(1000)).await;
    assert!(well.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_at_max_hold_although_its_guard_is_there() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.lock("x").max_hold(ms(400)).await.unwrap();
    let begun = tokio::time::Instant::now();
    let next = b.lock("x").await.unwrap();
    assert!(begun.elapsed() >= ms(400) && begun.elapsed() < ms(500));
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert!(next.is_valid());
}
