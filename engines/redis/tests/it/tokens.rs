//! Tokens grow strictly, whatever happens to the counter.

use fencelock_core::engine::{Evict, Withdrawn};
use fencelock_core::{Engine, Token};

use crate::support::{Store, ms, open, server};

/// What may happen to the counter.
type Mishap = fn(&fencelock_testbed::Redis);

fn flushall(server: &fencelock_testbed::Redis) {
    let _: String = server.command(&["FLUSHALL"]).unwrap();
}

fn deleted(server: &fencelock_testbed::Redis) {
    let _: i64 = server.command(&["DEL", "fencelock:counter"]).unwrap();
}

fn set_back(server: &fencelock_testbed::Redis) {
    let _: String = server.command(&["SET", "fencelock:counter", "17"]).unwrap();
}

fn garbled(server: &fencelock_testbed::Redis) {
    let _: i64 = server
        .command(&["DECRBY", "fencelock:counter", "1000000"])
        .unwrap();
}

/// Takes the lock once and returns the token.
async fn once(store: &Store, record: bool) -> Token {
    let claim = store.claim("t").record(record);
    let token = store.held(&claim).await.tokens.first;
    store.release(&claim).await;
    token
}

#[tokio::test]
async fn a_lost_counter_is_noticed_and_lifted() {
    let server = server();
    let (one, two) = (open(&server.url()).await, open(&server.url()).await);
    let mut last = Token(0);
    for mishap in [flushall as Mishap, deleted, set_back, garbled] {
        for record in [false, true] {
            for store in [&one, &two, &one] {
                let token = once(store, record).await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
            mishap(&server);
            // The first token, with or without a script, must be above every token that the other store has seen.
            for store in [&two, &one, &two] {
                let token = once(store, record).await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
    }
}

#[tokio::test]
async fn a_counter_is_lost_under_concurrency() {
    let server = server();
    let store = std::sync::Arc::new(open(&server.url()).await);
    let before = once(&store, false).await;
    deleted(&server);
    let mut tasks = Vec::new();
    for i in 0..64 {
        let store = std::sync::Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..20 {
                let claim = store.plain(&format!("n{}", i % 8));
                tokens.push(store.lock(&claim).await.tokens.first);
                assert_ne!(store.release(&claim).await, Withdrawn::NotOwner);
            }
            tokens
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        let tokens = task.await.unwrap();
        assert!(tokens.is_sorted());
        all.extend(tokens);
    }
    all.sort_unstable();
    assert!(
        all.windows(2).all(|pair| pair[0] < pair[1]),
        "one token twice"
    );
    assert!(all[0] > before);
}

#[tokio::test]
async fn a_hand_over_after_the_loss_also_lifts_the_counter() {
    let server = server();
    let store = open(&server.url()).await;
    let (first, second) = (store.claim("h"), store.claim("h"));
    let token = store.held(&first).await.tokens.first;
    let place = store.waits(&second).await;
    deleted(&server);
    store.release(&first).await;
    assert!(store.granted(&second, &place).await.tokens.first > token);
}

#[tokio::test]
async fn tokens_grow_over_restarts() {
    let mut server = server();
    let store = open(&server.url()).await;
    let mut last = once(&store, false).await;
    for _ in 0..3 {
        server.restart_empty().unwrap();
        let claim = store.plain("t");
        let token = store.lock(&claim).await.tokens.first;
        assert!(token > last);
        last = token;
        store.release(&claim).await;
    }
}

#[tokio::test]
async fn a_counter_of_another_type_is_named() {
    let server = server();
    let store = open(&server.url()).await;
    let _: i64 = server.command(&["DEL", "fencelock:counter"]).unwrap();
    let _: i64 = server
        .command(&["RPUSH", "fencelock:counter", "x"])
        .unwrap();
    let url = fencelock_core::StoreUrl::parse(&server.url()).unwrap();
    let error = fencelock_redis::Redis::connect(url).await.unwrap_err();
    assert!(error.to_string().contains("fencelock:"), "{error}");
    // A claim under way does not keep the lock.
    let claim = store.plain("t");
    let error = store.engine.place(&claim).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    store.release(&claim).await;
    assert_eq!(server.command::<i64>(&["EXISTS", "t"]).unwrap(), 0);
}

#[tokio::test]
async fn a_token_counts_for_others_once_it_is_recorded() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.plain("r").ttl(ms(5000));
    let token = store.held(&claim).await.tokens.first;
    let evict = Evict::Release;
    assert!(!store.evict(&claim.name, token, evict).await);
    assert!(!store.evict(&claim.name, Token(0), evict).await);
    store.renew(&claim, token).await;
    assert!(store.evict(&claim.name, token, evict).await);
    assert_eq!(store.release(&claim).await, Withdrawn::Expired);
}
