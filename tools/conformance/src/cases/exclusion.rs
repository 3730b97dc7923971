//! Two claims never hold at once, and tokens show the order of grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencelock::{Clock, Durability, Error, Promises};
use fencelock_testbed::Flow;
use serde_json::json;
use tokio::time::sleep;

use crate::case::{Case, case};
use crate::ctx::{Ctx, soon, take};
use crate::history::{Stay, faults};
use crate::remote::Remote;

pub(super) static CASES: &[Case] = &[
    case!(held_means_held),
    case!(tasks_and_clients_exclude_each_other).busy(),
    case!(processes_exclude_each_other_through_faults)
        .server()
        .promised(remembers)
        .busy(),
    case!(eight_processes_exclude_each_other).processes().busy(),
];

fn remembers(promises: &Promises) -> bool {
    promises.durability != Durability::Volatile
}

async fn held_means_held(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    assert!(guard.is_valid());
    for client in [&one, &two] {
        let error = soon("an answer", client.try_lock(&name)).await.unwrap_err();
        assert!(
            matches!(&error, Error::Held { name: held, .. } if held.as_str() == name),
            "{error:?}"
        );
        assert!(error.to_string().contains(&name), "{error}");
    }
    // Different names are different locks.
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
                        "another task holds the lock"
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

/// Lets each process lock and release `count` times.
fn begin_rounds(
    ctx: &Ctx,
    remotes: &mut [Remote],
    rounds: usize,
    ttl: Duration,
    pause: Duration,
) -> Vec<u64> {
    let request = json!({
        "do": "rounds",
        "name": ctx.name(),
        "rounds": rounds,
        "ttl_ms": ttl.as_millis() as u64,
        "pause_ms": pause.as_millis() as u64,
    });
    remotes
        .iter_mut()
        .map(|remote| remote.ask(request.clone()))
        .collect()
}

/// The times in which each process believed that it held the lock.
async fn end_rounds(remotes: &mut [Remote], asked: Vec<u64>) -> Vec<Stay> {
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
    stays
}

async fn eight_processes_exclude_each_other(ctx: Ctx) {
    const ROUNDS: usize = 50;
    let mut remotes = Vec::new();
    for _ in 0..8 {
        remotes.push(ctx.remote().await);
    }
    // All are ready before the first begins.
    let asked = begin_rounds(
        &ctx,
        &mut remotes,
        ROUNDS,
        Duration::from_secs(30),
        Duration::ZERO,
    );
    let stays = end_rounds(&mut remotes, asked).await;
    assert_eq!(stays.len(), 8 * ROUNDS);
    assert_eq!(faults(&stays), [""; 0]);
    ctx.await_nothing_left().await;
}

/// Meanwhile connections are cut, bytes are delayed and held, and the server hangs past the lease, is killed and
/// restarted.
async fn processes_exclude_each_other_through_faults(ctx: Ctx) {
    const ROUNDS: usize = 60;
    let mut remotes = Vec::new();
    for _ in 0..6 {
        remotes.push(ctx.proxied_remote().await);
    }
    let (ttl, pause) = (ctx.ttl(600), Duration::from_millis(5));
    let asked = begin_rounds(&ctx, &mut remotes, ROUNDS, ttl, pause);
    let (server, proxy) = (ctx.server(), ctx.server().proxy());
    for round in 0..4 {
        sleep(Duration::from_millis(150)).await;
        proxy.reset();
        sleep(Duration::from_millis(150)).await;
        proxy.both(Flow::Delay(Duration::from_millis(20)));
        sleep(Duration::from_millis(150)).await;
        proxy.both(Flow::Hold);
        sleep(ttl + Duration::from_millis(100)).await;
        proxy.both(Flow::Pass);
        sleep(Duration::from_millis(150)).await;
        server.pause().unwrap();
        sleep(ttl / 2 * (1 + round % 2 * 2)).await;
        server.resume().unwrap();
        sleep(Duration::from_millis(150)).await;
        proxy.answers(Flow::Lose);
        sleep(Duration::from_millis(150)).await;
        proxy.answers(Flow::Pass);
        proxy.reset();
        if round == 2 {
            server.restart().unwrap();
        }
    }
    let stays = end_rounds(&mut remotes, asked).await;
    assert_eq!(stays.len(), 6 * ROUNDS);
    assert_eq!(faults(&stays), [""; 0]);
    ctx.await_nothing_left().await;
}
