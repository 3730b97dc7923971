//! Grants, tokens, expiry, lock-delay, eviction.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::engine::{Event, Evict, HeldClaim, Leave, Renewal, Withdrawn};
use fencelock_core::{Engine, Error, Mode, Token};
use fencelock_sqlite::Sqlite;

use super::*;

async fn renewed(engine: &Sqlite, claim: &Claim, token: Token) -> Renewal {
    let held = HeldClaim::new(claim.clone(), token);
    engine.renew(&[held]).await.remove(0)
}

#[tokio::test]
async fn a_release_leaves_no_row_and_frees_at_once() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let (first, second) = (claim("job"), claim("job"));
    let before = now();
    let grant = held(&a, &first).await;
    assert!(grant.counted_from >= before && grant.counted_from <= now());
    assert_eq!(grant.lease, first.ttl);
    assert!(grant.recorded);
    busy(&b, &attempt(second.clone())).await;
    assert_eq!(rows(&directory), 1, "an attempt that fails leaves no row");
    let other = b.withdraw(&second, Leave::Release).await.unwrap();
    assert_eq!(other, Withdrawn::NotOwner);
    let released = a.withdraw(&first, Leave::Release).await.unwrap();
    assert_eq!(released, Withdrawn::Released);
    assert_eq!(rows(&directory), 0);
    let next = held(&b, &second).await;
    assert!(next.tokens.first > grant.tokens.first);
}

#[tokio::test]
async fn placing_again_reports_and_prolongs() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let claim = claim("job");
    let first = held(&engine, &claim).await;
    let until = || -> i64 {
        let raw = directory.raw();
        raw.query_row("SELECT expiry FROM holders", [], |row| row.get(0))
            .unwrap()
    };
    let before = until();
    let again = held(&engine, &claim).await;
    assert_eq!(again.tokens, first.tokens);
    assert!(again.counted_from > first.counted_from);
    assert!(until() > before);
    // The row outlives the client's lease.
    assert!(until().unsigned_abs() >= (again.counted_from + again.lease).as_nanos());
}

/// The second engine continues the claim of the first.
#[tokio::test]
async fn late_requests_of_a_claim_do_not_harm_its_hold() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let long = lasting(3_600_000, claim("job"));
    let token = held(&a, &long).await.tokens.first;
    let late = lasting(2000, long.clone());
    held(&b, &late).await;
    let view = a.inspect().look(&long.name).await.unwrap();
    assert!(view.holders[0].ttl_left > Some(Duration::from_secs(3000)));
    for other in [token.get() - 1, token.get() + 1] {
        let lost = renewed(&b, &long, Token(other)).await;
        assert!(matches!(lost, Renewal::Lost), "{lost:?}");
    }
    let kept = renewed(&b, &late, token).await;
    assert!(matches!(kept, Renewal::Kept { .. }), "{kept:?}");
}

#[tokio::test]
async fn a_downgrade_has_a_new_token_and_lets_readers_in() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let (writer, reader) = (claim("job"), shared("job"));
    let before = held(&a, &writer).await;
    let place = waiting(&b, &reader).await;
    let weaker = writer.clone().mode(Mode::Shared);
    let after = held(&a, &weaker).await;
    assert!(after.tokens.first > before.tokens.first);
    assert_eq!(held(&a, &weaker).await.tokens, after.tokens);
    b.wait(&reader, &place).await.unwrap();
    held(&b, &reader).await;
    let error = a.place(&writer).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[tokio::test]
async fn a_range_of_tokens_belongs_to_one_claim() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let many = claim("job").reserve(16);
    let grant = held(&engine, &many).await;
    assert_eq!(grant.tokens.count, 16);
    let last = Token(grant.tokens.first.get() + 15);
    let kept = renewed(&engine, &many, last).await;
    assert!(
        matches!(kept, Renewal::Kept { asked: false, .. }),
        "{kept:?}"
    );
    let view = engine.inspect().look(&many.name).await.unwrap();
    assert_eq!(view.token(), Some(last));
    let beyond = Token(last.get() + 1);
    assert!(
        !engine
            .inspect()
            .evict(&many.name, beyond, Evict::Release)
            .await
            .unwrap()
    );
    assert!(
        engine
            .inspect()
            .evict(&many.name, last, Evict::Release)
            .await
            .unwrap()
    );
    let next = held(&engine, &claim("job")).await;
    assert!(next.tokens.first > last);
}

