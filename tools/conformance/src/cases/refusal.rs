//! What is refused, and with which messages.

use std::time::Duration;

use fencelock::{Error, Purpose, StoreUrl};

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, take};

pub(super) static CASES: &[Case] = &[
    case!(what_is_not_promised_is_refused),
    case!(promises_are_consistent),
    case!(a_ttl_out_of_range_is_refused),
    case!(labels_that_cannot_be_kept_are_refused),
    case!(unknown_options_are_refused),
    case!(a_password_is_never_printed).server(),
    case!(a_store_that_does_not_answer_is_an_error).server(),
];

async fn what_is_not_promised_is_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let promises = ctx.promises();
    let shared = client.lock(&name).shared().await;
    assert_eq!(
        matches!(shared, Err(Error::Unsupported { .. })),
        !promises.shared,
        "{shared:?}"
    );
    drop(shared);
    let permit = client.semaphore(&name, 2);
    assert_eq!(
        matches!(permit, Err(Error::Unsupported { .. })),
        !promises.permits,
        "{permit:?}"
    );
    if !promises.shared {
        let guard = take(&client, &name).await;
        let refused = guard.downgrade().await;
        assert!(
            matches!(refused, Err(Error::Unsupported { .. })),
            "{refused:?}"
        );
    }
    let other = format!("{name}/other");
    let delay = Duration::from_secs(1);
    let delayed = soon("an answer", client.lock(&other).lock_delay(delay)).await;
    let refused = matches!(delayed, Err(Error::Unsupported { .. }));
    assert_eq!(refused, !promises.lock_delay, "{delayed:?}");
    if let Err(error) = &delayed {
        assert!(error.to_string().contains("a lock-delay: "), "{error}");
    }
    drop(delayed);
    ctx.await_nothing_left().await;
}

async fn promises_are_consistent(ctx: Ctx) {
    let (client, other) = (ctx.client().await, ctx.client().await);
    let promises = client.promises();
    assert_eq!(
        promises,
        other.promises(),
        "a store promises the same to all clients"
    );
    assert!(!promises.engine.is_empty() && !promises.clock.is_empty());
    assert!(promises.min_ttl <= Duration::from_secs(5) && !promises.min_ttl.is_zero());
    assert!(
        promises.max_ttl >= Duration::from_secs(30),
        "the default ttl must fit"
    );
    for limit in &promises.limits {
        assert!(
            !limit.what.is_empty() && !limit.change.is_empty(),
            "{limit:?}"
        );
    }
    assert!(
        client.warnings().is_empty(),
        "no client asked for correctness"
    );
    let url = ctx.store().url();
    let strict = fencelock::connect(&url)
        .purpose(Purpose::Correctness)
        .await
        .unwrap();
    assert_eq!(strict.warnings(), strict.promises().limits);
}

async fn a_ttl_out_of_range_is_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let promises = ctx.promises();
    let mut bad = vec![
        Duration::ZERO,
        promises.max_ttl + Duration::from_secs(1),
        Duration::MAX,
    ];
    bad.extend(promises.min_ttl.checked_sub(Duration::from_millis(1)));
    for ttl in bad {
        let error = client.lock(&name).ttl(ttl).await.unwrap_err();
        assert!(
            matches!(error, Error::Invalid { what: "ttl", .. }),
            "{ttl:?}: {error:?}"
        );
    }
    if promises.lock_delay {
        let error = client
            .lock(&name)
            .lock_delay(promises.max_ttl)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
    assert_eq!(ctx.store().leftovers().await.unwrap(), 0);
    let guard = take(&client, &name).await;
    for ttl in [Duration::ZERO, promises.max_ttl + Duration::from_secs(1)] {
        let error = guard.refresh(ttl).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{ttl:?}: {error:?}");
    }
    assert!(guard.is_valid());
    drop(guard);
    // The limits themselves are accepted.
    for ttl in [promises.min_ttl, promises.max_ttl] {
        let guard = soon("the lock", client.lock(&name).ttl(ttl)).await;
        guard
            .unwrap_or_else(|error| panic!("{ttl:?}: {error}"))
            .release()
            .await
            .unwrap();
    }
}

