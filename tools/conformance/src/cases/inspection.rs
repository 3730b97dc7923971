//! Inspection: look at locks, check sequencers, evict holders.

use std::time::Duration;

use fencelock::engine::{Cursor, Evict};
use fencelock::{Error, LeaseKind, LossReason, Mode, Sequencer, Token};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take, until, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(a_look_shows_holders_and_waiters),
    case!(a_list_shows_held_locks),
    case!(a_cursor_of_no_listing_is_refused),
    case!(a_watch_sees_the_next_holder),
    case!(check_is_exact),
    case!(check_is_exact_beside_others).promised(|promises| promises.shared),
    case!(eviction_is_fenced_by_the_token),
    case!(an_eviction_serves_the_next),
    case!(a_holder_is_asked_to_let_go),
    case!(one_of_several_holders_is_meant).promised(|promises| promises.shared),
];

async fn a_look_shows_holders_and_waiters(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let free = one.look(&name).await.unwrap();
    assert!(free.holders.is_empty() && free.waiters.is_empty());
    assert_eq!((free.name.as_str(), free.token()), (name.as_str(), None));
    let (ttl, label) = (Duration::from_secs(20), "nightly, \"quoted\" {and} ünïcode");
    let guard = one
        .lock(&name)
        .ttl(ttl)
        .label(label)
        .recorded()
        .await
        .unwrap();
    if ctx.promises().engine == "http" {
        // The first grant lasts for a claim window; a renewal prolongs it to the ttl.
        guard.refresh(ttl).await.unwrap();
    }
    let waiter = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 1).await;
    let view = two.look(&name).await.unwrap();
    let [holder] = &view.holders[..] else {
        panic!("{view:?}");
    };
    assert_eq!(holder.claim, Some(guard.claim_id()));
    assert_eq!(holder.token, Some(guard.token()));
    assert_eq!(view.token(), Some(guard.token()));
    assert_eq!(holder.owner, guard.owner());
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.label.as_deref(), Some(label));
    let left = holder.ttl_left.expect("a lease has an end");
    assert!(left <= ttl && left > ttl / 2, "{left:?}");
    for waiting in &view.waiters {
        assert_eq!(waiting.mode, Mode::Exclusive);
        assert!(!waiting.owner.is_empty());
    }
    waiter.abort();
    ctx.await_queued(&one, &name, 0).await;
    guard.release().await.unwrap();
    assert!(two.look(&name).await.unwrap().holders.is_empty());
}

async fn a_list_shows_held_locks(ctx: Ctx) {
    const TASKS: usize = 16;
    let (one, two) = (ctx.client().await, ctx.client().await);
    let mut guards = Vec::new();
    // Also names with the characters of patterns.
    let names = ["a/1", "a/2", "a*", "a?", "a[12]", "b/1", "a%", "a_", "A/1"];
    for name in names {
        guards.push(one.lock(name).recorded().await.unwrap());
    }
    let listed = async |prefix: &str| -> Vec<String> {
        let views = two.list(prefix).await.unwrap();
        assert!(views.iter().all(|view| view.holders.len() == 1));
        views.iter().map(|view| view.name.to_string()).collect()
    };
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(listed("").await, sorted);
    assert_eq!(listed("a/").await, ["a/1", "a/2"]);
    for name in ["a*", "a?", "a[", "a%", "a_"] {
        assert_eq!(listed(name).await.len(), 1, "{name}");
    }
    assert_eq!(listed("c").await, [""; 0]);
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(listed("").await, [""; 0]);
    // Several pages, if the engine lists in pages.
    let mut guards = Vec::new();
    // Not on stores with one connection per lock.
    let many = match ctx.promises().lease {
        LeaseKind::Connection => 25,
        _ => 2500,
    };
    // So long that a busy server has few renewals beside, and loses no hold meanwhile.
    let ttl = Duration::from_secs(120).min(ctx.promises().max_ttl);
    let mut tasks = Vec::new();
    for first in 0..TASKS {
        let one = one.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for i in (first..many).step_by(TASKS) {
                let name = format!("many/{i}");
                guards.push(one.lock(&name).ttl(ttl).recorded().await.unwrap());
            }
            guards
        }));
    }
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert_eq!(listed("many/").await.len(), many);
    let releasing = guards.into_iter().map(|some| {
        tokio::spawn(async move {
            for guard in some {
                guard.release().await.unwrap();
            }
        })
    });
    for task in releasing.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    ctx.await_nothing_left().await;
}