#[tokio::test]
async fn an_expired_hold_is_lost_and_the_next_one_unaffected() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let (brief, next) = (lasting(150, claim("job")), claim("job"));
    let first = held(&a, &brief).await;
    let second = acquire(&b, &next).await;
    assert!(
        now() >= first.counted_from + first.lease,
        "not before the lease has ended"
    );
    assert!(second.tokens.first > first.tokens.first);
    let lost = renewed(&a, &brief, first.tokens.first).await;
    assert!(matches!(lost, Renewal::Lost), "{lost:?}");
    let late = a.withdraw(&brief, Leave::Release).await.unwrap();
    assert_eq!(late, Withdrawn::NotOwner);
    let kept = renewed(&b, &next, second.tokens.first).await;
    assert!(matches!(kept, Renewal::Kept { .. }), "{kept:?}");
}

#[tokio::test]
async fn a_release_after_the_lease_says_so() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let brief = lasting(60, claim("job"));
    let grant = held(&engine, &brief).await;
    Clock::Boot
        .sleep_until(grant.counted_from + Duration::from_millis(70))
        .await;
    let expired = engine.withdraw(&brief, Leave::Release).await.unwrap();
    assert_eq!(expired, Withdrawn::Expired);
    assert_eq!(rows(&directory), 0);
}

#[tokio::test]
async fn the_lock_delay_runs_after_a_loss_only() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let delay = Duration::from_secs(2);
    let delayed = || lasting(100, claim("job")).lock_delay(delay);
    let lost = delayed();
    let grant = held(&a, &lost).await;
    let next = delayed().ttl(Duration::from_secs(30));
    let after = acquire(&b, &next).await;
    assert!(now() >= grant.counted_from + grant.lease + delay);

    // After a release the lock is free at once.
    let released = b.withdraw(&next, Leave::Release).await.unwrap();
    assert_eq!(released, Withdrawn::Released);
    let third = delayed().ttl(Duration::from_secs(30));
    let held_long = held(&a, &third).await;
    assert!(held_long.tokens.first > after.tokens.first);

    // After a loss the lock-delay runs, although the lease would be longer.
    let abandoned_at = now();
    assert_eq!(
        a.withdraw(&third, Leave::Abandon).await.unwrap(),
        Withdrawn::Released
    );
    let lost = renewed(&a, &third, held_long.tokens.first).await;
    assert!(matches!(lost, Renewal::Lost), "{lost:?}");
    busy(&a, &attempt(claim("job"))).await;
    acquire(&b, &claim("job")).await;
    let waited = now().since(abandoned_at);
    assert!(
        waited >= delay && waited < Duration::from_secs(10),
        "{waited:?}"
    );
}

#[tokio::test]
async fn an_eviction_by_another_process_is_reported_at_once() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let claim = claim("job");
    let token = held(&a, &claim).await.tokens.first;
    assert!(
        b.inspect()
            .evict(&claim.name, token, Evict::Ask)
            .await
            .unwrap()
    );
    let mut events = a.events().unwrap();
    assert_eq!(
        events.next().await.unwrap().unwrap(),
        Event::Asked(claim.id)
    );
    let asked = renewed(&a, &claim, token).await;
    assert!(
        matches!(asked, Renewal::Kept { asked: true, .. }),
        "{asked:?}"
    );
    assert!(
        b.inspect()
            .evict(&claim.name, token, Evict::Release)
            .await
            .unwrap()
    );
    assert_eq!(events.next().await.unwrap().unwrap(), Event::Lost(claim.id));
    let lost = renewed(&a, &claim, token).await;
    assert!(matches!(lost, Renewal::Lost), "{lost:?}");
    assert!(
        !b.inspect()
            .evict(&claim.name, token, Evict::Release)
            .await
            .unwrap()
    );
    assert_eq!(rows(&directory), 0);
}

#[tokio::test]
async fn an_eviction_by_the_same_process_is_reported_at_once() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let claim = claim("job");
    let token = held(&engine, &claim).await.tokens.first;
    assert!(
        engine
            .inspect()
            .evict(&claim.name, token, Evict::Release)
            .await
            .unwrap()
    );
    let mut events = engine.events().unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), Event::Lost(claim.id));
}

#[tokio::test]
async fn permits_are_counted() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let permit = || {
        attempt(claim("job")).mode(Mode::Permit {
            of: NonZeroU32::new(2).unwrap(),
        })
    };
    let first = permit();
    held(&engine, &first).await;
    held(&engine, &permit()).await;
    busy(&engine, &permit()).await;
    busy(&engine, &attempt(shared("job"))).await;
    engine.withdraw(&first, Leave::Release).await.unwrap();
    held(&engine, &permit()).await;
}

