//! A claim with a floor gets a token above the floor. So do all later claims whose tokens come from the same counter.

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, Engine, Floor, Leave, MAX_FLOOR, Standing};
use fencelock::{Durability, Error, LockName, Promises, Token};
use futures_util::future::join_all;

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, until};

pub(super) const CASES: &[Case] = &[
    case!(a_token_is_above_the_floor).promised(|promises| promises.floor > Floor::Refused),
    case!(a_floor_applies_to_all_later_claims).promised(|promises| promises.floor == Floor::Store),
    case!(all_tokens_are_raised_at_once).promised(has_several_counters),
    case!(a_floor_applies_to_waiters_and_not_to_the_holder)
        .promised(|promises| promises.floor > Floor::Refused),
    case!(a_floor_outlives_the_server)
        .promised(|promises| {
            promises.floor == Floor::Store && promises.durability == Durability::Durable
        })
        .server(),
    case!(a_floor_is_refused_where_none_is_promised)
        .promised(|promises| promises.floor == Floor::Refused),
];

/// Tokens do not rise that far by themselves in a case, even where they follow the time in microseconds: an hour.
const FAR: u64 = 3_600_000_000;

fn claim(ctx: &Ctx, name: &str) -> Claim {
    let name = LockName::new(name).unwrap();
    let id = ctx.store().claim_id();
    let claim = Claim::new(id, "conformance", name).wait(false);
    claim.ttl(Duration::from_secs(20))
}

/// The token of a claim that must hold.
async fn token(engine: &Arc<dyn Engine>, claim: &Claim) -> Token {
    let placed = soon("placing a claim", engine.place(claim)).await;
    match placed.unwrap() {
        Standing::Held(grant) => grant.tokens.first,
        standing => panic!("{standing:?}"),
    }
}

async fn release(engine: &Arc<dyn Engine>, claim: &Claim) {
    let withdrawn = soon("a release", engine.withdraw(claim, Leave::Release)).await;
    withdrawn.unwrap();
}

/// The token of a free lock, which is then released again.
async fn pass(engine: &Arc<dyn Engine>, claim: &Claim) -> Token {
    let token = token(engine, claim).await;
    release(engine, claim).await;
    token
}

/// Takes a lock several times. Its tokens grow.
async fn pass_often(ctx: &Ctx, engine: &Arc<dyn Engine>, name: &str) {
    let mut before = Token(0);
    for _ in 0..8 {
        let token = pass(engine, &claim(ctx, name)).await;
        assert!(token > before, "{token} after {before}");
        before = token;
    }
}

async fn a_token_is_above_the_floor(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    let mut last = pass(&two, &claim(&ctx, &ctx.name())).await;
    for round in 0..3 {
        let floor = Token(last.get() + FAR);
        let above = claim(&ctx, &ctx.name()).floor(floor);
        let engine = if round == 1 { &two } else { &one };
        let first = token(engine, &above).await;
        assert!(first > floor, "{first} for a floor of {floor}");
        assert_eq!(token(engine, &above).await, first, "placed again");
        release(engine, &above).await;
        // Other clients have seen no floor: one that is already connected, and a new one.
        let next = pass(&two, &claim(&ctx, &ctx.name())).await;
        assert!(next > first, "{next} after {first}");
        last = pass(&ctx.engine().await, &claim(&ctx, &ctx.name())).await;
        assert!(last > next, "{last} after {next}");
    }
    // A floor far below the counter neither raises nor lowers it.
    let low = pass(&one, &claim(&ctx, &ctx.name()).floor(Token(1))).await;
    assert!(
        low > last && low.get() < last.get() + FAR,
        "{low} after {last}"
    );
    let senseless = claim(&ctx, &ctx.name()).floor(Token(MAX_FLOOR.get() + 1));
    let refused = one.place(&senseless).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
    let next = pass(&one, &claim(&ctx, &ctx.name())).await;
    assert!(next > low && next.get() < low.get() + FAR, "{next}");
}

async fn a_floor_applies_to_all_later_claims(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    let mut last = pass(&two, &claim(&ctx, "first")).await;
    for round in 0..4 {
        let floor = Token(last.get() + FAR);
        // While the floor is raised, other claims take other locks.
        let busy = (0..4).map(|number| {
            let (ctx, two) = (&ctx, &two);
            async move { pass_often(ctx, two, &format!("busy/{number}")).await }
        });
        let name = format!("raised/{round}");
        let above = claim(&ctx, &name).floor(floor);
        let (first, _) = tokio::join!(pass(&one, &above), join_all(busy));
        assert!(first > floor, "{first} for a floor of {floor}");
        for engine in [&one, &two, &ctx.engine().await] {
            let token = pass(engine, &claim(&ctx, &format!("later/{round}"))).await;
            assert!(token > first, "{token} after {first}");
            last = token;
        }
    }
    for engine in [one, two] {
        engine.close().await.unwrap();
    }
    let again = pass(&ctx.engine().await, &claim(&ctx, "first")).await;
    assert!(again > last, "{again} after {last}");
    ctx.await_nothing_left().await;
}

