//! Shards that are added and removed while programs run. Names that move do so as between two stores; names that stay are not
//! affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fencelock_composite::{How, Migrate, Phase, Routed, Stepped, may_stand_alone};
use fencelock_core::engine::{Claim, Leave, Standing};
use fencelock_core::{ClaimIds, Client, Engine, Error, LockName, Memory, Token};

use crate::change::{Change, SET, terms};
use crate::two::{
    LONG_PACE, LONG_TTL, SLOW_PACE, SLOW_TTL, TTL, grow_and_differ, holds_until, token,
};
use crate::until;

async fn workers_over_all_steps(change: Change, name: &str, behind: usize) {
    // The tokens of the other stores are far below those of this one.
    let ahead = Client::new(Arc::new(change.stores[behind].another())).unwrap();
    for _ in 0..50 {
        token(&ahead, "other").await;
    }
    let (change, done) = (Arc::new(change), Arc::new(AtomicBool::new(false)));
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (change, done, name) = (Arc::clone(&change), Arc::clone(&done), name.to_owned());
            tokio::spawn(async move {
                let client = change.client().await;
                holds_until(&done, &client, &name).await
            })
        })
        .collect();
    let client = change.client().await;
    let mut highest = Token(0);
    let mut grows = async |phase: &str| {
        let next = token(&client, name).await;
        assert!(next > highest, "{phase}: {next} after {highest}");
        highest = next;
    };
    grows("0").await;
    change.begin().await;
    grows("1").await;
    change.finish(Phase::BothNew).await;
    grows("3").await;
    change.finish(Phase::New).await;
    grows("4").await;
    change.abort().await;
    grows("back to 0").await;
    done.store(true, SeqCst);
    grow_and_differ(workers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_moves_to_an_added_shard_and_back_with_growing_tokens() {
    let change = Change::paced(2, 3, SLOW_PACE).await;
    let name = change.name("a", "c");
    workers_over_all_steps(change, &name, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_moves_from_a_removed_shard_and_back_with_growing_tokens() {
    let change = Change::paced(3, 2, SLOW_PACE).await;
    let name = change.name("c", "b");
    workers_over_all_steps(change, &name, 2).await;
}

/// Its holder keeps it, and a waiter keeps its place, over all steps, even with a program that does not know of the change.
#[tokio::test]
async fn a_name_that_stays_is_not_disturbed() {
    let change = Change::paced(2, 3, SLOW_PACE).await;
    let name = change.name("a", "a");
    let [holder, first, second] = [
        change.client().await,
        change.client().await,
        change.client().await,
    ];
    let guard = holder.lock(&name).ttl(SLOW_TTL).label("0").await.unwrap();
    let mut waiting = Vec::new();
    for client in [first, second] {
        let count = waiting.len() + 1;
        let of = name.clone();
        waiting.push(tokio::spawn(async move {
            let request = client.lock(&of).ttl(SLOW_TTL).label(&count.to_string());
            (request.await.unwrap(), client)
        }));
        until("it waits", async || {
            holder.look(&name).await.unwrap().waiters.len() == count
        })
        .await;
    }
    let queue = async || {
        let view = change.stores[0]
            .inspect()
            .look(&LockName::new(&name).unwrap())
            .await
            .unwrap();
        let claims = view.holders.into_iter().map(|holder| holder.label);
        let waits = view.waiters.into_iter().map(|waiter| waiter.label);
        claims.chain(waits).flatten().collect::<Vec<_>>()
    };
    let before = queue().await;
    assert_eq!(before, ["0", "1", "2"]);
    change.begin().await;
    change.finish(Phase::BothNew).await;
    change.finish(Phase::New).await;
    change.abort().await;
    assert_eq!(queue().await, before);
    assert_eq!(change.held(&name).await, [1, 0, 0]);
    assert!(guard.is_valid());
    let mut last = guard.token();
    guard.release().await.unwrap();
    for waiter in waiting {
        let (next, _client) = waiter.await.unwrap();
        assert!(next.token() > last);
        last = next.token();
        next.release().await.unwrap();
    }
}

/// So a shard that does not answer delays no renewal at another one.
#[tokio::test]
async fn names_of_other_shards_are_renewed_apart() {
    let change = Change::prepared(2, 3).await;
    change.set_phase(1).await;
    let engine = change.engine().await;
    let lane = |before, after| {
        let name = LockName::new(&change.name(before, after)).unwrap();
        engine.lane(&name)
    };
    let lanes = [
        lane("a", "a"),
        lane("b", "b"),
        lane("a", "c"),
        lane("b", "c"),
    ];
    let mut apart = lanes.to_vec();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), lanes.len(), "{lanes:?}");
}

/// In the hush nothing is granted of names that move, and everything of names that stay.
#[tokio::test]
async fn a_name_that_stays_has_no_hush() {
    let change = Change::prepared(2, 3).await;
    let (stays, moves) = (change.name("b", "b"), change.name("b", "c"));
    change.set_phase(2).await;
    let client = change.client().await;
    token(&client, &stays).await;
    let refused = client.try_lock(&moves).ttl(TTL).await.map(drop);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("between two stores"), "{refused}");
    assert_eq!(change.held(&moves).await, [0, 0, 0]);
}

