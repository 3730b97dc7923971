//! Joining a hold of the same owner. A client joins only if it says so.

use std::time::Duration;

use fencelock::{Error, Promises, Release};
use serde_json::json;
use tokio::time::Instant;

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, take, until};
use crate::remote::Wanted;

pub(super) static CASES: &[Case] = &[
    case!(an_owner_enters_again),
    case!(the_outermost_leave_releases),
    case!(exclusive_inside_shared_is_refused).promised(shared),
    case!(a_child_process_joins).processes(),
    // A hold that is bound to a connection ends before a child process of its owner can know.
    case!(a_child_is_lost_with_its_owner)
        .processes()
        .promised(|promises| promises.lease != fencelock::LeaseKind::Connection),
    case!(a_child_soon_learns_of_a_release),
    case!(an_owner_of_the_past_joins_nothing).processes(),
];

fn shared(promises: &Promises) -> bool {
    promises.shared
}

async fn an_owner_enters_again(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let owner = client.owner();
    let outer = client.lock(&name).owner(&owner).await.unwrap();
    let inner = soon("entering again", client.lock(&name).owner(&owner))
        .await
        .unwrap();
    assert_eq!(inner.token(), outer.token());
    // Without the owner, or with another owner, the same task does not join.
    let held = client.try_lock(&name).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    let held = client.try_lock(&name).owner(&client.owner()).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    drop(inner);
    assert!(outer.is_valid());
    outer.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn the_outermost_leave_releases(ctx: Ctx) {
    let (client, other, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let owner = client.owner();
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(client.lock(&name).owner(&owner).await.unwrap());
    }
    // They leave in the order of their requests. The order must not matter.
    for guard in guards.drain(..2) {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let held = other.try_lock(&name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    }
    let token = guards[0].token();
    assert_eq!(guards.remove(0).release().await.unwrap(), Release::Released);
    let next = soon("the lock is free", other.try_lock(&name))
        .await
        .unwrap();
    assert!(next.token() > token);
    drop(next);
    // The hold has ended: the owner waits like every client, and gets a token of its own.
    let again = soon("the lock again", client.lock(&name).owner(&owner))
        .await
        .unwrap();
    assert!(again.token() > token);
    assert!(!again.joined());
}

async fn exclusive_inside_shared_is_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let owner = client.owner();
    let reader = client.lock(&name).shared().owner(&owner).await.unwrap();
    let refused = soon("an answer at once", client.lock(&name).owner(&owner)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert!(reader.is_valid());
    let beside = client.lock(&name).shared().owner(&owner).await.unwrap();
    assert_eq!(beside.token(), reader.token());
}

async fn a_child_process_joins(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let owner = client.owner();
    let outer = client.lock(&name).owner(&owner).await.unwrap();
    let mut child = ctx.remote().await;
    let wanted = Wanted {
        owner: Some(owner.as_str()),
        ..Wanted::new(&name, ctx.ttl(1000))
    };
    let joined = child.take(wanted).await;
    assert_eq!(joined["joined"], true, "{joined}");
    assert_eq!(joined["token"], outer.token().get());
    // Neither the release nor the kill of the child ends the owner's hold.
    let released = child.ask(json!({"do": "release", "guard": joined["guard"]}));
    child.answer("the child leaves", released).await;
    assert_eq!(
        client.look(&name).await.unwrap().token(),
        Some(outer.token())
    );
    child.take(wanted).await;
    child.process().kill9();
    assert_eq!(
        client.look(&name).await.unwrap().token(),
        Some(outer.token())
    );
    assert!(outer.is_valid());
    assert_eq!(outer.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

/// Only the owner renews a joined hold. The child does not believe in it for longer than the store keeps it.
async fn a_child_is_lost_with_its_owner(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    // At least 4/9 of it are left when the child asks again: longer than a busy machine stands still.
    let ttl = ctx.ttl(2700);
    let mut parent = ctx.remote().await;
    let held = parent.take(Wanted::new(&name, ttl)).await;
    let owner = client.join(held["owner"].as_str().unwrap()).unwrap();
    let child = soon("joining", client.lock(&name).owner(&owner))
        .await
        .unwrap();
    assert!(child.joined());
    // The owner's renewals keep it for longer than one ttl.
    tokio::time::sleep(ttl + Duration::from_millis(300)).await;
    assert!(child.is_valid());
    parent.process().kill9();
    let killed = Instant::now();
    let other = ctx.client().await;
    let next = soon("the lock is free", other.lock(&name)).await.unwrap();
    assert!(!child.is_valid(), "two believe to hold");
    assert!(next.token() > child.token());
    soon("the child learns of it", child.lost()).await;
    assert!(killed.elapsed() < ttl + Duration::from_secs(12));
    drop(child);
    assert!(next.is_valid());
    let view = other.look(&name).await.unwrap();
    assert_eq!(view.holders.len(), 1);
}

/// The child learns of the release long before its own renewal.
async fn a_child_soon_learns_of_a_release(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let owner = one.owner();
    let request = one.lock(&name).owner(&owner);
    let outer = request.ttl(Duration::from_secs(60)).await.unwrap();
    let within = two.join(owner.as_str()).unwrap();
    let child = two.lock(&name).owner(&within).await.unwrap();
    assert!(child.joined());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(child.is_valid(), "lost while the outer one holds");
    outer.release().await.unwrap();
    let released = Instant::now();
    soon("the child learns of it", child.lost()).await;
    let after = released.elapsed();
    // Its own renewal would come after 20 s.
    assert!(after < Duration::from_secs(12), "told after {after:?}");
}

async fn an_owner_of_the_past_joins_nothing(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let owner = client.owner();
    let outer = client.lock(&name).owner(&owner).await.unwrap();
    outer.release().await.unwrap();
    let holder = take(&client, &name).await;
    let other = ctx.client().await;
    let stale = other.join(owner.as_str()).unwrap();
    let joined = soon("an answer", other.try_lock(&name).owner(&stale)).await;
    assert!(matches!(joined, Err(Error::Held { .. })), "{joined:?}");
    holder.release().await.unwrap();
    until("the lock is free", async || {
        client.look(&name).await.unwrap().holders.is_empty()
    })
    .await;
    // The old owner may get the lock itself, but it does not join a hold.
    if let Ok(guard) = soon("an answer", other.try_lock(&name).owner(&stale)).await {
        assert!(!guard.joined());
    }
    for text in ["", "me", "me#12", "a\u{7}#00112233445566778899aabbccddeeff"] {
        let error = client.join(text).unwrap_err();
        assert!(
            matches!(error, Error::Invalid { .. }),
            "{text:?}: {error:?}"
        );
    }
}
