//! The id identifies a claim: another process may continue it, and late requests of the first process do not harm it.

use std::num::NonZeroU32;
use std::time::Duration;

use fencelock::engine::{
    Claim, ClaimId, Engine, Grant, HeldClaim, Leave, Place, Renewal, Standing, Withdrawn,
};
use fencelock::{LeaseKind, LockName, Mode, Promises, Token, Wake};
use fencelock_testbed::Flow;
use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, until};

pub(super) static CASES: &[Case] = &[
    case!(another_client_goes_on_with_a_claim).promised(|promises| promises.portable),
    case!(a_claim_that_one_process_forgets_goes_on_in_another)
        .promised(|promises| promises.portable),
    case!(the_process_that_asked_last_is_notified_of_the_turn)
        .promised(|promises| promises.portable && promises.wake == Wake::Push),
    // A claim of Redlock belongs to one client, but that client's own requests may be late, too.
    case!(a_late_place_does_not_shorten)
        .promised(|promises| promises.portable || promises.engine == "redlock"),
    case!(a_late_renewal_does_not_shorten),
    case!(a_renewal_with_an_old_token_is_lost).promised(|promises| promises.portable),
    case!(a_renewal_from_before_a_downgrade_is_lost).promised(|promises| promises.shared),
    case!(a_hold_does_not_become_stronger).promised(|promises| promises.shared),
    case!(a_late_give_back_spares_the_next_grant)
        .server()
        .promised(|promises| promises.portable && promises.wake == Wake::Push),
];

/// Much shorter than [`LONG`], and longer than a case takes on a busy machine.
const SHORT: Duration = Duration::from_secs(10);

/// A lease that was renewed.
const LONG: Duration = Duration::from_secs(60);

fn claim(ctx: &Ctx, name: &str, mode: Mode, wait: bool) -> Claim {
    let id = ctx.store().claim_id();
    Claim::new(id, "conformance", LockName::new(name).unwrap())
        .mode(mode)
        .ttl(SHORT)
        .wait(wait)
        .reserve(4)
        .record(true)
}

/// Every mode that the store has.
fn modes(promises: &Promises) -> Vec<Mode> {
    let of = NonZeroU32::MIN;
    let all = [Mode::Exclusive, Mode::Shared, Mode::Permit { of }];
    let has = |mode: &Mode| match mode {
        Mode::Exclusive => true,
        Mode::Shared => promises.shared,
        Mode::Permit { .. } => promises.permits,
    };
    all.into_iter().filter(has).collect()
}

/// A mode that excludes this mode.
fn against(mode: Mode) -> Mode {
    match mode {
        Mode::Permit { .. } => mode,
        Mode::Exclusive | Mode::Shared => Mode::Exclusive,
    }
}

/// Places a claim, and expects to hold at once.
async fn held(engine: &dyn Engine, claim: &Claim) -> Grant {
    match soon("an answer to a claim", engine.place(claim)).await {
        Ok(Standing::Held(grant)) => grant,
        other => panic!("expected to hold: {other:?}"),
    }
}

/// As [`held`], for its whole ttl: a first grant may last for a claim window only.
async fn held_for_long(engine: &dyn Engine, claim: &Claim) {
    let grant = held(engine, claim).await;
    is_kept(engine, claim, claim.ttl, grant.tokens.first).await;
}

/// Places a claim, and expects to be queued.
async fn waits(engine: &dyn Engine, claim: &Claim) -> Place {
    match soon("an answer to a claim", engine.place(claim)).await {
        Ok(Standing::Waiting(place)) => place,
        other => panic!("expected to be queued: {other:?}"),
    }
}

/// Waits until the claim holds. Does not confirm a pushed grant by another place.
async fn granted(engine: &dyn Engine, claim: &Claim, mut place: Place) -> Grant {
    let wait = async {
        loop {
            let told = tokio::select! {
                told = engine.wait(claim, &place) => told.unwrap(),
                () = engine.clock().sleep_until(place.recheck) => None,
            };
            if let Some(grant) = told {
                return grant;
            }
            place = match engine.place(claim).await.unwrap() {
                Standing::Held(grant) => return grant,
                Standing::Waiting(place) => place,
                other => panic!("{other:?}, although the claim waits"),
            };
        }
    };
    soon("the grant of a queued claim", wait).await
}

