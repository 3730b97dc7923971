//! Shared and exclusive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock::{Clock, Error, Guard, Mode, Order, Promises, Release};
use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(shared_beside_shared).promised(shared),
    case!(exclusive_keeps_shared_out).promised(shared),
    case!(waiting_readers_come_in_together).promised(shared),
    case!(writers_do_not_starve).promised(shared),
    case!(readers_expire_one_by_one).promised(shared),
    case!(readers_and_writers_are_served_in_order).promised(fifo),
    case!(a_downgrade_lets_readers_in).promised(shared),
    case!(a_downgraded_hold_keeps_writers_out).promised(shared),
];

fn fifo(promises: &Promises) -> bool {
    promises.shared && promises.order == Order::Fifo
}

fn shared(promises: &Promises) -> bool {
    promises.shared
}

async fn shared_beside_shared(ctx: Ctx) {
    let name = ctx.name();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let client = ctx.client().await;
        let reader = soon("a reader beside readers", client.try_lock(&name).shared())
            .await
            .unwrap();
        assert_eq!(reader.mode(), Mode::Shared);
        readers.push(reader);
    }
    let client = ctx.client().await;
    // Two readers of one process count as two.
    readers.push(client.try_lock(&name).shared().await.unwrap());
    readers.push(client.try_lock(&name).shared().await.unwrap());
    assert_eq!(client.look(&name).await.unwrap().holders.len(), 6);
    while let Some(reader) = readers.pop() {
        let held = client.try_lock(&name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
        assert!(readers.iter().all(Guard::is_valid));
        reader.release().await.unwrap();
    }
    let writer = client.try_lock(&name).await.unwrap();
    writer.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn exclusive_keeps_shared_out(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let writer = take(&one, &name).await;
    for client in [&one, &two] {
        let held = client.try_lock(&name).shared().await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    }
    writer.release().await.unwrap();
    let reader = two.try_lock(&name).shared().await.unwrap();
    reader.release().await.unwrap();
}

async fn waiting_readers_come_in_together(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name());
    let writer = take(&one, &name).await;
    let mut waiting = Vec::new();
    for count in 1..=3 {
        let (client, name) = (ctx.client().await, name.clone());
        waiting.push(tokio::spawn(
            async move { client.lock(&name).shared().await },
        ));
        ctx.await_queued(&one, &ctx.name(), count).await;
    }
    writer.release().await.unwrap();
    let mut readers = Vec::new();
    for task in waiting {
        readers.push(got("a reader comes in beside those before", task).await);
    }
    assert!(readers.iter().all(Guard::is_valid));
    for reader in readers {
        reader.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

/// Readers that overlap all the time do not starve a writer.
async fn writers_do_not_starve(ctx: Ctx) {
    let (writer, name) = (ctx.client().await, ctx.name());
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    // Enough readers that at least one holds at any moment.
    for offset in 0..6 {
        let (client, name, over) = (ctx.client().await, name.clone(), Arc::clone(&over));
        readers.push(tokio::spawn(async move {
            sleep(Duration::from_millis(17 * offset)).await;
            while !over.load(Ordering::SeqCst) {
                let guard = client.lock(&name).shared().await.unwrap();
                sleep(Duration::from_millis(100)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    sleep(Duration::from_millis(150)).await;
    for _ in 0..3 {
        let guard = got("the writer has its turn", wait_for(&writer, &name)).await;
        assert_eq!(writer.look(&name).await.unwrap().holders.len(), 1);
        guard.release().await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        soon("the readers end", reader).await.unwrap();
    }
    ctx.await_nothing_left().await;
}

/// A reader that ends early does not change the leases of the others.
async fn readers_expire_one_by_one(ctx: Ctx) {
    let (one, two, three) = (ctx.client().await, ctx.client().await, ctx.client().await);
    let name = ctx.name();
    let short = ctx.ttl(200);
    // It outlives the other even if the machine stands still for a second.
    let long = (short * 5).max(Duration::from_millis(2200));
    for released in [false, true] {
        let begin = Instant::now();
        let brief = one.lock(&name).shared().ttl(short).renew(false);
        let brief = brief.await.unwrap();
        let longer = two.lock(&name).shared().ttl(long).renew(false);
        let longer = longer.await.unwrap();
        soon("the first is over", brief.lost()).await;
        if released {
            assert_eq!(brief.release().await.unwrap(), Release::AlreadyExpired);
        } else {
            // It has also ended at the store.
            std::mem::forget(brief);
            sleep(short / 4).await;
        }
        assert!(longer.is_valid());
        let held = three.try_lock(&name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
        let ends = longer.valid_until();
        std::mem::forget(longer);
        let writer = got(
            "the writer comes in after the last",
            wait_for(&three, &name),
        )
        .await;
        // Clients end a hold without renewals at the end of its validity.
        assert!(Clock::Boot.now() >= ends, "after {:?}", begin.elapsed());
        writer.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

/// A reader queued after a writer is granted after it. Adjacent readers are granted together.
async fn readers_and_writers_are_served_in_order(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name());
    let first = one.lock(&name).shared().await.unwrap();
    let mut waiting = std::collections::VecDeque::new();
    for (at, mode) in [Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Exclusive]
        .into_iter()
        .enumerate()
    {
        let (client, name) = (ctx.client().await, name.clone());
        waiting.push_back(tokio::spawn(
            async move { client.lock(&name).mode(mode).await },
        ));
        ctx.await_queued(&one, &ctx.name(), at + 1).await;
    }
    let late = one.try_lock(&name).shared().await;
    assert!(
        matches!(late, Err(Error::Held { .. })),
        "past a writer: {late:?}"
    );
    let mut next = async || got("the next in the queue", waiting.pop_front().unwrap()).await;
    first.release().await.unwrap();
    let writer = next().await;
    let held = one.look(&name).await.unwrap().holders;
    assert_eq!(held.len(), 1, "{held:?}");
    writer.release().await.unwrap();
    let readers = [next().await, next().await];
    assert!(readers.iter().all(Guard::is_valid));
    for reader in readers {
        reader.release().await.unwrap();
    }
    next().await.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_downgrade_lets_readers_in(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let writer = take(&one, &name).await;
    let before = writer.sequencer().await.unwrap();
    let waiting = {
        let (client, name) = (two.clone(), name.clone());
        tokio::spawn(async move { client.lock(&name).shared().await })
    };
    ctx.await_queued(&one, &name, 1).await;
    let reader = soon("the downgrade", writer.downgrade()).await.unwrap();
    assert_eq!(reader.mode(), Mode::Shared);
    assert!(reader.token() > before.token, "a grant of its own");
    assert_eq!(reader.claim_id(), before.claim);
    let beside = got("the queued reader is granted", waiting).await;
    assert!(beside.token() > before.token);
    assert!(!two.check(&before).await.unwrap());
    let after = reader.sequencer().await.unwrap();
    assert!(two.check(&after).await.unwrap());
    assert_eq!(after.mode, Mode::Shared);
    // A second downgrade changes nothing.
    let reader = reader.downgrade().await.unwrap();
    assert_eq!(reader.token(), after.token);
    assert_eq!(reader.release().await.unwrap(), Release::Released);
    assert!(beside.is_valid());
    assert!(!two.check(&after).await.unwrap());
    beside.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_downgraded_hold_keeps_writers_out(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2000);
    let writer = one.lock(&name).ttl(ttl).await.unwrap();
    let waiting = wait_for(&two, &name);
    ctx.await_queued(&one, &name, 1).await;
    let reader = soon("the downgrade", writer.downgrade()).await.unwrap();
    // Hold it for more than a lease: it is renewed in its new mode.
    not_for("a loss", ttl * 5 / 4, reader.lost()).await;
    assert!(!waiting.is_finished(), "a writer beside a reader");
    assert!(reader.is_valid());
    let token = reader.token();
    assert_eq!(reader.release().await.unwrap(), Release::Released);
    let writer = got("the writer has its turn", waiting).await;
    assert!(writer.token() > token);
    writer.release().await.unwrap();
    ctx.await_nothing_left().await;
}