/// In a move each step raises the tokens that must be raised.
fn has_several_counters(promises: &Promises) -> bool {
    promises.floor == Floor::Name && promises.engine != "migrate"
}

async fn all_tokens_are_raised_at_once(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    let begin = pass(&two, &claim(&ctx, "first")).await;
    let (mut highest, mut floor) = (begin, Token(0));
    for round in 0..4 {
        // The counters differ.
        for number in 0..4 {
            let above = claim(&ctx, &format!("above/{round}/{number}"));
            let above = above.floor(Token(begin.get() + (round * 4 + number) * FAR));
            highest = highest.max(pass(&two, &above).await);
        }
        // While they are raised, other claims take locks.
        let busy = (0..4).map(|number| {
            let (ctx, two) = (&ctx, &two);
            async move { pass_often(ctx, two, &format!("busy/{round}/{number}")).await }
        });
        let raise = soon("raising all tokens", one.raise_tokens(floor));
        let (raised, _) = tokio::join!(raise, join_all(busy));
        let raised = raised.unwrap();
        assert!(raised >= highest.max(floor), "{raised}: {highest}, {floor}");
        assert!(raised.get() < highest.max(floor).get() + FAR, "{raised}");
        for engine in [&one, &two, &ctx.engine().await] {
            let later = (0..32).map(|number| {
                let ctx = &ctx;
                async move {
                    let later = claim(ctx, &format!("later/{number}"));
                    let token = pass(engine, &later).await;
                    assert!(token > raised, "{token} after {raised}");
                }
            });
            join_all(later).await;
        }
        floor = Token(raised.get() + (round % 2) * 4 * FAR);
    }
    let refused = one.raise_tokens(Token(MAX_FLOOR.get() + 1)).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
    ctx.await_nothing_left().await;
}

async fn a_floor_applies_to_waiters_and_not_to_the_holder(ctx: Ctx) {
    let (one, two) = (ctx.engine().await, ctx.engine().await);
    // With `record`, since a store that does not know the token yet would draw another one.
    let holder = claim(&ctx, &ctx.name()).record(true);
    let held = token(&one, &holder).await;
    let floor = Token(held.get() + FAR);
    let waiter = claim(&ctx, &ctx.name()).floor(floor).wait(true);
    let placed = soon("joining the queue", two.place(&waiter)).await.unwrap();
    assert!(matches!(placed, Standing::Waiting(_)), "{placed:?}");
    // The holder keeps its token, whatever floor its claim has now.
    let again = holder.clone().floor(floor);
    assert_eq!(token(&one, &again).await, held);
    release(&one, &holder).await;
    let mut got = Token(0);
    until("the waiter holds", async || {
        match two.place(&waiter).await.unwrap() {
            Standing::Held(grant) => {
                got = grant.tokens.first;
                true
            }
            _ => false,
        }
    })
    .await;
    assert!(got > floor, "{got} for a floor of {floor}");
    release(&two, &waiter).await;
    let next = pass(&one, &claim(&ctx, &ctx.name())).await;
    assert!(next > got, "{next} after {got}");
    ctx.await_nothing_left().await;
}

async fn a_floor_outlives_the_server(ctx: Ctx) {
    let engine = ctx.engine().await;
    let before = pass(&engine, &claim(&ctx, &ctx.name())).await;
    let floor = Token(before.get() + FAR);
    let first = pass(&engine, &claim(&ctx, &ctx.name()).floor(floor)).await;
    assert!(first > floor, "{first} for a floor of {floor}");
    engine.close().await.unwrap();
    ctx.server().kill9();
    ctx.server().restart().unwrap();
    let client = ctx.client().await;
    let request = client.lock(&ctx.name());
    let guard = soon("the lock after the restart", request).await.unwrap();
    assert!(guard.token() > first, "{} after {first}", guard.token());
    guard.release().await.unwrap();
}

async fn a_floor_is_refused_where_none_is_promised(ctx: Ctx) {
    let engine = ctx.engine().await;
    let above = claim(&ctx, &ctx.name()).floor(Token(1));
    let refused = engine.place(&above).await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    ctx.await_nothing_left().await;
    pass(&engine, &claim(&ctx, &ctx.name())).await;
}