/// Holds the lock, at once or after a wait.
async fn taken(engine: &dyn Engine, claim: &Claim) -> Grant {
    match soon("an answer to a claim", engine.place(claim)).await {
        Ok(Standing::Held(grant)) => grant,
        Ok(Standing::Waiting(place)) => granted(engine, claim, place).await,
        other => panic!("expected to hold or to be queued: {other:?}"),
    }
}

async fn renewed(engine: &dyn Engine, held: HeldClaim) -> Renewal {
    let held = [held];
    let mut renewals = soon("an answer to a renewal", engine.renew(&held)).await;
    renewals.pop().unwrap()
}

async fn renew(engine: &dyn Engine, claim: &Claim, ttl: Duration, token: Token) -> Renewal {
    let claim = claim.clone().ttl(ttl);
    renewed(engine, HeldClaim::new(claim, token)).await
}

async fn is_kept(engine: &dyn Engine, claim: &Claim, ttl: Duration, token: Token) {
    let renewal = renew(engine, claim, ttl, token).await;
    assert!(matches!(renewal, Renewal::Kept { .. }), "{renewal:?}");
}

async fn is_shortened(engine: &dyn Engine, claim: &Claim, ttl: Duration, token: Token) {
    let held = HeldClaim::new(claim.clone().ttl(ttl), token).shorten(true);
    let renewal = renewed(engine, held).await;
    assert!(matches!(renewal, Renewal::Kept { .. }), "{renewal:?}");
    let (_, left) = kept(engine, &claim.name, claim.id).await.unwrap();
    assert!(left <= ttl, "{:?}: not shortened, but {left:?}", claim.mode);
}

async fn is_lost(engine: &dyn Engine, claim: &Claim, ttl: Duration, token: Token) {
    let renewal = renew(engine, claim, ttl, token).await;
    assert!(matches!(renewal, Renewal::Lost), "{token}: {renewal:?}");
}

async fn release(engine: &dyn Engine, claim: &Claim) {
    let withdrawn = soon("a release", engine.withdraw(claim, Leave::Release)).await;
    assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
}

/// The token of a claim that holds, and how long the store keeps it.
async fn kept(engine: &dyn Engine, name: &LockName, id: ClaimId) -> Option<(Token, Duration)> {
    let view = soon("a look", engine.inspect().look(name)).await.unwrap();
    let mut holders = view.holders.into_iter();
    let holder = holders.find(|holder| holder.claim == Some(id))?;
    Some((holder.token.unwrap(), holder.ttl_left.unwrap()))
}

async fn another_client_goes_on_with_a_claim(ctx: Ctx) {
    let (one, two, name) = (ctx.engine().await, ctx.engine().await, ctx.name());
    for mode in modes(ctx.promises()) {
        let first = ctx.engine().await;
        let before = claim(&ctx, &name, against(mode), false);
        held_for_long(&*one, &before).await;
        let claim = claim(&ctx, &name, mode, true);
        waits(&*first, &claim).await;
        let place = waits(&*two, &claim).await;
        let view = soon("a look", one.inspect().look(&claim.name))
            .await
            .unwrap();
        assert_eq!(view.waiters.len(), 1, "{mode:?}: {view:?}");
        release(&*one, &before).await;
        let grant = granted(&*two, &claim, place).await;
        let token = grant.tokens.first;
        is_kept(&*two, &claim, SHORT, token).await;
        assert_eq!(held(&*first, &claim).await.tokens, grant.tokens, "{mode:?}");
        is_kept(&*first, &claim, SHORT, token).await;
        // The claim outlives the process that placed it.
        soon("the first one's end", first.close()).await.unwrap();
        drop(first);
        is_kept(&*two, &claim, SHORT, token).await;
        assert_eq!(held(&*two, &claim).await.tokens, grant.tokens, "{mode:?}");
        release(&*two, &claim).await;
        let kept = kept(&*one, &claim.name, claim.id).await;
        assert_eq!(kept, None, "{mode:?}");
    }
    ctx.await_nothing_left().await;
}