/// The first waiter holds the old store, and a holder holds both.
#[tokio::test]
async fn in_the_hush_the_first_waiter_is_shown_as_a_waiter() {
    let change = Change::paced(2, 3, LONG_PACE).await;
    let (name, other) = (change.name("a", "c"), change.name("b", "c"));
    change.begin().await;
    let client = change.client().await;
    let shown = async || {
        let view = client.look(&name).await.unwrap();
        let listed = client.list("").await.unwrap();
        (view.holders.len(), view.waiters.len(), listed.len())
    };
    let guard = client.lock(&name).ttl(LONG_TTL).await.unwrap();
    change.set_phase(2).await;
    until("the client knows of the hush", async || {
        client
            .try_lock(&other)
            .ttl(LONG_TTL)
            .await
            .is_err_and(|error| error.is_away())
    })
    .await;
    assert_eq!(shown().await, (1, 0, 1));
    guard.release().await.unwrap();
    let waits = {
        let (client, name) = (client.clone(), name.clone());
        tokio::spawn(async move { client.lock(&name).ttl(LONG_TTL).await.map(drop) })
    };
    until("it has the old store", async || {
        change.held(&name).await == [1, 0, 0]
    })
    .await;
    assert_eq!(shown().await, (0, 1, 0));
    waits.abort();
}

/// On the way back, the shards that stay get floors for the names that return to them.
#[tokio::test]
async fn a_floor_does_not_end_a_claim_of_a_name_that_stays() {
    let change = Change::prepared(2, 3).await;
    let name = change.name("a", "a");
    let engine = change.engine().await;
    let on = LockName::new(&name).unwrap();
    let claim = Claim::new(ClaimIds::new().unwrap().next(), "me", on).ttl(LONG_TTL);
    let Standing::Held(grant) = engine.place(&claim).await.unwrap() else {
        panic!("it is free");
    };
    let steps = async {
        change.begin().await;
        change.finish(Phase::BothNew).await;
        change.abort().await;
    };
    tokio::pin!(steps);
    let again = loop {
        // Placing the claim again prolongs it.
        let standing = engine.place(&claim).await.unwrap();
        tokio::select! {
            () = &mut steps => break engine.place(&claim).await.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
        assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    };
    assert!(
        matches!(&again, Standing::Held(of) if of.tokens == grant.tokens),
        "{again:?}"
    );
    engine.withdraw(&claim, Leave::Release).await.unwrap();
}

#[tokio::test]
async fn a_hold_that_moves_lives_through_all_steps() {
    let change = Change::paced(2, 3, SLOW_PACE).await;
    let name = change.name("b", "c");
    let client = change.client().await;
    let guard = client.lock(&name).ttl(SLOW_TTL).await.unwrap();
    change.begin().await;
    until("it is completed", async || {
        change.held(&name).await == [0, 1, 1]
    })
    .await;
    let listed = async || {
        let listed = client.list("").await.unwrap().into_iter();
        listed.map(|view| view.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, [name.as_str()]);
    change.finish(Phase::BothNew).await;
    assert_eq!(
        client.look(&name).await.unwrap().token(),
        Some(guard.token())
    );
    assert_eq!(listed().await, [name.as_str()]);
    change.finish(Phase::New).await;
    assert_eq!(listed().await, [name.as_str()]);
    until("the old shard is left", async || {
        change.held(&name).await == [0, 0, 1]
    })
    .await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert_eq!(change.held(&name).await, [0, 0, 0]);
}

/// Each change has a set of its own. The steps of another one would be those of the wrong shards.
#[tokio::test]
async fn a_change_back_is_another_change() {
    let change = Change::prepared(2, 3).await;
    change.begin().await;
    change.finish(Phase::BothNew).await;
    change.finish(Phase::New).await;
    let back = || {
        let back = Migrate::shards(change.after(), change.before());
        back.set(SET).migration().unwrap()
    };
    let how = How::new("test");
    for refused in [
        back().prepare(&terms(), "test").await,
        back().begin(&how).await,
        back().finish(&how).await,
        back().abort(&how).await,
        back()
            .status()
            .await
            .map(|status| Stepped::Done(status.phase)),
    ] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("makes the change orders (a"), "{why}");
    }
    let prepared = back().prepare(&terms().replace(true), "test").await;
    assert_eq!(prepared.unwrap(), Stepped::Done(Phase::Old));
}