#[tokio::test]
async fn one_renewal_that_fails_does_not_fail_the_others() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let mut held_claims = Vec::new();
    for count in 0..1200 {
        let claim = claim(&format!("job-{count}"));
        let token = held(&engine, &claim).await.tokens.first;
        held_claims.push(HeldClaim::new(claim, token));
    }
    engine
        .withdraw(&held_claims[700].claim, Leave::Release)
        .await
        .unwrap();
    let renewals = engine.renew(&held_claims).await;
    assert_eq!(renewals.len(), 1200);
    for (at, renewal) in renewals.iter().enumerate() {
        let lost = matches!(renewal, Renewal::Lost);
        assert_eq!(lost, at == 700, "{at}: {renewal:?}");
    }
}

#[tokio::test]
async fn looks_and_lists() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let labelled = claim("a/b 1")
        .label("nightly")
        .lock_delay(Duration::from_secs(5));
    let token = held(&engine, &labelled).await.tokens.first;
    waiting(&engine, &shared("a/b 1")).await;
    for text in ["a/b 2", "a/b 3", "a/c", "b", "a%b"] {
        held(&engine, &claim(text)).await;
    }
    held(&engine, &lasting(50, claim("a/b gone"))).await;
    let view = engine.inspect().look(&labelled.name).await.unwrap();
    let holder = &view.holders[0];
    assert_eq!(holder.claim, Some(labelled.id));
    assert_eq!(
        (holder.owner.as_str(), holder.token),
        ("somebody", Some(token))
    );
    assert_eq!(holder.label.as_deref(), Some("nightly"));
    assert_eq!(holder.lock_delay, Duration::from_secs(5));
    let left = holder.ttl_left.unwrap();
    assert!(
        left > Duration::from_secs(30) && left <= Duration::from_secs(35),
        "{left:?}"
    );
    assert!(holder.held.unwrap() < Duration::from_secs(30));
    assert_eq!(view.waiters.len(), 1);
    assert_eq!(view.waiters[0].mode, Mode::Shared);

    // `watch` returns when the lock is free again.
    let gone = name("a/b gone");
    let seen = engine.inspect().look(&gone).await.unwrap().token();
    // On a busy machine the lock may be free already.
    if seen.is_some() {
        let free = engine.inspect().watch(&gone, seen).await.unwrap();
        assert!(free.holders.is_empty());
    }
    let (mut names, mut at) = (Vec::new(), None);
    loop {
        let page = engine.inspect().list("a/b", at, 2).await.unwrap();
        assert!(page.items.len() <= 2);
        names.extend(page.items.iter().map(|view| view.name.to_string()));
        at = page.next;
        if at.is_none() {
            break;
        }
    }
    names.retain(|name| name != "a/b gone");
    assert_eq!(names, ["a/b 1", "a/b 2", "a/b 3"]);
    assert_eq!(
        engine
            .inspect()
            .list("", None, 100)
            .await
            .unwrap()
            .items
            .len(),
        6
    );
    assert!(
        engine
            .inspect()
            .list("zzz", None, 100)
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_names_leave_no_row() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let worker = |worker: u32| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            for count in 0..250 {
                let claim = claim(&format!("job {worker}/{count}"));
                held(&engine, &claim).await;
                let released = engine.withdraw(&claim, Leave::Release).await.unwrap();
                assert_eq!(released, Withdrawn::Released);
            }
        })
    };
    let workers: Vec<_> = (0..40).map(worker).collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(rows(&directory), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_at_once_and_tokens_strictly_increase() {
    let directory = Directory::new();
    let (inside, highest) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut workers = Vec::new();
    for _ in 0..4 {
        let engine = directory.open().await;
        for _ in 0..4 {
            let (engine, inside, highest) = (engine.clone(), inside.clone(), highest.clone());
            workers.push(tokio::spawn(async move {
                for _ in 0..25 {
                    let claim = claim("contended");
                    let token = acquire(&engine, &claim).await.tokens.first.get();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold");
                    assert!(highest.swap(token, Ordering::SeqCst) < token, "tokens fell");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    let released = engine.withdraw(&claim, Leave::Release).await.unwrap();
                    assert_eq!(released, Withdrawn::Released);
                }
            }));
        }
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(rows(&directory), 0);
}