/// One process forgets two waiting claims. Another process continues the first claim, which keeps its place. No process
/// continues the second claim, so it ends by itself.
async fn a_claim_that_one_process_forgets_goes_on_in_another(ctx: Ctx) {
    let (one, two, three) = (ctx.engine().await, ctx.engine().await, ctx.engine().await);
    for mode in modes(ctx.promises()) {
        let name = format!("{}/{}", ctx.name(), mode.as_str());
        let before = claim(&ctx, &name, against(mode), false);
        held_for_long(&*one, &before).await;
        let (left, mut moved) = (
            claim(&ctx, &name, mode, true),
            claim(&ctx, &name, mode, true),
        );
        moved.owner = "moved".into();
        for claim in [&left, &moved] {
            let place = waits(&*two, claim).await;
            two.forget(&claim.id);
            // Processes that share their memory forget nothing.
            if ctx.promises().engine != "memory" {
                let told = soon("the claim is unknown here", two.wait(claim, &place)).await;
                assert!(told.unwrap().is_none(), "{mode:?}");
            }
        }
        let after = claim(&ctx, &name, mode, true);
        waits(&*one, &after).await;
        let place = waits(&*three, &moved).await;
        let view = one.inspect().look(&moved.name).await.unwrap();
        let owners = view.waiters.iter().map(|waiter| waiter.owner.as_str());
        let owners: Vec<_> = owners.collect();
        assert_eq!(owners, ["conformance", "moved", "conformance"], "{mode:?}");
        release(&*one, &before).await;
        let grant = granted(&*three, &moved, place).await;
        is_kept(&*three, &moved, SHORT, grant.tokens.first).await;
        release(&*three, &moved).await;
        // The last claim waits until nothing is left of the forgotten one.
        for claim in [after, claim(&ctx, &name, against(mode), true)] {
            taken(&*one, &claim).await;
            release(&*one, &claim).await;
        }
    }
    ctx.await_nothing_left().await;
}

/// A claim waits through one process and then through another. The store notifies the second process of the turn.
/// Without that, the waiter would learn of it only when its process looks by itself, which takes a second and more. A
/// busy machine may be slow once, but not each time. The first turn does not count: a process may still be opening its
/// listener.
async fn the_process_that_asked_last_is_notified_of_the_turn(ctx: Ctx) {
    let (one, two, three) = (ctx.engine().await, ctx.engine().await, ctx.engine().await);
    for mode in modes(ctx.promises()) {
        let mut fastest = Duration::MAX;
        for turn in 0..4 {
            let name = format!("{}/{}", ctx.name(), mode.as_str());
            let before = claim(&ctx, &name, against(mode), false);
            held_for_long(&*one, &before).await;
            let moved = claim(&ctx, &name, mode, true);
            waits(&*two, &moved).await;
            two.forget(&moved.id);
            let place = waits(&*three, &moved).await;
            release(&*one, &before).await;
            let released = Instant::now();
            granted(&*three, &moved, place).await;
            let took = released.elapsed();
            if turn > 0 {
                fastest = fastest.min(took);
            }
            release(&*three, &moved).await;
        }
        let told = Duration::from_millis(500);
        assert!(fastest < told, "{mode:?}: {fastest:?}");
    }
    ctx.await_nothing_left().await;
}

async fn a_late_place_does_not_shorten(ctx: Ctx) {
    let one = ctx.engine().await;
    let late = match ctx.promises().portable {
        true => ctx.engine().await,
        false => std::sync::Arc::clone(&one),
    };
    for mode in modes(ctx.promises()) {
        let claim = claim(&ctx, &ctx.name(), mode, true);
        let grant = held(&*one, &claim).await;
        let token = grant.tokens.first;
        is_kept(&*one, &claim, LONG, token).await;
        assert_eq!(held(&*late, &claim).await.tokens, grant.tokens, "{mode:?}");
        let (stored, left) = kept(&*one, &claim.name, claim.id).await.unwrap();
        assert_eq!(stored, token, "{mode:?}");
        assert!(left > LONG / 2, "{mode:?}: cut to {left:?}");
        // A renewal may shorten, and a later place may prolong.
        is_shortened(&*one, &claim, SHORT, token).await;
        let longer = claim.clone().ttl(LONG);
        assert_eq!(held(&*late, &longer).await.tokens, grant.tokens, "{mode:?}");
        let (_, left) = kept(&*one, &claim.name, claim.id).await.unwrap();
        // Through the service a place prolongs by a claim window only, so that late requests leave no more.
        let through_service = ctx.promises().engine == "http";
        assert!(
            left > LONG / 2 || through_service,
            "{mode:?}: not prolonged, but {left:?}"
        );
        release(&*one, &claim).await;
    }
    ctx.await_nothing_left().await;
}

