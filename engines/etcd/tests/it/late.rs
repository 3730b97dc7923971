//! A request to delete a claim's key has no answer and takes effect late, after the claim was placed again.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Engine, Leave, Standing, Withdrawn};
use fencelock::{Clock, Error, LockName, Mode, Token};
use fencelock_testbed::{Etcd, Flow, Proxy};

use crate::{client, soon, token_of, until};

const LATE: Duration = Duration::from_secs(5);

/// An engine and two ways to the server. It begins with a connection the first way.
struct Ways {
    etcd: Etcd,
    engine: Arc<dyn Engine>,
    first: Proxy,
    second: Proxy,
}

impl Ways {
    async fn open() -> Self {
        let etcd = Etcd::start().unwrap();
        let [first, second] = [(); 2].map(|()| Proxy::start(etcd.port(0)).unwrap());
        second.refuse(true).unwrap();
        let ports = (first.port(), second.port());
        let url = format!(
            "etcd://127.0.0.1:{},127.0.0.1:{}?response-timeout=3s",
            ports.0, ports.1
        );
        let engine = fencelock::open_engine(&url).await.unwrap();
        Self {
            etcd,
            engine,
            first,
            second,
        }
    }

    /// From now on requests over the present connection are late. The next connection goes the second way.
    fn delay(&self) {
        self.first.requests(Flow::Delay(LATE));
        self.first.refuse(true).unwrap();
        self.second.refuse(false).unwrap();
    }

    /// Places the claim again, and checks that it still holds after the late request.
    async fn hold_past_the_late_request(&self, claim: &Claim) -> Token {
        let begun = Clock::Boot.now();
        let token = token_of(&soon("a grant", self.engine.place(claim)).await.unwrap());
        let near = client(&self.etcd).await;
        while Clock::Boot.now().since(begun) < LATE + Duration::from_secs(1) {
            let view = near.look(claim.name.as_str()).await.unwrap();
            assert_eq!(view.token(), Some(token), "{view:?}");
        }
        let withdrawn = soon("a release", self.engine.withdraw(claim, Leave::Release)).await;
        assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
        self.engine.close().await.unwrap();
        token
    }
}

fn claim(mode: Mode, wait: bool) -> Claim {
    let id = ClaimIds::new().unwrap().next();
    let name = LockName::new("report").unwrap();
    Claim::new(id, "me", name)
        .mode(mode)
        .wait(wait)
        .ttl(Duration::from_secs(30))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_does_not_end_the_next_hold_of_the_claim() {
    let ways = Ways::open().await;
    let claim = claim(Mode::Exclusive, true);
    let first = token_of(&soon("a grant", ways.engine.place(&claim)).await.unwrap());
    ways.delay();
    let withdrawn = soon("a release", ways.engine.withdraw(&claim, Leave::Release)).await;
    assert!(
        matches!(withdrawn, Err(Error::Unavailable { .. })),
        "{withdrawn:?}"
    );
    let second = ways.hold_past_the_late_request(&claim).await;
    assert!(second > first);
}

/// A claim of a permit is put even if it does not wait, and deleted if there is no permit.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_deletion_is_late_holds_later() {
    let ways = Ways::open().await;
    let near = client(&ways.etcd).await;
    let permit = Mode::Permit {
        of: NonZeroU32::MIN,
    };
    let holder = near
        .semaphore("report", 1)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    // Opens the sessions.
    let other = ways.engine.place(&claim(permit, false)).await;
    assert!(matches!(other, Ok(Standing::Busy)), "{other:?}");
    let claim = claim(permit, false);
    ways.first.answers(Flow::Hold);
    let engine = Arc::clone(&ways.engine);
    let placing = tokio::spawn({
        let claim = claim.clone();
        async move { engine.place(&claim).await }
    });
    until("the claim is in the queue", async || {
        near.look("report").await.unwrap().waiters.len() == 1
    })
    .await;
    ways.delay();
    ways.first.answers(Flow::Pass);
    let placed = soon("no answer", placing).await.unwrap();
    assert!(
        matches!(placed, Err(Error::Unavailable { .. })),
        "{placed:?}"
    );
    holder.release().await.unwrap();
    ways.hold_past_the_late_request(&claim).await;
}
