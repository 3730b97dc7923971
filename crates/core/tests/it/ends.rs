//! How holds end when tasks have no time to run: blocked threads, runtimes that have ended, and releases by other
//! processes.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencelock_core::layers::{Fault, Trouble};
use fencelock_core::{Client, Error, Guard, Memory};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

use crate::{World, ms, settle};

/// Far longer than any step of these tests.
const LIMIT: Duration = Duration::from_secs(20);

/// No renewal runs while its one thread is blocked.
fn one_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn client() -> Client {
    Client::new(Arc::new(Memory::new())).unwrap()
}

fn is_told(guard: &Guard) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(guard.lost()).poll(&mut context).is_ready()
}

#[test]
fn with_fails_if_its_body_blocks_beyond_the_validity() {
    one_thread().block_on(async {
        for awaits in [false, true] {
            let request = client().lock("x").ttl(ms(1000));
            let body = async |held: fencelock_core::Held| {
                assert!(held.is_valid());
                std::thread::sleep(ms(1200));
                if awaits {
                    tokio::task::yield_now().await;
                }
            };
            let ended = request.with(body).await;
            assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
        }
        let within = client().lock("x").with(async |_| 7).await;
        assert_eq!(within.unwrap(), 7);
    });
}

#[test]
fn the_clock_shows_a_loss_before_the_renewer_has_run() {
    one_thread().block_on(async {
        let guard = client().lock("x").ttl(ms(1000)).await.unwrap();
        assert!(!is_told(&guard));
        let mut before = pin!(guard.lost());
        let mut context = Context::from_waker(Waker::noop());
        assert!(before.as_mut().poll(&mut context).is_pending());
        std::thread::sleep(ms(1200));
        // Both a future that was polled before and a new one show the loss.
        let told = before.as_mut().poll(&mut context);
        assert!(matches!(told, Poll::Ready(_)), "{told:?}");
        assert!(is_told(&guard) && !guard.is_valid());
    });
}

/// The client's runtime exists, but no thread runs it.
#[test]
fn a_loss_is_noticed_while_the_client_runtime_does_not_run() {
    let still = one_thread();
    let guard = still.block_on(async { client().lock("x").ttl(ms(200)).await.unwrap() });
    one_thread().block_on(async {
        let told = timeout(LIMIT, guard.lost()).await;
        assert!(told.is_ok(), "not told");
        assert!(!guard.is_valid());
    });
}

#[test]
fn a_release_does_not_wait_for_a_renewal_whose_runtime_is_gone() {
    let theirs = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let guard = theirs.block_on(async move {
        let (fault, handle) = Fault::new(Arc::new(Memory::new()));
        handle.by_chance(move |call| match call {
            "renew" => {
                let _ = tell.send(());
                Trouble::Hold
            }
            _ => Trouble::None,
        });
        let client = Client::new(Arc::new(fault)).unwrap();
        client.lock("x").ttl(ms(600)).await.unwrap()
    });
    told.recv_timeout(LIMIT).unwrap();
    theirs.shutdown_background();
    one_thread().block_on(async {
        let released = timeout(LIMIT, guard.release()).await;
        assert!(released.is_ok(), "the release hangs");
    });
}

#[tokio::test(start_paused = true)]
async fn a_joined_hold_is_lost_soon_after_its_outer_one_was_released() {
    let world = World::new();
    for shared in [false, true] {
        let (outer, inner, other) = (world.client(), world.client(), world.client());
        let owner = outer.owner();
        let request = |client: &Client| match shared {
            true => client.lock("x").shared(),
            false => client.lock("x"),
        };
        let held = request(&outer).owner(&owner).await.unwrap();
        // Another shared hold, with a higher token, stays.
        let beside = match shared {
            true => Some(request(&other).await.unwrap()),
            false => None,
        };
        let joined = inner.join(owner.as_str()).unwrap();
        let guard = request(&inner).owner(&joined).await.unwrap();
        assert!(guard.joined());
        sleep(ms(100_000)).await;
        assert!(guard.is_valid(), "lost while the outer one holds");
        held.release().await.unwrap();
        let begun = Instant::now();
        guard.lost().await;
        assert!(begun.elapsed() < ms(500), "{:?}", begun.elapsed());
        drop((guard, beside));
        settle().await;
    }
}