/// A client of the lock service sends whatever cursor it likes. The engine must not take it for a place among other keys of the
/// store, nor send what the store would answer with a failure.
async fn a_cursor_of_no_listing_is_refused(ctx: Ctx) {
    let engine = ctx.engine().await;
    let guard = take(&ctx.client().await, "cursor/1").await;
    for cursor in [
        "", "\0", "b", "cursor", "a:\0", "9:9:9:9", "b/\0", "-1:0", "0:x",
    ] {
        let at = Some(Cursor(cursor.to_owned()));
        let refused = engine.inspect().list("cursor/", at, 10).await;
        let refused = refused.map(|page| (page.items.len(), page.next));
        assert!(
            matches!(refused, Err(Error::Invalid { .. })),
            "{cursor:?}: {refused:?}"
        );
    }
    guard.release().await.unwrap();
}

async fn a_watch_sees_the_next_holder(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let watch = |seen| {
        let (two, name) = (two.clone(), name.clone());
        async move { two.watch(&name, seen).await.unwrap() }
    };
    let watching = tokio::spawn(watch(None));
    let guard = one.lock(&name).recorded().await.unwrap();
    let view = soon("the first holder is seen", watching).await.unwrap();
    assert_eq!(view.token(), Some(guard.token()));
    let seen = view.token();
    not_for("a change is seen", Duration::from_millis(150), watch(seen)).await;
    let watching = tokio::spawn(watch(seen));
    guard.release().await.unwrap();
    let view = soon("the release is seen", watching).await.unwrap();
    assert_ne!(view.token(), seen);
}

async fn check_is_exact(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let sequencer = guard.sequencer().await.unwrap();
    assert_eq!(
        (sequencer.token, sequencer.claim),
        (guard.token(), guard.claim_id())
    );
    // In the form in which a resource returns it.
    let sequencer: Sequencer = sequencer.to_string().parse().unwrap();
    assert!(two.check(&sequencer).await.unwrap());
    let token = |by: i64| Token(sequencer.token.get().wrapping_add_signed(by));
    let other = take(&two, &format!("{name}/other")).await;
    let forgeries: [&dyn Fn(&mut Sequencer); 5] = [
        &|forged| forged.token = token(1),
        &|forged| forged.token = token(-1),
        &|forged| forged.claim = other.claim_id(),
        &|forged| forged.name = other.name().clone(),
        &|forged| forged.mode = Mode::Shared,
    ];
    for forge in forgeries {
        let mut forged = sequencer.clone();
        forge(&mut forged);
        assert!(!two.check(&forged).await.unwrap(), "{forged}");
    }
    guard.release().await.unwrap();
    assert!(!two.check(&sequencer).await.unwrap());
    let guard = take(&one, &name).await;
    assert!(
        !two.check(&sequencer).await.unwrap(),
        "an earlier grant of the same client"
    );
    assert!(two.check(&guard.sequencer().await.unwrap()).await.unwrap());
}

async fn check_is_exact_beside_others(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let first = one.lock(&name).shared().await.unwrap();
    let second = two.lock(&name).shared().await.unwrap();
    let (of_first, of_second) = (
        first.sequencer().await.unwrap(),
        second.sequencer().await.unwrap(),
    );
    assert!(one.check(&of_first).await.unwrap() && one.check(&of_second).await.unwrap());
    let mut mixed = of_first.clone();
    mixed.claim = of_second.claim;
    assert!(!one.check(&mixed).await.unwrap());
    first.release().await.unwrap();
    assert!(!two.check(&of_first).await.unwrap());
    assert!(two.check(&of_second).await.unwrap());
}

