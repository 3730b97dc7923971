//! Looking at locks, listing them, and evicting their holders.

use std::collections::BTreeSet;
use std::time::Duration;

use fencelock_core::engine::{Event, Evict, Withdrawn};
use fencelock_core::{Engine, LockName, Token};

use crate::support::{ms, open, server};

#[tokio::test]
async fn shows_holders_and_waiters() {
    let server = server();
    let store = open(&server.url()).await;
    let mut holder = store
        .claim("s")
        .label("nightly: run 7")
        .lock_delay(ms(1500));
    holder.owner = "host/42: ü".into();
    let token = store.held(&holder).await.tokens.first;
    let mut waiter = store.shared("s");
    waiter.owner = "patient".into();
    store.waits(&waiter).await;
    let view = store.look(&holder.name).await;
    assert_eq!(view.holders.len(), 1);
    let seen = &view.holders[0];
    assert_eq!(seen.claim, Some(holder.id));
    assert_eq!(seen.owner, "host/42: ü");
    assert_eq!(seen.label.as_deref(), Some("nightly: run 7"));
    assert_eq!(seen.token, Some(token));
    assert_eq!(seen.lock_delay, ms(1500));
    assert!(seen.ttl_left.unwrap() > Duration::from_secs(30));
    assert!(seen.held.unwrap() < Duration::from_secs(5));
    assert_eq!(view.waiters.len(), 1);
    assert_eq!(view.waiters[0].owner, "patient");
    assert_eq!(view.waiters[0].mode, waiter.mode);
    // A renewal does not reset the time.
    tokio::time::sleep(ms(60)).await;
    store.renew(&holder, token).await;
    store.renew(&holder, token).await;
    let view = store.look(&holder.name).await;
    let held = view.holders[0].held.unwrap();
    assert!((ms(55)..ms(5000)).contains(&held), "{held:?}");
}

#[tokio::test]
async fn waits_for_a_change() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("u");
    let free = store
        .engine
        .inspect()
        .watch(&claim.name, Some(Token(1)))
        .await
        .unwrap();
    assert!(free.holders.is_empty());
    let (view, grant) = tokio::join!(store.engine.inspect().watch(&claim.name, None), async {
        tokio::time::sleep(ms(50)).await;
        store.held(&claim).await
    });
    let token = Some(grant.tokens.first);
    assert_eq!(view.unwrap().token(), token);
    let (view, _) = tokio::join!(store.engine.inspect().watch(&claim.name, token), async {
        tokio::time::sleep(ms(50)).await;
        store.release(&claim).await
    });
    assert_eq!(view.unwrap().token(), None);
}

#[tokio::test]
async fn lists_by_prefix_in_parts() {
    let server = server();
    let store = open(&server.url()).await;
    let mut wanted = BTreeSet::new();
    for i in 0..200 {
        let name = format!("l*/{i}");
        let claim = match i % 3 {
            0 => store.plain(&name),
            1 => store.shared(&name),
            _ => store.claim(&name),
        };
        store.held(&claim).await;
        wanted.insert(claim.name);
    }
    store.held(&store.claim("lx/other")).await;
    store.waits(&store.claim("l*/2")).await;
    let _: String = server.command(&["SET", "l*/theirs", "x"]).unwrap();
    let mut found = BTreeSet::new();
    let mut at = None;
    let mut parts = 0;
    loop {
        let page = store.engine.inspect().list("l*/", at, 20).await.unwrap();
        parts += 1;
        for view in page.items {
            assert_eq!(view.holders.len(), 1, "{view:?}");
            found.insert(view.name);
        }
        at = page.next;
        if at.is_none() {
            break;
        }
    }
    assert_eq!(found, wanted);
    assert!(parts > 1);
}

#[tokio::test]
async fn a_forced_release_is_reported_and_serves_the_queue() {
    let server = server();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let mut events = store.engine.events().unwrap();
    for mode in ["alone", "shared"] {
        let first = match mode {
            "alone" => store.claim(mode),
            _ => store.shared(mode),
        };
        let second = store.claim(mode);
        let token = store.held(&first).await.tokens.first;
        let place = store.waits(&second).await;
        let name = LockName::new(mode).unwrap();
        assert!(
            !other
                .evict(&name, Token(token.get() + 1), Evict::Release)
                .await
        );
        assert!(other.evict(&name, token, Evict::Ask).await);
        assert_eq!(
            events.next().await.unwrap().unwrap(),
            Event::Asked(first.id)
        );
        assert!(other.evict(&name, token, Evict::Release).await);
        assert_eq!(events.next().await.unwrap().unwrap(), Event::Lost(first.id));
        store.granted(&second, &place).await;
        assert_eq!(store.release(&first).await, Withdrawn::NotOwner);
        assert!(!other.evict(&name, token, Evict::Release).await);
        assert_eq!(store.release(&second).await, Withdrawn::Released);
    }
}
