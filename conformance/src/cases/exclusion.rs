//! No two hold at once, and tokens tell who came later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock::{Clock, Error};
use serde_json::json;

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, take};
use crate::history::{Stay, faults};

pub(super) static CASES: &[Case] = &[
    case!(held_means_held),
    case!(tasks_and_clients_exclude_each_other).alone(),
    case!(eight_processes_exclude_each_other)
        .processes()
        .alone(),
];

async fn held_means_held(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    assert!(guard.is_valid());
    for client in [&one, &two] {
        let error = soon("an answer", client.try_lock(&name)).await.unwrap_err();
        assert!(
            matches!(&error, Error::Held { name: held } if held.as_str() == name),
            "{error:?}"
        );
        assert!(error.to_string().contains(&name), "{error}");
    }
    // Another name is another lock.
    let other = take(&two, &format!("{name}/other")).await;
    guard.release().await.unwrap();
    let guard = soon("the lock is free", two.try_lock(&name)).await.unwrap();
    guard.release().await.unwrap();
    other.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn tasks_and_clients_exclude_each_other(ctx: Ctx) {
    const ROUNDS: usize = 25;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for who in 0..4 {
        let client = ctx.client().await;
        for _ in 0..4 {
            let (client, name, inside) = (client.clone(), ctx.name(), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                let mut stays = Vec::new();
                for _ in 0..ROUNDS {
                    let guard = client.lock(&name).await.unwrap();
                    let from = Clock::Boot.now().as_nanos();
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "somebody else is in"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let to = Clock::Boot.now().min(guard.valid_until()).as_nanos();
                    let token = guard.token().get();
                    stays.push(Stay {
                        who,
                        token,
                        shared: false,
                        from,
                        to,
                    });
                    guard.release().await.unwrap();
                }
                stays
            }));
        }
    }
    let mut stays = Vec::new();
    for task in tasks {
        stays.extend(soon("every task has had its turns", task).await.unwrap());
    }
    assert_eq!(stays.len(), 16 * ROUNDS);
    assert_eq!(faults(&stays), [""; 0]);
    ctx.await_nothing_left().await;
}

async fn eight_processes_exclude_each_other(ctx: Ctx) {
    const ROUNDS: usize = 50;
    let mut remotes = Vec::new();
    for _ in 0..8 {
        remotes.push(ctx.remote().await);
    }
    // All are there before the first one begins.
    let request = json!({"do": "rounds", "name": ctx.name(), "rounds": ROUNDS});
    let asked: Vec<u64> = remotes
        .iter_mut()
        .map(|remote| remote.ask(request.clone()))
        .collect();
    let mut stays = Vec::new();
    for (who, (remote, asked)) in remotes.iter_mut().zip(asked).enumerate() {
        let answer = remote.answer("a process has had its turns", asked).await;
        stays.extend(answer.as_array().unwrap().iter().map(|stay| {
            let number = |at: usize| stay[at].as_u64().unwrap();
            let (token, from, to) = (number(0), number(1), number(2));
            Stay {
                who,
                token,
                shared: false,
                from,
                to,
            }
        }));
    }
    assert_eq!(stays.len(), 8 * ROUNDS);
    assert_eq!(faults(&stays), [""; 0]);
    ctx.await_nothing_left().await;
}