async fn eviction_is_fenced_by_the_token(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = one.lock(&name).recorded().await.unwrap();
    for how in [Evict::Release, Evict::Ask] {
        for wrong in [guard.token().get() - 1, guard.token().get() + 1, 0] {
            assert!(
                !two.evict(&name, Token(wrong), how).await.unwrap(),
                "{wrong}"
            );
        }
        let other = format!("{name}/other");
        assert!(!two.evict(&other, guard.token(), how).await.unwrap());
    }
    assert!(guard.is_valid() && !guard.is_asked_to_release());
    assert_eq!(two.look(&name).await.unwrap().token(), Some(guard.token()));
    assert!(
        two.evict(&name, guard.token(), Evict::Release)
            .await
            .unwrap()
    );
    assert!(
        !two.evict(&name, guard.token(), Evict::Release)
            .await
            .unwrap()
    );
    let next = soon("the lock is free", two.try_lock(&name)).await.unwrap();
    // The evicted holder cannot renew.
    drop(guard);
    assert!(next.is_valid());
    until("only the next holds", async || {
        let view = two.look(&name).await.unwrap();
        view.holders.len() == 1 && view.holders[0].claim == Some(next.claim_id())
    })
    .await;
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn an_eviction_serves_the_next(ctx: Ctx) {
    let (one, two, three) = (ctx.client().await, ctx.client().await, ctx.client().await);
    let name = ctx.name();
    // A holder that the store cannot notify learns of a loss within the ttl.
    let guard = one
        .lock(&name)
        .ttl(Duration::from_secs(3))
        .recorded()
        .await
        .unwrap();
    let waiter = wait_for(&two, &name);
    ctx.await_queued(&three, &name, 1).await;
    assert!(
        three
            .evict(&name, guard.token(), Evict::Release)
            .await
            .unwrap()
    );
    let next = got("the next in the queue has it", waiter).await;
    let why = soon("the evicted holder learns of it", guard.lost()).await;
    let told = match one.promises().lease {
        LeaseKind::Connection => &[LossReason::ConnectionEnded][..],
        // A holder that the store cannot notify learns of it from its renewal.
        _ => &[LossReason::TakenAway, LossReason::StoreForgot],
    };
    assert!(told.contains(&why), "{why:?}");
    assert!(!guard.is_valid());
    assert!(next.is_valid());
    let error = guard.sequencer().await.unwrap_err();
    assert!(matches!(error, fencelock::Error::Lost { .. }), "{error:?}");
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_holder_is_asked_to_let_go(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = one
        .lock(&name)
        .ttl(Duration::from_secs(3))
        .recorded()
        .await
        .unwrap();
    not_for(
        "it is asked before a request",
        Duration::from_millis(50),
        guard.asked_to_release(),
    )
    .await;
    assert!(two.evict(&name, guard.token(), Evict::Ask).await.unwrap());
    soon("the holder is asked", guard.asked_to_release()).await;
    assert!(guard.is_valid() && guard.is_asked_to_release());
    let waiter = wait_for(&two, &name);
    guard.release().await.unwrap();
    let next = got("the next has it", waiter).await;
    assert!(!next.is_asked_to_release(), "the next one was not asked");
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn one_of_several_holders_is_meant(ctx: Ctx) {
    let (one, two, three) = (ctx.client().await, ctx.client().await, ctx.client().await);
    let name = ctx.name();
    // A holder that the store cannot notify learns of a loss within the ttl.
    let request = |client: &fencelock::Client| {
        let request = client.lock(&name).shared().recorded();
        request.ttl(Duration::from_secs(3)).into_future()
    };
    let (first, second) = (request(&one).await.unwrap(), request(&two).await.unwrap());
    let token = first.token();
    assert!(three.evict(&name, token, Evict::Ask).await.unwrap());
    soon("the one is asked", first.asked_to_release()).await;
    assert!(first.is_valid() && !second.is_asked_to_release());
    assert!(three.evict(&name, token, Evict::Release).await.unwrap());
    soon("that holder learns of it", first.lost()).await;
    assert!(!three.evict(&name, token, Evict::Release).await.unwrap());
    let view = three.look(&name).await.unwrap();
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(view.token(), Some(second.token()));
    assert!(!second.is_asked_to_release());
    assert_eq!(
        second.release().await.unwrap(),
        fencelock::Release::Released
    );
    drop(first);
    ctx.await_nothing_left().await;
}
