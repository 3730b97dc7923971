//! Tokens strictly increase over all grants of a name, in every situation.

use std::time::Duration;

use fencelock::engine::Evict;
use fencelock::{Client, LeaseKind, Promises, Token};
use futures_util::FutureExt;

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, until, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(tokens_increase_over_release),
    case!(tokens_increase_over_expiry),
    case!(tokens_increase_over_eviction),
    case!(tokens_increase_over_modes).promised(|promises| promises.shared),
    case!(tokens_increase_over_restart).server(),
    case!(tokens_increase_over_loss_of_memory)
        .server()
        .promised(outlives_its_memory),
    case!(tokens_increase_over_erasure)
        .server()
        .promised(|promises| promises.lease != LeaseKind::Connection),
];

/// Where sessions and data are one history, a server that has lost it is another store.
fn outlives_its_memory(promises: &Promises) -> bool {
    promises.lease != LeaseKind::Session
}

fn above(before: &mut Token, token: Token) {
    assert!(token > *before, "{token} after {before}");
    assert!(token < Token::END, "{token}");
    *before = token;
}

async fn tokens_increase_over_release(ctx: Ctx) {
    let mut last = Token(0);
    let clients = [ctx.client().await, ctx.client().await, ctx.client().await];
    for round in 0..30 {
        let guard = take(&clients[round % 3], &ctx.name()).await;
        above(&mut last, guard.token());
        guard.release().await.unwrap();
    }
    // A new client does not restart the tokens, even on an empty store.
    ctx.await_nothing_left().await;
    above(
        &mut last,
        take(&ctx.client().await, &ctx.name()).await.token(),
    );
}

async fn tokens_increase_over_expiry(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let mut last = Token(0);
    for client in [&one, &two, &one] {
        let request = client.lock(&name).ttl(ctx.ttl(100)).renew(false);
        let guard = soon("the hold before expires", request).await.unwrap();
        above(&mut last, guard.token());
        // The guard is neither released nor dropped.
        std::mem::forget(guard);
    }
}

async fn tokens_increase_over_eviction(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let mut last = Token(0);
    for _ in 0..3 {
        let guard = take(&one, &name).await;
        above(&mut last, guard.token());
        guard.sequencer().await.unwrap();
        assert!(
            two.evict(&name, guard.token(), Evict::Release)
                .await
                .unwrap()
        );
        let next = take(&two, &name).await;
        above(&mut last, next.token());
        drop(guard);
        next.release().await.unwrap();
    }
}

async fn tokens_increase_over_modes(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let mut last = Token(0);
    for _ in 0..3 {
        let reader = one.lock(&name).shared().await.unwrap();
        above(&mut last, reader.token());
        let other = two.lock(&name).shared().await.unwrap();
        above(&mut last, other.token());
        reader.release().await.unwrap();
        other.release().await.unwrap();
        let writer = take(&two, &name).await;
        above(&mut last, writer.token());
        writer.release().await.unwrap();
    }
}

/// Acquires the lock with a client that may have to reconnect first.
async fn token_of(client: &Client, name: &str) -> Token {
    let request = client.lock(name).timeout(Duration::from_secs(12));
    let guard = soon("the lock after the restart", request).await;
    let guard = guard.unwrap_or_else(|error| panic!("no lock after the restart: {error}"));
    let token = guard.token();
    guard.release().await.unwrap();
    token
}

async fn tokens_increase_over_restart(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name());
    let mut last = token_of(&one, &name).await;
    for _ in 0..2 {
        ctx.server().restart().unwrap();
        above(&mut last, token_of(&one, &name).await);
        above(&mut last, token_of(&ctx.client().await, &name).await);
    }
}

/// The token also increases from a held lock to the next one from a server that has lost its data.
async fn tokens_increase_over_loss_of_memory(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let held = take(&one, &name).await;
    let waiter = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 1).await;
    ctx.server().restart_empty().unwrap();
    let mut last = held.token();
    above(
        &mut last,
        got("the waiter is served by the new server", waiter)
            .await
            .token(),
    );
    drop(held);
    until("the lock is free", async || {
        one.look(&name)
            .await
            .is_ok_and(|view| view.holders.is_empty())
    })
    .await;
    above(&mut last, token_of(&one, &name).await);
}

/// The server has lost its data, and no connection has ended.
async fn tokens_increase_over_erasure(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let mut last = token_of(&one, &name).await;
    above(&mut last, token_of(&two, &name).await);
    for _ in 0..3 {
        // The lock is acquired by a client that has seen tokens,
        ctx.server().erase().unwrap();
        above(&mut last, token_of(&two, &name).await);
        // by a client that has seen none,
        ctx.server().erase().unwrap();
        above(&mut last, token_of(&ctx.client().await, &name).await);
        // and by a waiter.
        let held = take(&one, &name).await;
        above(&mut last, held.token());
        let waiter = wait_for(&two, &name);
        ctx.await_queued(&one, &name, 1).await;
        ctx.server().erase().unwrap();
        let next = got("the waiter is served", waiter).await;
        above(&mut last, next.token());
        // The previous holder has nothing left to release.
        drop(held);
        let other = take(&one, &format!("{name}/other")).await;
        other.release().await.unwrap();
        let lost = next.lost().now_or_never();
        assert!(next.is_valid() && lost.is_none(), "lost: {lost:?}");
        next.release().await.unwrap();
    }
}
