//! The queue inside a process: order, tokens, the share of other processes, and waiters that go away.

use fencelock_core::{Client, Error};
use tokio::sync::mpsc;

use crate::{World, ms, settle};

/// Starts waiters. Each records its number and token, and then releases.
fn queue_up(
    client: &Client,
    numbers: std::ops::Range<usize>,
) -> mpsc::UnboundedReceiver<(usize, u64)> {
    let (note, notes) = mpsc::unbounded_channel();
    for number in numbers {
        let (request, note) = (client.lock("x").into_future(), note.clone());
        tokio::spawn(async move {
            let guard = request.await.unwrap();
            assert!(guard.is_valid());
            note.send((number, guard.token().get())).unwrap();
            guard.release().await.unwrap();
        });
    }
    notes
}

#[tokio::test(start_paused = true)]
async fn a_thousand_tasks_are_served_in_order_with_few_calls() {
    let world = World::new();
    let (client, meter) = world.metered();
    let first = client.lock("x").await.unwrap();
    let mut notes = queue_up(&client, 0..1000);
    settle().await;
    // All but one wait in this process, not at the store.
    assert_eq!(client.look("x").await.unwrap().waiters.len(), 1);
    let mut last = first.token().get();
    first.release().await.unwrap();
    for expected in 0..1000 {
        let (number, token) = notes.recv().await.unwrap();
        assert_eq!(number, expected);
        assert!(token > last);
        last = token;
    }
    settle().await;
    assert_eq!(world.left(), 0);
    let counts = meter.counts();
    assert!(counts.placed <= 2 * 1000 / 16 + 3, "{counts:?}");
    assert!(counts.withdrawn <= 1000 / 16 + 3, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn another_process_has_its_turn_after_a_batch() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let first = a.lock("x").await.unwrap();
    let mut ours = queue_up(&a, 0..100);
    settle().await;
    let mut theirs = queue_up(&b, 0..1);
    settle().await;
    first.release().await.unwrap();
    let (_, token) = theirs.recv().await.unwrap();
    let mut before = 0;
    while let Some((_, ours)) = ours.recv().await {
        before += usize::from(ours < token);
    }
    assert!(
        (1..=32).contains(&before),
        "{before} of ours went before theirs"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sequencer_ends_the_hand_off_inside_the_process() {
    let world = World::new();
    let (client, meter) = world.metered();
    let first = client.lock("x").await.unwrap();
    let (second, third) = (
        client.lock("x").into_future(),
        client.lock("x").into_future(),
    );
    let (second, third) = (tokio::spawn(second), tokio::spawn(third));
    settle().await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let sequencer = second.sequencer().await.unwrap();
    let before = meter.counts().withdrawn;
    second.release().await.unwrap();
    assert_eq!(meter.counts().withdrawn, before + 1);
    let third = third.await.unwrap().unwrap();
    assert!(!client.check(&sequencer).await.unwrap());
    assert!(third.token() > sequencer.token);
    assert!(
        client
            .check(&third.sequencer().await.unwrap())
            .await
            .unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn different_leases_are_not_passed_on() {
    let world = World::new();
    let client = world.client();
    let first = client.lock("x").await.unwrap();
    let second = tokio::spawn(client.lock("x").ttl(ms(5000)).into_future());
    let third = tokio::spawn(client.lock("x").ttl(ms(1000)).into_future());
    settle().await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    second.release().await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(third.remaining() <= ms(1000));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_with_another_lease_is_not_overtaken() {
    let world = World::new();
    let client = world.client();
    let first = client.lock("x").await.unwrap();
    let (note, mut notes) = mpsc::unbounded_channel();
    for number in 0..40 {
        let request = client.lock("x");
        // Every seventh request has another ttl, so it cannot continue the hold before it.
        let request = match number % 7 {
            3 => request.ttl(ms(5000)),
            _ => request,
        };
        let (request, note) = (request.into_future(), note.clone());
        tokio::spawn(async move {
            let guard = request.await.unwrap();
            note.send((number, guard.token())).unwrap();
            guard.release().await.unwrap();
        });
        settle().await;
    }
    let mut last = first.token();
    first.release().await.unwrap();
    for expected in 0..40 {
        let (number, token) = notes.recv().await.unwrap();
        assert_eq!(number, expected);
        assert!(token > last);
        last = token;
    }
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiters_that_go_away_are_passed_over() {
    let world = World::new();
    let client = world.client();
    let first = client.lock("x").await.unwrap();
    let mut waiting: Vec<_> = (0..10)
        .map(|_| tokio::spawn(client.lock("x").into_future()))
        .collect();
    settle().await;
    let stays = waiting.remove(7);
    for task in &waiting {
        task.abort();
    }
    settle().await;
    first.release().await.unwrap();
    let guard = stays.await.unwrap().unwrap();
    drop(guard);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_does_not_block_later_waiters() {
    let world = World::new();
    let client = world.client();
    let stuck = client.lock("x").ttl(ms(300)).renew(false).await.unwrap();
    let next = tokio::spawn(client.lock("x").into_future());
    let next = next.await.unwrap().unwrap();
    assert!(!stuck.is_valid());
    assert!(next.is_valid());
    assert!(matches!(
        client.try_lock("x").await,
        Err(Error::Held { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_hold_with_an_end_or_without_renewal_is_not_passed_on() {
    let world = World::new();
    let client = world.client();
    let first = client.lock("x").await.unwrap();
    // None of these requests may continue the hold before it.
    let unrenewed = tokio::spawn(client.lock("x").ttl(ms(900)).renew(false).into_future());
    let renewed = tokio::spawn(client.lock("x").ttl(ms(900)).into_future());
    let bounded = tokio::spawn(
        client
            .lock("x")
            .ttl(ms(900))
            .max_hold(ms(2000))
            .into_future(),
    );
    let recorded = tokio::spawn(client.lock("x").ttl(ms(900)).recorded().into_future());
    settle().await;
    first.release().await.unwrap();
    unrenewed.await.unwrap().unwrap().release().await.unwrap();
    let renewed = renewed.await.unwrap().unwrap();
    tokio::time::sleep(ms(3000)).await;
    assert!(renewed.is_valid(), "it was not renewed");
    renewed.release().await.unwrap();
    let bounded = bounded.await.unwrap().unwrap();
    let begun = tokio::time::Instant::now();
    bounded.lost().await;
    assert_eq!(begun.elapsed(), ms(2000));
    drop(bounded);
    let recorded = recorded.await.unwrap().unwrap();
    let view = client.look("x").await.unwrap();
    assert_eq!(view.token(), Some(recorded.token()));
    tokio::time::sleep(ms(5000)).await;
    assert!(recorded.is_valid(), "it inherited an end");
}