/// The set that makes the change is no set of shards, whatever the program names as its shards.
#[tokio::test]
async fn the_set_that_makes_the_change_is_not_opened_as_shards() {
    let change = Change::prepared(2, 3).await;
    for phase in 0..=4 {
        change.set_phase(phase).await;
        for count in 1..=3 {
            let opened = change.shards(&(0..count)).set(SET).open().await;
            assert!(matches!(opened, Err(Error::Config { .. })), "{opened:?}");
        }
        let dissolved = change.shards(&(0..1)).set(SET).dissolve("test").await;
        assert!(
            matches!(dissolved, Err(Error::Config { .. })),
            "{dissolved:?}"
        );
    }
}

/// Programs need not all be switched at once, neither before nor after the change.
#[tokio::test]
async fn a_set_of_shards_by_itself_is_refused_while_names_are_on_their_way() {
    let change = Change::made(2, 3).await;
    let opens = async |before: bool| {
        let set = if before {
            change.before()
        } else {
            change.after()
        };
        match set.open().await {
            Ok(set) => set.close().await.map(|()| true).unwrap(),
            Err(Error::Config { why, .. }) => {
                assert!(
                    why.contains("migrate:?") || why.contains("of the set"),
                    "{why}"
                );
                false
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((opens(true).await, opens(false).await), (true, false));
    change.prepare(&terms()).await.unwrap();
    assert_eq!((opens(true).await, opens(false).await), (true, false));
    // `init` would end the change.
    assert!(change.before().init().await.is_err());
    change.begin().await;
    assert_eq!((opens(true).await, opens(false).await), (false, false));
    change.finish(Phase::BothNew).await;
    assert_eq!((opens(true).await, opens(false).await), (false, false));
    change.finish(Phase::New).await;
    assert_eq!((opens(true).await, opens(false).await), (false, true));
    // The shards of one set, under the name of the other set.
    let other = change.shards(&(0..3)).set("orders").open().await;
    assert!(matches!(other, Err(Error::Config { .. })), "{other:?}");
    assert!(change.after().init().await.is_err());
}

#[tokio::test]
async fn a_program_that_was_not_switched_stops_the_change_if_its_name_moves() {
    let change = Change::prepared(2, 3).await;
    let (stays, moves) = (change.name("a", "a"), change.name("a", "c"));
    let forgotten = Client::new(Arc::new(change.before().open().await.unwrap())).unwrap();
    let kept = forgotten.lock(&stays).await.unwrap();
    let guard = forgotten.lock(&moves).await.unwrap();
    change.begin().await;
    let migration = || change.stores().migration().unwrap();
    let status = migration().status().await.unwrap();
    assert_eq!(status.held, Some((1, 0, 0)));
    assert_eq!(status.unpaired.len(), 1);
    assert_eq!(status.unpaired[0].name.as_str(), moves);
    let how = How::new("test").patience(Duration::ZERO);
    let refused = migration().finish(&how).await.unwrap();
    assert!(
        matches!(&refused, Stepped::NotYet(why) if why.contains(&moves) && !why.contains(&stays)),
        "{refused:?}"
    );
    guard.release().await.unwrap();
    change.finish(Phase::BothNew).await;
    assert!(kept.is_valid());
    kept.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_that_lost_one_of_its_shards_ends_in_the_hush() {
    let change = Change::paced(2, 3, SLOW_PACE).await;
    let name = change.name("a", "c");
    change.begin().await;
    let client = change.client().await;
    let guard = client.lock(&name).ttl(SLOW_TTL).await.unwrap();
    let on = LockName::new(&name).unwrap();
    // The new shard's part of the hold is evicted.
    let view = change.stores[2].inspect().look(&on).await.unwrap();
    let there = view.token().unwrap();
    change.set_phase(2).await;
    let how = fencelock_core::Evict::Release;
    change.stores[2]
        .inspect()
        .evict(&on, there, how)
        .await
        .unwrap();
    // Nothing can complete the hold before the hush is over, so it ends with its lease at the latest.
    let lost = tokio::time::timeout(Duration::from_secs(15), guard.lost()).await;
    assert!(lost.is_ok() && !guard.is_valid(), "{lost:?}");
}

#[tokio::test]
async fn prepare_refuses_stores_of_other_sets() {
    let refused = async |change: &Change, what: &str| {
        let error = change.prepare(&terms()).await.unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        for store in &change.stores {
            let text = store.record("", None).await.unwrap().text;
            assert!(!text.contains(SET), "{text}");
        }
    };
    // A new shard in which a lock is held.
    let change = Change::made(2, 3).await;
    let other = Client::new(Arc::new(change.stores[2].another())).unwrap();
    let guard = other.lock("x").await.unwrap();
    refused(&change, "lock x is held").await;
    guard.release().await.unwrap();
    // A shard without its record.
    let mut lost = Change::made(2, 3).await;
    lost.stores[1] = Memory::new();
    refused(&lost, "shard b of the set").await;
    // The record of another set.
    let mut bills = Change::made(2, 3).await;
    bills.stores[2] = {
        let store = Memory::new();
        let shard = ("c", Arc::new(store.another()) as Arc<dyn Engine>);
        Routed::shards([shard]).set("bills").init().await.unwrap();
        store
    };
    refused(&bills, "bills").await;
    // Two swapped shards.
    let mut swapped = Change::made(2, 3).await;
    swapped.stores.swap(0, 1);
    refused(&swapped, "two URLs are swapped").await;
}

#[tokio::test]
async fn an_added_shard_is_given_back_and_no_other() {
    let change = Change::prepared(2, 3).await;
    let alone = async || {
        let mut alone = [false; 3];
        for (alone, store) in alone.iter_mut().zip(&change.stores) {
            *alone = may_stand_alone(&store.record("", None).await.unwrap().text);
        }
        alone
    };
    assert_eq!(alone().await, [false; 3]);
    change.begin().await;
    change.abort().await;
    assert_eq!(alone().await, [false; 3]);
    change.abort().await;
    assert_eq!(alone().await, [false, false, true]);
    // Another program uses the shard now.
    let other = Client::new(Arc::new(change.stores[2].another())).unwrap();
    let guard = other.lock("x").await.unwrap();
    let migration = change.stores().migration().unwrap();
    let refused = migration.begin(&How::new("test")).await.unwrap();
    assert!(
        matches!(&refused, Stepped::NotYet(why) if why.contains("[c] lock x is held")),
        "{refused:?}"
    );
    guard.release().await.unwrap();
    change.begin().await;
    assert_eq!(alone().await, [false; 3]);
}

/// The next change begins with the set that the last one produced.
#[tokio::test]
async fn a_change_follows_a_change() {
    let change = Change::prepared(2, 3).await;
    let name = change.name("a", "c");
    let early = token(&change.client().await, &name).await;
    let back = || {
        let before = change.after();
        Migrate::shards(before, change.shards(&(0..2)).set("orders")).set("shrink")
    };
    let prepare = async |replace: bool| {
        let migration = back().migration().unwrap();
        migration.prepare(&terms().replace(replace), "test").await
    };
    // The change is not over.
    assert!(prepare(true).await.is_err());
    change.begin().await;
    change.finish(Phase::BothNew).await;
    assert!(prepare(true).await.is_err());
    change.finish(Phase::New).await;
    let middle = token(&change.client().await, &name).await;
    assert!(middle > early);
    let refused = prepare(false).await.unwrap_err().to_string();
    assert!(refused.contains("--replace"), "{refused}");
    prepare(true).await.unwrap();
    // The last change is completely over.
    let last = change.stores().migration().unwrap();
    assert!(last.abort(&How::new("test")).await.is_err());
    let client = Client::new(Arc::new(back().open().await.unwrap())).unwrap();
    let migration = || back().migration().unwrap();
    assert!(token(&client, &name).await > middle);
    let how = How::new("test");
    migration().begin(&how).await.unwrap();
    migration().finish(&how).await.unwrap();
    migration().finish(&how).await.unwrap();
    let end = token(&client, &name).await;
    assert!(end > middle);
    let set = change.before().open().await.unwrap();
    let plain = Client::new(Arc::new(set)).unwrap();
    assert!(token(&plain, &name).await > end);
    assert_eq!(change.stores[2].len(), 0);
}

#[tokio::test]
async fn an_old_shard_that_is_gone_cannot_be_left_out() {
    let change = Change::prepared(2, 3).await;
    change.begin().await;
    change.finish(Phase::BothNew).await;
    let migration = change.stores().migration().unwrap();
    let refused = migration.finish_without_old(&How::new("test")).await;
    assert!(
        matches!(refused, Err(Error::Unsupported { .. })),
        "{refused:?}"
    );
}