async fn labels_that_cannot_be_kept_are_refused(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    for label in ["x".repeat(256), "a\nb".to_owned()] {
        let error = client.lock(&name).label(&label).await.unwrap_err();
        assert!(
            matches!(error, Error::Invalid { what: "label", .. }),
            "{error:?}"
        );
    }
    assert_eq!(ctx.store().leftovers().await.unwrap(), 0);
    let label = "ä".repeat(127);
    let guard = client.lock(&name).label(&label).await.unwrap();
    let view = client.look(&name).await.unwrap();
    assert_eq!(view.holders[0].label.as_deref(), Some(&*label));
    drop(guard);
}

async fn unknown_options_are_refused(ctx: Ctx) {
    let url = ctx.store().url();
    let mark = if url.contains('?') { '&' } else { '?' };
    for (option, named) in [
        ("no-such-option=1", "no-such-option"),
        ("prefix=a&prefix=b", "prefix"),
    ] {
        let error = fencelock::connect(format!("{url}{mark}{option}"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

async fn a_password_is_never_printed(ctx: Ctx) {
    let server = ctx.server();
    let Some(passwords) = server.password_urls() else {
        return;
    };
    let secret = [&passwords.right, &passwords.wrong];
    let check = |text: String| {
        assert!(
            !secret.iter().any(|secret| text.contains(*secret)),
            "{text}"
        );
    };
    let error = soon("a refusal", fencelock::connect(&passwords.wrong_url))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    check(format!("{error} {error:?} {error:#?}"));
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        check(format!("{inner} {inner:?}"));
        cause = inner.source();
    }
    let url = &passwords.right_url;
    let mark = if url.contains('?') { '&' } else { '?' };
    let with_option = format!("{url}{mark}no-such-option=1");
    let error = fencelock::connect(&with_option).await.unwrap_err();
    check(format!("{error} {error:?}"));
    let client = fencelock::connect(&passwords.right_url).await.unwrap();
    check(format!(
        "{client:?} {:?} {}",
        client.promises(),
        client.store()
    ));
    let guard = take(&client, &ctx.name()).await;
    check(format!(
        "{guard:?} {} {}",
        guard.owner(),
        guard.sequencer().await.unwrap()
    ));
    check(format!(
        "{:?} {:?}",
        client.lock("x"),
        client.look(&ctx.name()).await
    ));
    server.kill9();
    let error = soon("an error", client.try_lock("y")).await.unwrap_err();
    check(format!("{error} {error:?}"));
    let error = soon("an error", guard.release()).await.unwrap_err();
    check(format!("{error} {error:?}"));
    let error = soon("an error", fencelock::connect(&passwords.right_url))
        .await
        .unwrap_err();
    check(format!("{error} {error:?}"));
    // Refused before it is awaited.
    check(format!("{:?}", fencelock::connect(&passwords.right_url)));
}

async fn a_store_that_does_not_answer_is_an_error(ctx: Ctx) {
    let client = ctx.proxied().await;
    let server = ctx.server();
    let url = server.proxied_url();
    // The message names the store: the server that the Sentinels found, or the URL with the Sentinels.
    let (address, store) = (server.proxy().port(), StoreUrl::redacted(&url));
    let address = format!("127.0.0.1:{address}");
    let unavailable = |error: &Error| {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&address) || text.contains(&store), "{text}");
    };
    let name = ctx.name();
    for silent in [true, false] {
        if silent {
            server.pause().unwrap();
        } else {
            server.proxy().refuse(true).unwrap();
            server.proxy().reset();
        }
        unavailable(
            &soon("open fails in time", fencelock::connect(&url))
                .await
                .unwrap_err(),
        );
        unavailable(&soon("an error", client.try_lock(&name)).await.unwrap_err());
        let patience = Duration::from_secs(1);
        unavailable(
            &soon("an error", client.lock(&name).timeout(patience))
                .await
                .unwrap_err(),
        );
        unavailable(&soon("an error", client.look(&name)).await.unwrap_err());
        // `lock` without a timeout does not give up.
        let waiter = crate::ctx::wait_for(&client, &name);
        tokio::time::sleep(patience).await;
        assert!(!waiter.is_finished());
        if silent {
            server.resume().unwrap();
        } else {
            server.proxy().refuse(false).unwrap();
        }
        crate::ctx::got("the lock when the store is back", waiter)
            .await
            .release()
            .await
            .unwrap();
    }
    ctx.await_nothing_left().await;
}
