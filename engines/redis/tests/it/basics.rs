//! Tests with one or two claims.

use fencelock_core::engine::{Evict, Renewal, Standing, Withdrawn};
use fencelock_core::{Engine, Error, Token};

use crate::support::{Store, calls, ms, nothing_is_left, open, server};

#[tokio::test]
async fn takes_and_releases_with_and_without_scripts() {
    let server = server();
    let store = open(&server.url()).await;
    let mut last = Token(0);
    for record in [false, true, false, true] {
        let claim = store.claim("jobs/nightly").record(record);
        let grant = store.held(&claim).await;
        assert_eq!(grant.recorded, record);
        assert_eq!(grant.lease, claim.ttl);
        assert!(grant.tokens.first > last, "{grant:?} after {last}");
        last = grant.tokens.first;
        let left = Store::pttl(&server, "jobs/nightly");
        assert!((29_000..=30_000).contains(&left), "{left}");
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
        assert_eq!(store.release(&claim).await, Withdrawn::Expired);
    }
    nothing_is_left(&server);
}

#[tokio::test]
async fn a_claim_that_does_not_wait_is_refused_and_leaves_nothing() {
    let server = server();
    let store = open(&server.url()).await;
    let first = store.plain("a");
    store.held(&first).await;
    for record in [false, true] {
        let second = store.claim("a").wait(false).record(record);
        let standing = store.engine.place(&second).await.unwrap();
        assert!(matches!(standing, Standing::Busy), "{standing:?}");
        assert_eq!(store.release(&second).await, Withdrawn::NotOwner);
    }
    assert_eq!(store.release(&first).await, Withdrawn::Released);
    nothing_is_left(&server);
}

#[tokio::test]
async fn placing_again_reports_and_prolongs() {
    let server = server();
    let store = open(&server.url()).await;
    for record in [false, true] {
        let claim = store.claim("again").record(record);
        let first = store.held(&claim).await;
        let _: i64 = server.command(&["PEXPIRE", "again", "500"]).unwrap();
        let second = store.held(&claim).await;
        assert!(second.recorded);
        assert!(second.tokens.first >= first.tokens.first);
        assert_eq!(record, second.tokens == first.tokens);
        assert!(Store::pttl(&server, "again") > 29_000);
        store.release(&claim).await;
    }
}

#[tokio::test]
async fn renewals_prolong_record_and_report_losses() {
    let server = server();
    let store = open(&server.url()).await;
    let (kept, lost) = (store.plain("kept"), store.plain("lost"));
    let token = store.held(&kept).await.tokens.first;
    store.held(&lost).await;
    let view = store.look(&kept.name).await;
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.token(), None, "the fast path does not record");
    let _: i64 = server.command(&["PEXPIRE", "kept", "500"]).unwrap();
    let _: i64 = server.command(&["DEL", "lost"]).unwrap();
    let renewed = store.renew(&kept, token).await;
    assert!(
        matches!(renewed, Renewal::Kept { asked: false, .. }),
        "{renewed:?}"
    );
    store.lost(&lost, token).await;
    assert!(Store::pttl(&server, "kept") > 29_000);
    let view = store.look(&kept.name).await;
    assert_eq!(view.token(), Some(token));
    assert!(store.evict(&kept.name, token, Evict::Ask).await);
    for _ in 0..2 {
        let renewed = store.renew(&kept, token).await;
        assert!(
            matches!(renewed, Renewal::Kept { asked: true, .. }),
            "{renewed:?}"
        );
    }
}

#[tokio::test]
async fn a_thousand_holds_are_renewed_in_two_commands() {
    let server = server();
    let store = open(&server.url()).await;
    let mut held = Vec::new();
    for i in 0..1000 {
        let claim = store.plain(&format!("many/{i}"));
        let token = store.held(&claim).await.tokens.first;
        held.push(fencelock_core::engine::HeldClaim::new(claim, token));
    }
    store.engine.renew(&held[..1]).await;
    let before = calls(&server, "evalsha");
    let renewed = store.engine.renew(&held).await;
    assert_eq!(renewed.len(), 1000);
    let kept = |renewal: &Renewal| matches!(renewal, Renewal::Kept { .. });
    assert!(renewed.iter().all(kept));
    assert_eq!(calls(&server, "evalsha") - before, 2);
}

#[tokio::test]
async fn a_closed_store_reports_that() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("a");
    store.held(&claim).await;
    store.engine.close().await.unwrap();
    let error = store.engine.place(&claim).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
}

#[tokio::test]
async fn names_leave_nothing_behind() {
    let server = server();
    let store = open(&server.url()).await;
    for i in 0..10_000 {
        let claim = match i % 4 {
            0 => store.claim(&format!("n/{i}")),
            1 => store.shared(&format!("n/{i}")),
            2 => store.permit(&format!("n/{i}"), 3),
            _ => store.plain(&format!("n/{i}")),
        };
        store.held(&claim).await;
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
    }
    nothing_is_left(&server);
}

#[tokio::test]
async fn unusual_names_work_also_in_the_queue() {
    let server = server();
    let store = open(&server.url()).await;
    let long = "x".repeat(512);
    for name in [
        "a b",
        "{tag}/a",
        "a}b",
        "{}",
        "}{",
        "{a",
        "a/{b}/{c}",
        "ü€𝄞",
        "*?[x]",
        long.as_str(),
    ] {
        let (first, second) = (store.claim(name), store.claim(name));
        store.held(&first).await;
        let place = store.waits(&second).await;
        assert_eq!(store.release(&first).await, Withdrawn::Released);
        store.granted(&second, &place).await;
        assert_eq!(store.release(&second).await, Withdrawn::Released);
        let page = store.engine.inspect().list(name, None, 10).await.unwrap();
        assert!(page.items.is_empty());
    }
    nothing_is_left(&server);
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends() {
    let server = server();
    let store = open(&server.url()).await;
    let first = store.plain("short").ttl(ms(200));
    store.held(&first).await;
    let second = store.claim("short");
    let grant = store.lock(&second).await;
    assert!(grant.tokens.first.get() > 0);
    assert_eq!(store.release(&first).await, Withdrawn::NotOwner);
    assert_eq!(store.release(&second).await, Withdrawn::Released);
}
