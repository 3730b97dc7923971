//! Shared holds and permits.

use std::time::Instant;

use fencelock_core::engine::{Claim, Standing, Withdrawn};
use fencelock_core::support::admission;
use fencelock_core::{Engine, Mode};

use crate::support::{Store, ms, nothing_is_left, one_listens, open, open_with, server};

#[tokio::test]
async fn readers_hold_together_and_a_writer_waits() {
    let server = server();
    let store = open(&server.url()).await;
    let readers = [store.shared("f"), store.shared("f")];
    let mut last = 0;
    for reader in &readers {
        let token = store.held(reader).await.tokens.first.get();
        assert!(token > last);
        last = token;
    }
    let writer = store.claim("f");
    let writers_place = store.waits(&writer).await;
    // The waiting writer blocks new readers.
    let late = [store.shared("f"), store.shared("f")];
    let mut places = Vec::new();
    for reader in &late {
        places.push(store.waits(reader).await);
    }
    let impatient = store.shared("f").wait(false);
    assert!(matches!(
        store.engine.place(&impatient).await.unwrap(),
        Standing::Busy
    ));
    for reader in &readers {
        assert_eq!(store.release(reader).await, Withdrawn::Released);
    }
    let token = store
        .granted(&writer, &writers_place)
        .await
        .tokens
        .first
        .get();
    assert!(token > last);
    assert_eq!(store.release(&writer).await, Withdrawn::Released);
    // Both readers are granted at once.
    for (reader, place) in late.iter().zip(&places) {
        assert!(store.granted(reader, place).await.tokens.first.get() > token);
    }
    for reader in &late {
        assert_eq!(store.release(reader).await, Withdrawn::Released);
    }
    nothing_is_left(&server);
}

/// A waiting writer whose process has died delays readers by two of its claim windows, not until all readers have gone.
#[tokio::test]
async fn a_dead_waiting_writer_does_not_block_readers() {
    let server = server();
    let window = "claim-window=300ms";
    let store = open_with(&server, window).await;
    let reader = store.shared("dw");
    let token = store.held(&reader).await.tokens.first;
    let dying = open_with(&server, window).await;
    for _ in 0..3 {
        dying.waits(&dying.claim("dw")).await;
    }
    drop(dying);
    one_listens(&server).await;
    let late = store.shared("dw");
    let renewals = async {
        loop {
            store.kept(&reader, token).await;
            tokio::time::sleep(ms(100)).await;
        }
    };
    tokio::select! {
        () = renewals => {}
        late = tokio::time::timeout(ms(20_000), store.lock(&late)) => { late.expect("admitted"); }
    }
    let impatient = store.shared("dw").wait(false);
    store.held(&impatient).await;
}

/// A live writer is placed again and again, and keeps its place before later readers.
#[tokio::test]
async fn a_live_waiting_writer_is_not_overtaken_by_readers() {
    let server = server();
    let store = open_with(&server, "claim-window=1500ms").await;
    store.held(&store.shared("lw")).await;
    let writer = store.claim("lw");
    store.waits(&writer).await;
    let readers_try = async {
        let begin = Instant::now();
        // Longer than the two windows after which it would count as dead.
        while begin.elapsed() < ms(5 * 1500 / 2) {
            let impatient = store.shared("lw").wait(false);
            let standing = store.engine.place(&impatient).await.unwrap();
            assert!(matches!(standing, Standing::Busy), "{standing:?}");
            tokio::time::sleep(ms(20)).await;
        }
    };
    tokio::select! {
        () = readers_try => {}
        grant = store.lock(&writer) => panic!("{grant:?}"),
    }
}

/// A fault that a model found: the late renewal of a reader cut the lease of the next writer from 30 s to 0.2 s.
#[tokio::test]
async fn a_late_renewal_of_a_reader_does_not_change_the_writers_lease() {
    let server = server();
    let store = open(&server.url()).await;
    let reader = store.shared("l").ttl(ms(200));
    let token = store.held(&reader).await.tokens.first;
    let writer = store.claim("l");
    let writers = store.lock(&writer).await.tokens.first;
    let before = Store::pttl(&server, "l");
    assert!(before > 20_000, "{before}");
    store.lost(&reader, token).await;
    assert!(Store::pttl(&server, "l") > 20_000);
    assert_ne!(store.release(&reader).await, Withdrawn::Released);
    store.kept(&writer, writers).await;
}

#[tokio::test]
async fn a_renewal_of_a_reader_does_not_change_another_clients_value() {
    let server = server();
    let store = open(&server.url()).await;
    let reader = store.shared("t");
    let token = store.held(&reader).await.tokens.first;
    let _: String = server
        .command(&["SET", "t", "theirs", "PX", "9000"])
        .unwrap();
    store.lost(&reader, token).await;
    assert_eq!(server.command::<String>(&["GET", "t"]).unwrap(), "theirs");
    assert!(Store::pttl(&server, "t") <= 9000);
    assert_eq!(store.release(&reader).await, Withdrawn::NotOwner);
    assert_eq!(server.command::<String>(&["GET", "t"]).unwrap(), "theirs");
}

