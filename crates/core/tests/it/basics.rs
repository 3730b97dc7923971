//! Taking, waiting, releasing, entering again, losing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::{Client, Error, Evict, Release};

use crate::{World, ms, settle};

#[tokio::test(start_paused = true)]
async fn one_client_holds_and_the_next_waits() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let first = a.lock("x").await.unwrap();
    assert!(matches!(b.try_lock("x").await, Err(Error::Held { .. })));
    let waiting = tokio::spawn(b.lock("x").into_future());
    settle().await;
    assert!(!waiting.is_finished());
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    let second = waiting.await.unwrap().unwrap();
    assert!(second.token() > token);
    drop(second);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timed_wait_ends_in_time_and_leaves_nothing() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let held = a.lock("x").await.unwrap();
    let begun = tokio::time::Instant::now();
    let error = b.lock("x").timeout(ms(1500)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { waited, .. } if waited == ms(1500)));
    assert_eq!(begun.elapsed(), ms(1500));
    settle().await;
    assert!(a.look("x").await.unwrap().waiters.is_empty());
    drop(held);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lock_for_as_long_as_it_is_held() {
    let world = World::new();
    let client = world.client();
    let guard = client.lock("x").ttl(ms(300)).await.unwrap();
    tokio::time::sleep(ms(10_000)).await;
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn without_renewal_the_holder_knows_of_the_end_before_the_next_grant() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.lock("x").ttl(ms(300)).renew(false).await.unwrap();
    let next = tokio::spawn(b.lock("x").into_future());
    guard.lost().await;
    assert!(!guard.is_valid());
    settle().await;
    assert!(!next.is_finished(), "granted before the holder was told");
    let next = next.await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn refresh_prolongs_and_shortens() {
    let world = World::new();
    let client = world.client();
    let guard = client.lock("x").ttl(ms(300)).renew(false).await.unwrap();
    guard.refresh(ms(2000)).await.unwrap();
    tokio::time::sleep(ms(1000)).await;
    assert!(guard.is_valid());
    assert_eq!(guard.ttl().await.unwrap(), Some(ms(1000)));
    guard.refresh(ms(100)).await.unwrap();
    let begun = tokio::time::Instant::now();
    guard.lost().await;
    assert!(begun.elapsed() <= ms(100));
    assert!(matches!(
        guard.refresh(ms(100)).await,
        Err(Error::Lost { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_hold_that_would_be_renewed() {
    let world = World::new();
    let client = world.client();
    let guard = client
        .lock("x")
        .ttl(ms(300))
        .max_hold(ms(1000))
        .await
        .unwrap();
    let begun = tokio::time::Instant::now();
    guard.lost().await;
    assert_eq!(begun.elapsed(), ms(1000));
}

#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_and_only_the_last_leave_releases() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let owner = a.owner();
    let outer = a.lock("x").owner(&owner).await.unwrap();
    let inner = a.lock("x").owner(&owner).await.unwrap();
    assert_eq!(outer.token(), inner.token());
    assert!(matches!(a.try_lock("x").await, Err(Error::Held { .. })));
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    assert!(matches!(b.try_lock("x").await, Err(Error::Held { .. })));
    inner.release().await.unwrap();
    let next = b.try_lock("x").await.unwrap();
    drop(next);
    let again = a.lock("x").owner(&owner).await.unwrap();
    assert!(again.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_owner_cannot_upgrade() {
    let world = World::new();
    let client = world.client();
    let owner = client.owner();
    let shared = client.lock("x").shared().owner(&owner).await.unwrap();
    let error = client.lock("x").owner(&owner).await.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { what: "mode", .. }),
        "{error}"
    );
    drop(shared);
}

#[tokio::test(start_paused = true)]
async fn another_process_joins_what_its_outer_process_holds() {
    let world = World::new();
    let (outer, inner, other) = (world.client(), world.client(), world.client());
    let owner = outer.owner();
    let held = outer.lock("x").ttl(ms(300)).owner(&owner).await.unwrap();
    let joined = inner.join(owner.as_str()).unwrap();
    let guard = inner.lock("x").owner(&joined).await.unwrap();
    assert!(guard.joined());
    assert_eq!(guard.token(), held.token());
    tokio::time::sleep(ms(2000)).await;
    assert!(guard.is_valid());
    drop(guard);
    settle().await;
    assert!(held.is_valid());
    assert!(matches!(other.try_lock("x").await, Err(Error::Held { .. })));
    // The outer hold ends: the joined guard is lost, and the owner's text joins no hold any more.
    let guard = inner.lock("x").owner(&joined).await.unwrap();
    held.release().await.unwrap();
    guard.lost().await;
    let fresh = inner.lock("x").owner(&joined).await.unwrap();
    assert!(!fresh.joined());
}

#[tokio::test(start_paused = true)]
async fn a_holder_learns_of_an_eviction_and_of_a_question_at_once() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.lock("x").await.unwrap();
    let wrong = fencelock_core::Token(guard.token().get() + 1);
    assert!(!b.evict("x", wrong, Evict::Release).await.unwrap());
    assert!(b.evict("x", guard.token(), Evict::Ask).await.unwrap());
    guard.asked_to_release().await;
    assert!(guard.is_valid());
    let begun = tokio::time::Instant::now();
    assert!(b.evict("x", guard.token(), Evict::Release).await.unwrap());
    guard.lost().await;
    assert_eq!(begun.elapsed(), ms(0));
    let next = b.try_lock("x").await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::NotOwner);
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn check_is_true_for_exactly_the_current_grant() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.lock("x").await.unwrap();
    let sequencer = guard.sequencer().await.unwrap();
    assert!(b.check(&sequencer).await.unwrap());
    let mut other = sequencer.clone();
    other.token.0 += 1;
    assert!(!b.check(&other).await.unwrap());
    guard.release().await.unwrap();
    let guard = a.lock("x").await.unwrap();
    assert!(!b.check(&sequencer).await.unwrap());
    assert!(b.check(&guard.sequencer().await.unwrap()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lock_in_its_lock_delay_is_not_held() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let request = a.lock("x").ttl(ms(300)).lock_delay(ms(1000));
    let guard = request.renew(false).await.unwrap();
    let sequencer = guard.sequencer().await.unwrap();
    tokio::time::sleep(ms(290)).await;
    assert!(b.check(&sequencer).await.unwrap());
    guard.lost().await;
    tokio::time::sleep(ms(300) / 2).await;
    assert!(!b.check(&sequencer).await.unwrap());
    assert!(matches!(b.try_lock("x").await, Err(Error::Held { .. })));
    drop(guard);
    assert!(!b.check(&sequencer).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn with_stops_its_body_when_the_lock_is_lost() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let body = a.lock("x").with(|held| async move {
        b.evict("x", held.token(), Evict::Release).await.unwrap();
        loop {
            tokio::time::sleep(ms(1)).await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert!(matches!(body.await, Err::<(), _>(Error::Lost { .. })));
    let stopped = steps.load(Ordering::SeqCst);
    tokio::time::sleep(ms(100)).await;
    assert_eq!(steps.load(Ordering::SeqCst), stopped);
    assert_eq!(a.with("x", |_| async { 7 }).await.unwrap(), 7);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_under_the_lock_releases_it() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let panics = tokio::spawn(async move { a.with("x", |_| async { panic!("on purpose") }).await });
    let ended: Result<Result<(), _>, _> = panics.await;
    assert!(ended.unwrap_err().is_panic());
    settle().await;
    drop(b.try_lock("x").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn attempts_and_pauses_are_as_requested() {
    let world = World::new();
    let (a, (b, meter)) = (world.client(), world.metered());
    let held = a.lock("x").await.unwrap();
    let begun = tokio::time::Instant::now();
    let request = b.lock("x").attempts(4).delays(ms(100), ms(100));
    assert!(matches!(request.await, Err(Error::Held { .. })));
    assert_eq!(begun.elapsed(), ms(300));
    assert_eq!(meter.counts().placed, 4);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn close_ends_waits_and_releases_holds() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let held = a.lock("x").await.unwrap();
    let other = b.lock("y").await.unwrap();
    let waiting = tokio::spawn(a.lock("y").into_future());
    settle().await;
    a.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(a.lock("z").await, Err(Error::Closed)));
    held.lost().await;
    drop(b.try_lock("x").await.unwrap());
    assert!(b.look("y").await.unwrap().waiters.is_empty());
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn bad_requests_are_refused_before_anything_is_sent() {
    let world = World::new();
    let (client, meter) = world.metered();
    let long = "n".repeat(513);
    for name in ["", &long, "a\nb", "\u{7f}"] {
        let error = client.lock(name).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Invalid {
                    what: "lock name",
                    ..
                }
            ),
            "{error}"
        );
    }
    let error = client.lock("x").ttl(ms(0)).await.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { what: "ttl", .. }),
        "{error}"
    );
    let error = client.lock("x").label("a\tb").await.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { what: "label", .. }),
        "{error}"
    );
    assert_eq!(meter.counts(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_held_that_outlives_its_body_sees_the_release() {
    let world = World::new();
    let client = world.client();
    let held = client
        .with("x", |held| async move { held.clone() })
        .await
        .unwrap();
    assert!(!held.is_valid());
    assert_eq!(held.remaining(), ms(0));
    held.lost().await;
    assert!(matches!(held.sequencer().await, Err(Error::Lost { .. })));
    assert!(matches!(
        held.refresh(ms(100)).await,
        Err(Error::Lost { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_wait_for_another_task_of_its_owner() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let owner = a.owner();
    let held = b.lock("x").await.unwrap();
    let waiting = tokio::spawn(a.lock("x").owner(&owner).into_future());
    settle().await;
    assert!(matches!(
        a.try_lock("x").owner(&owner).await,
        Err(Error::Held { .. })
    ));
    drop(held);
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn delays_of_zero_cause_no_busy_loop() {
    let world = World::new();
    let (a, (b, meter)) = (world.client(), world.metered());
    let held = a.lock("x").await.unwrap();
    let request = b.lock("x").timeout(ms(100)).unfair().delays(ms(0), ms(0));
    assert!(matches!(request.await, Err(Error::TimedOut { .. })));
    assert!(meter.counts().placed <= 101, "{:?}", meter.counts());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_inspecting_client_takes_no_lock() {
    let world = World::new();
    let client = world.client();
    let looks = Client::builder(Arc::new(world.store.another()))
        .inspect_only(true)
        .build()
        .unwrap();
    let held = client.lock("x").owner(&client.owner()).await.unwrap();
    assert_eq!(looks.look("x").await.unwrap().token(), Some(held.token()));
    assert_eq!(looks.list("").await.unwrap().len(), 1);
    assert!(looks.check(&held.sequencer().await.unwrap()).await.unwrap());
    assert!(looks.diagnose().await.is_ok());
    let refused = |error: Error| {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("inspect_only"), "{error}");
    };
    refused(looks.try_lock("y").await.unwrap_err());
    refused(looks.lock("y").shared().unfair().await.unwrap_err());
    let inside = looks.join(held.owner()).unwrap();
    refused(looks.lock("x").owner(&inside).await.unwrap_err());
    for how in [Evict::Ask, Evict::Release] {
        refused(looks.evict("x", held.token(), how).await.unwrap_err());
    }
    assert!(held.is_valid() && !held.is_asked_to_release());
}
