//! Records of a set that moves: lost, missing, of another set, or of an earlier one.

use std::sync::Arc;

use fencelock_composite::{How, Migrate, Phase, Prepare, Stepped};
use fencelock_core::{ConfigPart, Engine, Error, Memory};

use crate::two::{PACE, TIGHT, TTL, Two, token};

#[tokio::test]
async fn one_record_is_enough_and_no_record_is_refused() {
    let two = Two::prepared().await;
    two.begin().await;
    let before = two.client().await;
    token(&before, "x").await;
    // A store that has lost its record does not say so.
    let lost = Two {
        old: two.old.another(),
        new: Memory::new(),
    };
    let client = lost.client().await;
    token(&client, "x").await;
    // The store may be a different one. The administrator says that it is not, and the next step writes its record again.
    let refused = lost.migration().finish(&How::new("test")).await;
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    lost.finish_lost().await;
    assert!(!lost.new.record("", None).await.unwrap().text.is_empty());
    let nothing = Two::new();
    let refused = nothing.stores().open().await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Config {
                part: ConfigPart::Record,
                ..
            }
        ),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("migrate prepare"), "{refused}");
}

#[tokio::test]
async fn a_lost_record_of_the_arbiter_comes_back_with_a_new_version() {
    let two = Two::prepared().await;
    two.begin().await;
    let version = two.migration().status().await.unwrap().version;
    let lost = Two {
        old: Memory::new(),
        new: two.new.another(),
    };
    let status = lost.migration().status().await.unwrap();
    assert_eq!((status.phase, status.version), (Phase::BothOld, version));
    lost.finish_lost().await;
    let status = lost.migration().status().await.unwrap();
    assert!(status.version > version + 3, "{status:?}");
}

/// Programs that name a wrong store by mistake would get locks that others hold, or tokens below those of others.
#[tokio::test]
async fn a_store_that_counts_grants_nothing_without_a_record() {
    let two = Two::prepared().await;
    let without_old = || Two {
        old: Memory::new(),
        new: two.new.another(),
    };
    let without_new = || Two {
        old: two.old.another(),
        new: Memory::new(),
    };
    let grants_nothing = async |wrong: &Two| {
        let refused = wrong.client().await.try_lock("x").ttl(TTL).await;
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Config { .. }), "{refused:?}");
        assert!(refused.to_string().contains("no record"), "{refused}");
    };
    let is_not_prepared = async |wrong: &Two| {
        let terms = Prepare::default().pace(PACE).tight(TIGHT);
        let refused = wrong.migration().prepare(&terms, "test").await;
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    };
    grants_nothing(&without_old()).await;
    is_not_prepared(&without_old()).await;
    two.begin().await;
    grants_nothing(&without_old()).await;
    two.finish(Phase::BothNew).await;
    grants_nothing(&without_new()).await;
    two.finish(Phase::New).await;
    grants_nothing(&without_new()).await;
    is_not_prepared(&without_new()).await;
    token(&two.client().await, "x").await;
}

#[tokio::test]
async fn swapped_stores_and_other_sets_are_refused() {
    let two = Two::prepared().await;
    let swapped = Two {
        old: two.new.another(),
        new: two.old.another(),
    };
    let refused = swapped.stores().open().await.unwrap_err();
    assert!(matches!(refused, Error::Config { .. }), "{refused:?}");
    let other = two.stores().set("other").open().await.unwrap_err();
    assert!(matches!(other, Error::Config { .. }), "{other:?}");
    let again = swapped.migration().begin(&How::new("test")).await;
    assert!(matches!(again, Err(Error::Config { .. })), "{again:?}");
}

/// Programs of the set that ends may still believe in holds for its pace.
#[tokio::test]
async fn the_next_move_refuses_a_shorter_pace() {
    let two = Two::prepared().await;
    two.move_all().await;
    let next = Migrate::between(
        ("from", Arc::new(two.new.another()) as Arc<dyn Engine>),
        ("to", Arc::new(Memory::new()) as Arc<dyn Engine>),
    );
    let next = next.set("next").migration().unwrap();
    let terms = Prepare::default().tight(TIGHT).replace(true);
    let short = next.prepare(&terms.clone().pace(PACE / 2), "test").await;
    assert!(matches!(short, Err(Error::Config { .. })), "{short:?}");
    let done = next.prepare(&terms.pace(PACE), "test").await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::Old));
}
