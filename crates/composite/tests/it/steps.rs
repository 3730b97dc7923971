//! The checks before a step, and claims that were placed before the step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_composite::{How, Migrate, Migration, Phase, Stepped};
use fencelock_core::engine::{Claim, Cursor, HeldClaim, Leave, LockView, Page, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{ClaimId, ClaimIds, Client, Engine, Error, Evict, LockName, Memory, Token};

use crate::two::{
    LONG_TTL, SLOW_PACE, SLOW_TTL, TTL, Two, change_record, knows, restore, set_phase, token,
    told_of, version,
};
use crate::until;

/// A client of the old store by itself, which was opened before the move began.
fn forgotten(two: &Two) -> Client {
    Client::new(Arc::new(two.old.another())).unwrap()
}

fn named_by(stepped: &Stepped, name: &str) -> bool {
    matches!(stepped, Stepped::NotYet(why) if why.contains(name))
}

/// In the last phase nobody takes the old store any more, so whoever locks there alone would exclude nobody.
#[tokio::test]
async fn the_old_store_is_not_left_while_somebody_holds_there_alone() {
    let two = Two::prepared().await;
    two.begin().await;
    two.finish(Phase::BothNew).await;
    let guard = forgotten(&two).lock("x").await.unwrap();
    let how = How::new("test").patience(Duration::ZERO);
    let refused = two.migration().finish(&how).await.unwrap();
    assert!(named_by(&refused, "x"), "{refused:?}");
    let status = two.migration().status().await.unwrap();
    assert_eq!(
        (status.phase, status.held),
        (Phase::BothNew, Some((1, 0, 0)))
    );
    assert_eq!(status.unpaired.len(), 1, "{:?}", status.unpaired);
    guard.release().await.unwrap();
    two.finish(Phase::New).await;
}

/// The same on the way back, for the new store.
#[tokio::test]
async fn the_new_store_is_not_left_while_somebody_holds_there_alone() {
    let two = Two::prepared().await;
    two.begin().await;
    let early = Client::new(Arc::new(two.new.another())).unwrap();
    let guard = early.lock("x").await.unwrap();
    let how = How::new("test").patience(Duration::ZERO);
    let refused = two.migration().abort(&how).await.unwrap();
    assert!(named_by(&refused, "x"), "{refused:?}");
    guard.release().await.unwrap();
    two.abort().await;
}

/// A program that was not switched, and that holds its lock only shortly, is seen while `finish` waits for quiet.
#[tokio::test]
async fn short_holds_in_one_store_alone_end_the_quiet() {
    let two = Two::prepared().await;
    two.begin().await;
    let client = forgotten(&two);
    let often = tokio::spawn(async move {
        loop {
            let guard = client.lock("x").await.unwrap();
            tokio::time::sleep(Duration::from_millis(900)).await;
            guard.release().await.unwrap();
        }
    });
    let quiet = Duration::from_secs(20);
    let how = How::new("test").patience(Duration::ZERO).quiet(quiet);
    let refused = two.migration().finish(&how).await.unwrap();
    assert!(named_by(&refused, "x"), "{refused:?}");
    often.abort();
}

/// An administrator's process ended after it had written the arbiter alone. Whoever repeats the call wants the same phase.
#[tokio::test]
async fn a_repeated_finish_completes_its_step_and_goes_no_further() {
    let two = Two::prepared().await;
    two.begin().await;
    two.finish(Phase::BothNew).await;
    change_record(&two.new, |record| {
        record["phase"] = 2.into();
        record["version"] = version(record, -1);
    })
    .await;
    two.finish(Phase::BothNew).await;
    // With the phase it can be repeated any number of times.
    let to = |phase| How::new("test").to(phase);
    for _ in 0..2 {
        let done = two.migration().finish(&to(Phase::BothNew)).await.unwrap();
        assert_eq!(done, Stepped::Done(Phase::BothNew));
    }
    let wrong = two.migration().finish(&to(Phase::Hush)).await.unwrap_err();
    assert!(matches!(wrong, Error::Invalid { .. }), "{wrong:?}");
    let done = two.migration().finish(&to(Phase::New)).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
}

/// The lost old store may have had a step back that the new one did not get.
#[tokio::test]
async fn without_the_old_store_the_last_phase_gets_another_version() {
    let two = Two::prepared().await;
    two.move_all().await;
    let version = async || two.migration().status().await.unwrap().stores[1].version;
    let before = version().await;
    let how = How::new("test");
    let done = two.migration().finish_without_old(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    assert_eq!(version().await, before.map(|version| version + 2));
    // A new store in place of the old one has no record. The error says that the move is over.
    let replaced = Two {
        old: Memory::new(),
        new: two.new.another(),
    };
    let how = How::new("test");
    let refused = replaced.migration().finish(&how).await.unwrap_err();
    assert!(refused.to_string().contains("is over"), "{refused}");
}

/// The tokens of a move are ahead of those that the emptied store would give.
#[tokio::test]
async fn tokens_grow_after_the_loss_of_the_store_that_counts() {
    let two = Two::prepared().await;
    two.move_all().await;
    let client = two.client().await;
    let mut last = token(&client, "x").await;
    for _ in 0..5 {
        last = token(&client, "x").await;
    }
    let emptied = Two {
        old: two.old.another(),
        new: Memory::new(),
    };
    let how = How::new("test").record_lost(true);
    let done = emptied.migration().finish(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    // Clients that knew the record before the loss learn the new floor as well.
    let status = emptied.migration().status().await.unwrap();
    assert_eq!(status.stores[0].version, status.stores[1].version);
    let next = token(&emptied.client().await, "x").await;
    assert!(next > last, "{next} after {last}");
    // Neither do programs that use the new store by itself.
    let plain = Client::new(Arc::new(emptied.new.another())).unwrap();
    let next = token(&plain, "plain").await;
    assert!(next > last, "{next} after {last}");
    let done = emptied.migration().finish(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    let again = emptied.migration().status().await.unwrap();
    assert_eq!(again.version, status.version);
}

/// The end of the hush, by which the old store counted again, is lost together with that store.
#[tokio::test]
async fn tokens_grow_after_the_loss_of_the_end_of_the_hush() {
    let two = Two::prepared().await;
    two.begin().await;
    two.finish(Phase::BothNew).await;
    let client = two.client().await;
    let mut floor = token(&client, "x").await;
    for _ in 0..5 {
        floor = token(&client, "x").await;
    }
    for store in [&two.old, &two.new] {
        change_record(store, |record| {
            record["hush_from"] = record["phase"].clone();
            record["phase"] = Phase::Hush.number().into();
            record["version"] = version(record, 1);
        })
        .await;
    }
    let claim = claim().floor(Token(floor.get() + 10));
    let Standing::Held(lost) = two.old.place(&claim).await.unwrap() else {
        panic!("it is free");
    };
    let emptied = Two {
        old: Memory::new(),
        new: two.new.another(),
    };
    let how = How::new("test").record_lost(true);
    let done = emptied.migration().abort(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::Old));
    let next = token(&emptied.client().await, "x").await;
    assert!(
        next > lost.tokens.first,
        "{next} after {}",
        lost.tokens.first
    );
}

/// A client may know the version that the arbiter had before. So that version is not used again.
#[tokio::test]
async fn a_version_that_a_restored_arbiter_had_is_left_out() {
    let two = Two::prepared().await;
    two.begin().await;
    let old = two.old.record("", None).await.unwrap().text;
    two.finish(Phase::BothNew).await;
    let version = async || two.migration().status().await.unwrap().stores[0].version;
    let before = version().await;
    restore(&two.old, &old).await;
    let how = How::new("test").to(Phase::BothNew);
    let done = two.migration().finish(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::BothNew));
    assert_eq!(version().await, before.map(|version| version + 2));
}

#[tokio::test]
async fn doctor_tells_of_a_move_and_of_a_step_that_only_one_store_knows() {
    let two = Two::prepared().await;
    let before = two.new.record("", None).await.unwrap().text;
    let client = two.client().await;
    let found = async || {
        let found = client.diagnose().await.unwrap().into_iter();
        found
            .map(|finding| finding.what)
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert_eq!(found().await, "");
    two.begin().await;
    until("the move is told", async || {
        found().await.contains("a move is under way")
    })
    .await;
    assert!(!found().await.contains("version"));
    restore(&two.new, &before).await;
    let text = found().await;
    assert!(
        text.contains("[to] has version 1 of the record, and [from] has version 2"),
        "{text}"
    );
}

/// Its tokens since the backup would be given again.
#[tokio::test]
async fn a_store_that_counts_and_was_restored_grants_nothing_until_its_tokens_are_raised() {
    let two = Two::prepared().await;
    let first = two.new.record("", None).await.unwrap().text;
    two.move_all().await;
    let client = two.client().await;
    let last = token(&client, "x").await;
    restore(&two.new, &first).await;
    until("nothing is granted", async || {
        let request = client.try_lock("x").ttl(TTL).await;
        request.is_err_and(|error| error.is_away())
    })
    .await;
    let done = two.migration().finish(&How::new("test")).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    let next = token(&two.client().await, "x").await;
    assert!(
        next.get() > last.get() + 1_000_000_000,
        "{next} after {last}"
    );
}

/// A process within a hold gets the owner's token in every phase, or none. It never gets that of a claim which a store has
/// granted anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_has_one_token_for_others_in_every_phase() {
    let two = Two::paced(SLOW_PACE).await;
    let (client, other) = (two.client().await, two.engine().await);
    let owner = client.owner();
    let guard = client.lock("x").ttl(SLOW_TTL).owner(&owner).await.unwrap();
    // Asked at the end of each step, too: a phase may be over before the client asks again.
    let steps = async |phase: Phase| {
        match phase {
            Phase::BothOld => two.begin().await,
            Phase::Old => two.abort().await,
            _ => two.finish(phase).await,
        }
        knows(&other, phase).await;
    };
    let mut told = Vec::new();
    for phase in [Phase::BothOld, Phase::BothNew, Phase::New, Phase::Old] {
        told.extend(told_of(&other, std::slice::from_ref(&guard), steps(phase)).await);
    }
    assert!(guard.is_valid());
    let own = Some(guard.token());
    for phase in [Phase::Old, Phase::BothOld, Phase::BothNew] {
        assert!(
            told.contains(&(guard.name().clone(), Some(phase), own)),
            "{told:?}"
        );
    }
    assert!(
        told.contains(&(guard.name().clone(), Some(Phase::New), None)),
        "{told:?}"
    );
    guard.release().await.unwrap();
}

fn claim() -> Claim {
    Claim::new(claim_id(), "me", LockName::new("x").unwrap()).ttl(LONG_TTL)
}

fn claim_id() -> ClaimId {
    ClaimIds::new().unwrap().next()
}

/// The client believes in its hold, so the store that counts is not left, whatever the other one answers.
#[tokio::test]
async fn a_hold_that_is_placed_again_keeps_the_store_that_counts() {
    let (claim, mut other) = (claim(), claim());
    other.id = claim_id();
    for (phase, lost) in [(Phase::BothNew, true), (Phase::BothOld, false)] {
        let two = Two::prepared().await;
        two.begin().await;
        set_phase(&two, phase.number(), 10, 0).await;
        let engine = two.engine().await;
        let held = engine.place(&claim).await.unwrap();
        assert!(matches!(held, Standing::Held(_)), "{held:?}");
        // The store that does not count has lost the claim, and somebody else holds there alone.
        let store = if lost { &two.old } else { &two.new };
        store.withdraw(&claim, Leave::Release).await.unwrap();
        let held = store.place(&other).await.unwrap();
        assert!(matches!(held, Standing::Held(_)), "{held:?}");
        for wait in [false, true] {
            let again = engine.place(&claim.clone().wait(wait)).await;
            assert!(matches!(again, Err(Error::Unavailable { .. })), "{again:?}");
            assert_eq!(two.held("x").await, [1, 1]);
        }
        store.withdraw(&other, Leave::Release).await.unwrap();
        let again = engine.place(&claim).await.unwrap();
        assert!(matches!(again, Standing::Held(_)), "{again:?}");
        engine.withdraw(&claim, Leave::Release).await.unwrap();
        assert_eq!(two.held("x").await, [0, 0]);
    }
}

/// A claim that has left the old store cannot be placed there again. Were it granted in the new store, it could not be completed
/// after a step back.
#[tokio::test]
async fn a_claim_that_waits_over_the_last_step_ends() {
    let two = Two::prepared().await;
    two.begin().await;
    set_phase(&two, 3, 10, 0).await;
    let (engine, claim) = (two.engine().await, claim());
    let mut other = claim.clone();
    other.id = claim_id();
    two.old.place(&other).await.unwrap();
    let waits = engine.place(&claim).await.unwrap();
    assert!(matches!(waits, Standing::Waiting(_)), "{waits:?}");
    set_phase(&two, 4, 11, 0).await;
    knows(&engine, Phase::New).await;
    let ended = engine.place(&claim).await.unwrap();
    assert!(matches!(ended, Standing::Ended), "{ended:?}");
    engine.withdraw(&claim, Leave::Release).await.unwrap();
    assert_eq!(two.held("x").await, [1, 0]);
}

/// A store that lists its locks slowly, or refuses to.
#[derive(Debug)]
struct Lists {
    store: Memory,
    pause: Option<Duration>,
}

#[async_trait]
impl Layer for Lists {
    fn below(&self) -> &dyn Engine {
        &self.store
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>, Error> {
        let Some(pause) = self.pause else {
            return Err(Error::refused(self, "listing locks", "no right"));
        };
        tokio::time::sleep(pause).await;
        self.store.inspect().list(prefix, at, limit).await
    }
}

impl fmt::Display for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

fn listing(two: &Two, pause: Option<Duration>) -> Migration {
    let store = |memory: &Memory| {
        let store = memory.another();
        Arc::new(Lists { store, pause }) as Arc<dyn Engine>
    };
    let stores = Migrate::between(("from", store(&two.old)), ("to", store(&two.new)));
    stores.set("orders").migration().unwrap()
}

#[tokio::test]
async fn a_slow_listing_finds_a_holder_in_one_store_alone() {
    let two = Two::prepared().await;
    two.begin().await;
    let guard = forgotten(&two).lock("x").await.unwrap();
    let how = How::new("test").patience(Duration::ZERO);
    for pause in [200, 800, 1600].map(Duration::from_millis) {
        let refused = listing(&two, Some(pause)).finish(&how).await.unwrap();
        assert!(named_by(&refused, "x"), "{pause:?}: {refused:?}");
    }
    guard.release().await.unwrap();
}

/// Whoever could begin must be able to go back.
#[tokio::test]
async fn a_user_without_the_right_to_list_can_go_back() {
    let two = Two::prepared().await;
    two.begin().await;
    let migration = listing(&two, None);
    let how = How::new("test");
    assert!(matches!(
        migration.finish(&how).await,
        Err(Error::Refused { .. })
    ));
    let aborted = migration.abort(&how).await.unwrap();
    assert_eq!(aborted, Stepped::Done(Phase::Old));
}

/// The old store has not got a hold, because the next claim was faster there. That one is no program that was not switched.
#[tokio::test]
async fn a_claim_that_waits_for_its_second_store_does_not_stop_a_step() {
    let two = Two::paced(SLOW_PACE).await;
    two.begin().await;
    two.finish(Phase::BothNew).await;
    let client = two.client().await;
    let guard = client.lock("x").ttl(SLOW_TTL).await.unwrap();
    let id = guard.claim_id();
    let mut holder = Claim::new(id, "me", guard.name().clone());
    holder.wait = false;
    two.old.withdraw(&holder, Leave::Release).await.unwrap();
    let waiter = {
        let client = two.client().await;
        tokio::spawn(async move { client.lock("x").ttl(SLOW_TTL).await })
    };
    until("the next claim waits", async || {
        let view = two.new.inspect().look(guard.name()).await.unwrap();
        view.waiters.len() == 1
    })
    .await;
    let how = How::new("test").patience(Duration::ZERO);
    let done = two.migration().finish(&how).await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::New));
    guard.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// Both stores may have given the same number, for different holders.
#[tokio::test]
async fn the_evicted_holder_is_the_shown_one() {
    let two = Two::paced(SLOW_PACE).await;
    two.begin().await;
    two.finish(Phase::BothNew).await;
    let client = two.client().await;
    // The old store's tokens are raised to those of the new one.
    let name = LockName::new("x").unwrap();
    let first = client.lock("x").shared().ttl(SLOW_TTL).await.unwrap();
    let raise = Claim::new(claim_id(), "me", LockName::new("raise").unwrap());
    let raise = raise.floor(Token(first.token().get() - 1));
    two.old.place(&raise).await.unwrap();
    let second = client.lock("x").shared().ttl(SLOW_TTL).await.unwrap();
    let other = two.engine().await;
    let evicted = other.inspect().evict(&name, first.token(), Evict::Release);
    assert!(evicted.await.unwrap());
    until("the first one is lost", async || !first.is_valid()).await;
    second.refresh(SLOW_TTL).await.unwrap();
    assert!(second.is_valid());
    assert_eq!(two.held("x").await, [1, 1]);
}

/// A downgrade in the last phase does not leave the old store for ever.
#[tokio::test]
async fn a_hold_that_was_placed_again_can_go_back() {
    let two = Two::prepared().await;
    two.begin().await;
    set_phase(&two, 3, 10, 0).await;
    let (engine, claim) = (two.engine().await, claim());
    let Standing::Held(grant) = engine.place(&claim).await.unwrap() else {
        panic!("it is not held");
    };
    set_phase(&two, 4, 11, 0).await;
    knows(&engine, Phase::New).await;
    let again = engine.place(&claim).await.unwrap();
    assert!(matches!(again, Standing::Held(_)), "{again:?}");
    two.old.withdraw(&claim, Leave::Release).await.unwrap();
    set_phase(&two, 3, 12, 0).await;
    knows(&engine, Phase::BothNew).await;
    let held = [HeldClaim::new(claim, grant.tokens.first)];
    until("both stores have it", async || {
        engine.renew(&held).await;
        two.held("x").await == [1, 1]
    })
    .await;
}
