//! Valid and invalid names. Names leave nothing at the store.

use fencelock::{Error, MAX_NAME_BYTES, Sequencer};

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, take};

pub(super) static CASES: &[Case] = &[
    case!(names_of_all_kinds),
    case!(no_name_holds_another),
    case!(bad_names_are_refused),
    case!(ten_thousand_names_leave_nothing).busy(),
];

fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "/",
        "/a",
        "/a/b",
        "a/",
        "a//b",
        "a b",
        " a",
        "a ",
        "a'b",
        "a\"b",
        "a\\b",
        "a;b--",
        "{a}",
        "{",
        "}",
        "{}",
        "a{b}c{d}",
        "}a{",
        "{a",
        "a:b",
        "a#b",
        "a%2Fb",
        "%",
        "a*?[x]",
        "..",
        ".",
        "größe",
        "名前",
        "🔒",
        "e\u{301}",
        "é",
        "A",
        "ß",
        "SS",
        "null",
        "counter",
        "$1",
        "fencelock",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("x".repeat(MAX_NAME_BYTES));
    names.push("🔒".repeat(MAX_NAME_BYTES / 4));
    names.push(format!("{}/", "y".repeat(MAX_NAME_BYTES - 1)));
    names
}

async fn names_of_all_kinds(ctx: Ctx) {
    let (one, two) = (ctx.client().await, ctx.client().await);
    for name in odd_names() {
        let guard = take(&one, &name).await;
        assert_eq!(guard.name().as_str(), name);
        let held = two.try_lock(&name).await;
        assert!(
            matches!(held, Err(Error::Held { .. })),
            "{name:?}: {held:?}"
        );
        let sequencer = guard.sequencer().await.unwrap();
        let parsed: Sequencer = sequencer.to_string().parse().unwrap();
        assert_eq!(parsed, sequencer);
        assert!(two.check(&parsed).await.unwrap(), "{name:?}");
        assert_eq!(two.look(&name).await.unwrap().name.as_str(), name);
        let listed = two.list(&name).await.unwrap();
        assert!(
            listed.iter().any(|view| view.name.as_str() == name),
            "{name:?}: {listed:?}"
        );
        // With a waiter, which may use other data in the store than an uncontended lock.
        let waiter = crate::ctx::wait_for(&two, &name);
        ctx.await_queued(&one, &name, 1).await;
        guard.release().await.unwrap();
        let next = crate::ctx::got("the waiter has it", waiter).await;
        next.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn no_name_holds_another(ctx: Ctx) {
    let client = ctx.client().await;
    let mut guards = Vec::new();
    for name in odd_names() {
        let guard = soon("a name beside others", client.try_lock(&name)).await;
        guards.push(guard.unwrap_or_else(|error| panic!("{name:?}: {error}")));
    }
    assert_eq!(client.list("").await.unwrap().len(), guards.len());
    for guard in guards {
        guard.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn bad_names_are_refused(ctx: Ctx) {
    let client = ctx.client().await;
    let too_long = "x".repeat(MAX_NAME_BYTES + 1);
    for name in ["", &too_long, "a\nb", "\0", "a\u{7f}", "a\u{85}b"] {
        let refused = [
            client.lock(name).await.map(drop),
            client.try_lock(name).await.map(drop),
            client.look(name).await.map(drop),
            client.with(name, |_held| async {}).await,
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, Error::Invalid { .. }),
                "{name:?}: {error:?}"
            );
            let text = error.to_string();
            assert!(text.contains("name") && !text.contains('\n'), "{text}");
        }
    }
    assert_eq!(ctx.store().leftovers().await.unwrap(), 0);
}

async fn ten_thousand_names_leave_nothing(ctx: Ctx) {
    const NAMES: usize = 10_000;
    const TASKS: usize = 64;
    let client = ctx.client().await;
    let mut tasks = Vec::new();
    for first in 0..TASKS {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for i in (first..NAMES).step_by(TASKS) {
                let guard = client.lock(&format!("many/{i}")).await.unwrap();
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        // 10,000 names take a second or two; a slow disk or a busy machine some more.
        let done = tokio::time::timeout(std::time::Duration::from_secs(180), task).await;
        done.expect("10,000 names within three minutes").unwrap();
    }
    ctx.await_nothing_left().await;
}