/// A copy of an earlier renewal arrives after a longer renewal. Only a renewal that says so may shorten.
async fn a_late_renewal_does_not_shorten(ctx: Ctx) {
    let one = ctx.engine().await;
    if ctx.promises().lease != LeaseKind::Lease {
        return a_late_renewal_ends_nothing(ctx, &*one).await;
    }
    for mode in modes(ctx.promises()) {
        let claim = claim(&ctx, &ctx.name(), mode, true);
        let token = held(&*one, &claim).await.tokens.first;
        // The first renewal also writes the token.
        for ttl in [LONG, SHORT, SHORT] {
            is_kept(&*one, &claim, ttl, token).await;
            let (stored, left) = kept(&*one, &claim.name, claim.id).await.unwrap();
            assert_eq!(stored, token, "{mode:?}");
            assert!(left > LONG / 2, "{mode:?}: cut to {left:?} by {ttl:?}");
        }
        is_shortened(&*one, &claim, SHORT, token).await;
        is_kept(&*one, &claim, LONG, token).await;
        let (_, left) = kept(&*one, &claim.name, claim.id).await.unwrap();
        assert!(left > LONG / 2, "{mode:?}: not prolonged, but {left:?}");
        release(&*one, &claim).await;
    }
    ctx.await_nothing_left().await;
}

/// The same on stores where the lease is a session or a connection. The case sees when that ends.
async fn a_late_renewal_ends_nothing(ctx: Ctx, one: &dyn Engine) {
    let claim = claim(&ctx, &ctx.name(), Mode::Exclusive, true);
    let token = held(one, &claim).await.tokens.first;
    let short = ctx.ttl(200);
    for ttl in [LONG, short] {
        is_kept(one, &claim, ttl, token).await;
    }
    sleep(short + Duration::from_secs(1)).await;
    let view = soon("a look", one.inspect().look(&claim.name)).await;
    let holder = view.unwrap().holders.pop();
    assert_eq!(holder.and_then(|holder| holder.claim), Some(claim.id));
    is_kept(one, &claim, LONG, token).await;
    release(one, &claim).await;
    ctx.await_nothing_left().await;
}

/// A late place arrives after the release, and grants the claim again.
async fn a_renewal_with_an_old_token_is_lost(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    for mode in modes(ctx.promises()) {
        let claim = claim(&ctx, &ctx.name(), mode, true);
        let old = held(&*one, &claim).await.tokens;
        is_kept(&*one, &claim, SHORT, old.first).await;
        release(&*one, &claim).await;
        let new = held(&*two, &claim).await.tokens;
        assert!(new.first > old.first, "{mode:?}: {new:?} after {old:?}");
        let after = Token(new.first.get() + u64::from(new.count));
        for other in [old.first, Token(new.first.get() - 1), after] {
            is_lost(&*one, &claim, LONG, other).await;
            let (stored, left) = kept(&*two, &claim.name, claim.id).await.unwrap();
            assert_eq!(stored, new.first, "{mode:?}");
            assert!(left <= LONG / 2, "{mode:?}: prolonged to {left:?}");
        }
        // Each token of the grant is valid for a renewal.
        let last = Token(after.get() - 1);
        is_kept(&*two, &claim, SHORT, last).await;
        let (stored, _) = kept(&*two, &claim.name, claim.id).await.unwrap();
        assert_eq!(stored, last, "{mode:?}");
        release(&*two, &claim).await;
    }
    ctx.await_nothing_left().await;
}

/// The renewal of an exclusive hold is late: the claim holds in shared mode now.
async fn a_renewal_from_before_a_downgrade_is_lost(ctx: Ctx) {
    let engine = ctx.engine().await;
    let exclusive = claim(&ctx, &ctx.name(), Mode::Exclusive, true);
    let shared = exclusive.clone().mode(Mode::Shared);
    let before = held(&*engine, &exclusive).await.tokens;
    let last = Token(before.first.get() + u64::from(before.count) - 1);
    is_kept(&*engine, &exclusive, SHORT, last).await;
    let after = held(&*engine, &shared).await.tokens;
    assert!(after.first > last, "{after:?} after {before:?}");
    for old in [before.first, last] {
        is_lost(&*engine, &exclusive, LONG, old).await;
        let looked = engine.inspect().look(&shared.name);
        let view = soon("a look", looked).await.unwrap();
        let holders = view.holders.iter();
        let stored: Vec<_> = holders.map(|holder| (holder.mode, holder.token)).collect();
        assert_eq!(stored, [(Mode::Shared, Some(after.first))]);
    }
    is_kept(&*engine, &shared, SHORT, after.first).await;
    release(&*engine, &shared).await;
    ctx.await_nothing_left().await;
}