#[tokio::test]
async fn the_lock_expires_with_its_last_reader() {
    let server = server();
    let store = open(&server.url()).await;
    let short = store.shared("e").ttl(ms(5000));
    let long = store.shared("e");
    let token = store.held(&short).await.tokens.first;
    assert!(Store::pttl(&server, "e") <= 5000);
    store.held(&long).await;
    assert!(Store::pttl(&server, "e") > 29_000, "up");
    store.release(&long).await;
    let left = Store::pttl(&server, "e");
    assert!((4000..=5000).contains(&left), "down: {left}");
    let side = Store::pttl(&server, "{e}:fencelock:line:readers");
    assert!((4000..=5000).contains(&side), "down: {side}");
    store.kept(&short, token).await;
}

#[tokio::test]
async fn an_expired_reader_does_not_block_the_writer() {
    let server = server();
    let store = open(&server.url()).await;
    let crashed = store.shared("o").ttl(ms(150));
    let alive = store.shared("o");
    let token = store.held(&crashed).await.tokens.first;
    store.held(&alive).await;
    let writer = store.claim("o");
    let place = store.waits(&writer).await;
    let clock = store.engine.clock();
    clock.sleep_until(clock.now() + ms(170)).await;
    store.lost(&crashed, token).await;
    store.release(&alive).await;
    store.granted(&writer, &place).await;
}

#[tokio::test]
async fn a_new_first_reader_removes_earlier_readers() {
    let server = server();
    let store = open(&server.url()).await;
    let old = store.shared("m");
    let token = store.held(&old).await.tokens.first;
    let _: i64 = server.command(&["DEL", "m"]).unwrap();
    let new = store.shared("m").ttl(ms(2000));
    store.held(&new).await;
    assert!(Store::pttl(&server, "m") <= 2000);
    store.lost(&old, token).await;
    let view = store.look(&new.name).await;
    assert_eq!(view.holders.len(), 1);
}

#[tokio::test]
async fn a_weaker_mode_downgrades_and_lets_readers_in() {
    let server = server();
    let store = open(&server.url()).await;
    let writer = store.claim("g");
    let token = store.held(&writer).await.tokens.first;
    let reader = store.shared("g");
    let place = store.waits(&reader).await;
    let weaker = writer.clone().mode(Mode::Shared);
    let grant = store.held(&weaker).await;
    assert!(grant.tokens.first > token);
    store.granted(&reader, &place).await;
    assert_eq!(store.release(&weaker).await, Withdrawn::Released);
    assert_eq!(store.release(&reader).await, Withdrawn::Released);
}

#[tokio::test]
async fn permits_are_counted() {
    let server = server();
    let store = open(&server.url()).await;
    let claims: Vec<Claim> = (0..4).map(|_| store.permit("p", 2)).collect();
    store.held(&claims[0]).await;
    store.held(&claims[1]).await;
    let third = store.waits(&claims[2]).await;
    store.waits(&claims[3]).await;
    assert_eq!(store.release(&claims[1]).await, Withdrawn::Released);
    store.granted(&claims[2], &third).await;
    let fourth = store.waits(&claims[3]).await;
    assert_eq!(fourth.ahead, Some(0));
    let view = store.look(&claims[0].name).await;
    assert_eq!(view.holders.len(), 2);
    assert_eq!(view.holders[0].mode, claims[0].mode);
    store.release(&claims[0]).await;
    store.granted(&claims[3], &fourth).await;
}

#[tokio::test]
async fn an_abandoned_reader_keeps_its_lock_delay() {
    let server = server();
    let store = open(&server.url()).await;
    let reader = store.shared("a").lock_delay(ms(300));
    store.held(&reader).await;
    let writer = store.claim("a");
    let place = store.waits(&writer).await;
    let begin = store.engine.clock().now();
    assert_eq!(store.abandon(&reader).await, Withdrawn::Released);
    assert_eq!(server.command::<i64>(&["EXISTS", "a"]).unwrap(), 1);
    store.lock(&writer).await;
    assert!(
        store.engine.clock().now().since(begin) >= ms(290),
        "{place:?}"
    );
}

/// The scripts repeat the rule of the core.
#[tokio::test]
async fn admission_follows_the_rule_of_the_core() {
    let server = server();
    let store = open(&server.url()).await;
    for (at, (mode, holders)) in admission::small_inputs().enumerate() {
        let mut beside = Vec::new();
        for mode in holders.iter().chain([&mode]) {
            let claim = store.claim(&format!("rule/{at}")).mode(*mode).wait(false);
            let held = matches!(store.engine.place(&claim).await.unwrap(), Standing::Held(_));
            let expected = admission::admits(*mode, beside.iter().copied());
            assert_eq!(held, expected, "{mode:?} beside {beside:?}");
            if held {
                beside.push(*mode);
            }
        }
    }
}