/// A shared hold, beside which another claim holds, is placed and renewed in exclusive mode.
async fn a_hold_does_not_become_stronger(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    let exclusive = claim(&ctx, &ctx.name(), Mode::Exclusive, false);
    let shared = exclusive.clone().mode(Mode::Shared);
    let beside = claim(&ctx, shared.name.as_str(), Mode::Shared, false);
    held(&*one, &exclusive).await;
    let token = held(&*one, &shared).await.tokens.first;
    held(&*two, &beside).await;
    let again = soon("an answer to a claim", one.place(&exclusive)).await;
    assert!(!matches!(again, Ok(Standing::Held(_))), "{again:?}");
    is_lost(&*one, &exclusive, LONG, token).await;
    is_kept(&*one, &shared, SHORT, token).await;
    release(&*two, &beside).await;
    release(&*one, &shared).await;
    ctx.await_nothing_left().await;
}

/// The store notifies a process of a grant to a claim that the process has given up. The network delays that process's
/// release until the claim has a later grant through another process.
async fn a_late_give_back_spares_the_next_grant(ctx: Ctx) {
    let (far, near, name) = (ctx.proxied_engine().await, ctx.engine().await, ctx.name());
    let proxy = ctx.server().proxy();
    for mode in modes(ctx.promises()) {
        let before = claim(&ctx, &name, against(mode), false);
        held_for_long(&*near, &before).await;
        let moved = claim(&ctx, &name, mode, true);
        waits(&*far, &moved).await;
        // A second wait, so that the remote process continues to listen.
        let other = format!("{name}/other");
        let (holding, waiting) = (
            claim(&ctx, &other, mode, false),
            claim(&ctx, &other, mode, true),
        );
        let holding = holding.mode(against(mode));
        held_for_long(&*near, &holding).await;
        waits(&*far, &waiting).await;
        // The withdrawal never arrives: the claim is still queued, and the remote process has forgotten it.
        proxy.requests(Flow::Lose);
        let left = soon("a withdrawal", far.withdraw(&moved, Leave::Release)).await;
        assert!(!matches!(left, Ok(Withdrawn::LeftQueue)), "{left:?}");
        proxy.requests(Flow::Pass);
        proxy.reset();
        until("the far one is back", async || {
            matches!(far.place(&waiting).await, Ok(Standing::Waiting(_)))
        })
        .await;
        // The remote process is notified of a grant, and releases it.
        proxy.requests(Flow::Hold);
        let sent = proxy.request_bytes();
        release(&*near, &before).await;
        let begun = Instant::now();
        while proxy.request_bytes() == sent && begun.elapsed() < ctx.at_once() / 2 {
            sleep(Duration::from_millis(5)).await;
        }
        // That grant ends with its claim window, and another claim holds the lock.
        let between = claim(&ctx, &name, against(mode), true);
        taken(&*near, &between).await;
        let place = waits(&*near, &moved).await;
        release(&*near, &between).await;
        let grant = granted(&*near, &moved, place).await;
        proxy.requests(Flow::Pass);
        sleep(Duration::from_millis(200)).await;
        let renewal = renew(&*near, &moved, SHORT, grant.tokens.first).await;
        let over = grant.counted_from + grant.lease;
        let in_time = near.clock().now() < over;
        let kept = matches!(renewal, Renewal::Kept { .. });
        assert!(kept || !in_time, "{mode:?}: {renewal:?}");
        near.withdraw(&moved, Leave::Release).await.unwrap();
        release(&*near, &holding).await;
        until("the far one leaves", async || {
            far.withdraw(&waiting, Leave::Release).await.is_ok()
        })
        .await;
    }
    ctx.await_nothing_left().await;
}
