//! A breaker before a store that is away: which requests fail at once, which are still sent, and how the store's return is
//! noticed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fencelock_core::engine::{Claim, Cursor, HeldClaim, Leave, Renewal, Standing};
use fencelock_core::layers::{Breaker, Fault, FaultHandle, Trouble};
use fencelock_core::{ClaimIds, Client, Engine, Error, LockName, Memory, Observer, StoreChange};
use tokio::time::{Duration, Instant as Time};

use crate::{World, ms, settle};

/// A breaker before a store that can be away, and how often the store was asked.
struct Setup {
    breaker: Arc<Breaker>,
    faults: FaultHandle,
    away: Arc<AtomicBool>,
    placed: Arc<AtomicU32>,
    others: Arc<AtomicU32>,
    ids: ClaimIds,
}

impl Setup {
    fn new(world: &World) -> Self {
        Self::around(Arc::new(world.store.another()))
    }

    fn around(engine: Arc<dyn Engine>) -> Self {
        let (fault, faults) = Fault::new(engine);
        let away = Arc::new(AtomicBool::new(false));
        let (placed, others) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (is_away, place, other) = (away.clone(), placed.clone(), others.clone());
        faults.by_chance(move |call| {
            let count = if call == "place" { &place } else { &other };
            count.fetch_add(1, Ordering::Relaxed);
            match is_away.load(Ordering::Relaxed) {
                true => Trouble::LoseRequest,
                false => Trouble::None,
            }
        });
        Self {
            breaker: Arc::new(Breaker::new(Arc::new(fault))),
            faults,
            away,
            placed,
            others,
            ids: ClaimIds::new().unwrap(),
        }
    }

    fn client(&self) -> Client {
        Client::new(self.breaker.clone()).unwrap()
    }

    fn go(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    fn placed(&self) -> u32 {
        self.placed.load(Ordering::Relaxed)
    }

    fn others(&self) -> u32 {
        self.others.load(Ordering::Relaxed)
    }

    fn claim(&self, name: &str) -> Claim {
        let name = LockName::new(name).unwrap();
        Claim::new(self.ids.next(), "me", name).wait(false)
    }

    /// Places new claims until the breaker is open.
    async fn trip(&self) {
        self.go(true);
        while self.breaker.away().is_none() {
            self.breaker.place(&self.claim("trip")).await.unwrap_err();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn it_opens_after_five_failures_in_a_row_and_fails_without_asking() {
    let setup = Setup::new(&World::new());
    let place = async || setup.breaker.place(&setup.claim("x")).await;
    for _ in 0..3 {
        setup.go(true);
        for _ in 0..4 {
            place().await.unwrap_err();
        }
        assert!(setup.breaker.away().is_none());
        // Any answer resets the count, also one that the lock is held.
        setup.go(false);
        place().await.unwrap();
    }
    let asked = setup.placed();
    setup.go(true);
    for _ in 0..5 {
        place().await.unwrap_err();
    }
    tokio::time::advance(ms(100)).await;
    let error = place().await.unwrap_err();
    assert!(error.is_away());
    assert_eq!(setup.placed(), asked + 5);
    let text = error.to_string();
    let parts = [
        "store memory:: taking lock x: not sent, because it has not answered for 100ms; next attempt in ",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// What the engine refuses before it asks the store says nothing of the store.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_sent_does_not_count() {
    let setup = Setup::new(&World::new());
    let bad_cursor = async || {
        let at = Some(Cursor("none".to_owned()));
        let listed = setup.breaker.inspect().list("", at, 10).await;
        assert!(matches!(listed, Err(Error::Invalid { .. })), "{listed:?}");
    };
    for _ in 0..10 {
        bad_cursor().await;
    }
    assert!(setup.breaker.away().is_none());
    for _ in 0..5 {
        setup.go(false);
        bad_cursor().await;
        setup.go(true);
        setup.breaker.place(&setup.claim("x")).await.unwrap_err();
    }
    assert!(setup.breaker.away().is_some());
    setup.go(false);
    bad_cursor().await;
    assert!(setup.breaker.away().is_some());
}

/// After a pause, one of many requests is sent.
#[tokio::test(start_paused = true)]
async fn one_request_asks_a_store_that_is_away() {
    let setup = Setup::new(&World::new());
    setup.trip().await;
    // The first pause is a quarter of a second at most.
    tokio::time::advance(ms(250)).await;
    setup.faults.next([Trouble::Hold]);
    let (breaker, claim) = (setup.breaker.clone(), setup.claim("x"));
    let probe = tokio::spawn(async move { breaker.place(&claim).await });
    settle().await;
    let error = setup.breaker.place(&setup.claim("y")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("another request asks it now"), "{text}");
    setup.go(false);
    setup.faults.open(1);
    probe.await.unwrap().unwrap();
    setup.breaker.place(&setup.claim("y")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_opens_after_two_seconds_without_an_answer() {
    let setup = Setup::new(&World::new());
    setup.faults.next([Trouble::Hold, Trouble::Hold]);
    let pending = |name: &str| {
        let (breaker, claim) = (setup.breaker.clone(), setup.claim(name));
        tokio::spawn(async move { breaker.place(&claim).await })
    };
    let first = pending("a");
    settle().await;
    tokio::time::advance(ms(1900)).await;
    let second = pending("b");
    settle().await;
    assert!(!second.is_finished());
    tokio::time::advance(ms(200)).await;
    let error = setup.breaker.place(&setup.claim("c")).await.unwrap_err();
    assert!(error.to_string().contains("for 2.1s"), "{error}");
    // A late answer closes the breaker.
    setup.faults.open(2);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    setup.breaker.place(&setup.claim("c")).await.unwrap();
    // A failure long ago does not count.
    setup.faults.next([Trouble::LoseRequest, Trouble::Hold]);
    setup.breaker.place(&setup.claim("d")).await.unwrap_err();
    tokio::time::advance(Duration::from_secs(3600)).await;
    let third = pending("e");
    settle().await;
    setup.breaker.place(&setup.claim("f")).await.unwrap();
    setup.faults.open(1);
    third.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_request_per_pause_goes_through_and_the_pauses_grow_to_15_s() {
    let setup = Setup::new(&World::new());
    setup.trip().await;
    let mut seen = Time::now();
    let mut pauses = Vec::new();
    let mut before = setup.placed();
    while pauses.len() < 12 {
        tokio::time::advance(ms(5)).await;
        for _ in 0..3 {
            setup.breaker.place(&setup.claim("x")).await.unwrap_err();
        }
        let now = setup.placed();
        assert!(now <= before + 1, "more than one request per pause");
        if now > before {
            pauses.push(seen.elapsed());
            seen = Time::now();
        }
        before = now;
    }
    let mut whole = ms(250);
    for pause in pauses {
        assert!(
            pause >= whole / 2 && pause <= whole + ms(5),
            "{pause:?} of {whole:?}"
        );
        whole = (whole * 2).min(Duration::from_secs(15));
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_releases_and_records_always_go_through() {
    let setup = Setup::new(&World::new());
    let claim = setup.claim("x");
    let Standing::Held(grant) = setup.breaker.place(&claim).await.unwrap() else {
        panic!("it is free");
    };
    setup.trip().await;
    let held = [HeldClaim::new(claim.clone(), grant.tokens.first)];
    for asked in 1..10 {
        let renewed = setup.breaker.renew(&held).await;
        assert!(matches!(renewed[0], Renewal::Unknown(_)));
        assert!(
            setup
                .breaker
                .withdraw(&claim, Leave::Release)
                .await
                .is_err()
        );
        assert_eq!(setup.others(), 2 * asked);
    }
    assert!(setup.breaker.away().is_some());
    // The answer of this read shows that the store is back.
    setup.breaker.record("", None).await.unwrap();
    assert!(setup.breaker.away().is_none());
    setup.trip().await;
    setup.go(false);
    let renewed = setup.breaker.renew(&held).await;
    assert!(matches!(renewed[0], Renewal::Kept { .. }));
    setup.breaker.place(&setup.claim("y")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_not_sent_is_not_withdrawn() {
    let world = World::new();
    let setup = Setup::new(&world);
    setup.trip().await;
    let client = setup.client();
    for _ in 0..100 {
        let error = client.try_lock("x").await.unwrap_err();
        assert!(error.to_string().contains("not sent"), "{error}");
    }
    tokio::time::sleep(ms(1)).await;
    settle().await;
    assert_eq!(setup.others(), 0);
    // A claim that was sent is withdrawn.
    setup.go(false);
    tokio::time::advance(ms(300)).await;
    setup.faults.next([Trouble::LoseReply]);
    client.try_lock("x").await.unwrap_err();
    settle().await;
    assert_eq!((setup.others(), world.left()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_granted_after_the_store_returns() {
    let world = World::new();
    let setup = Setup::new(&world);
    let client = setup.client();
    setup.go(true);
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..200 {
        let (client, granted) = (client.clone(), granted.clone());
        tasks.push(tokio::spawn(async move {
            let guard = client.lock(&format!("x{number}")).await.unwrap();
            granted.lock().unwrap().push(Time::now());
            guard
        }));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let back = Time::now();
    let asked = setup.placed();
    setup.go(false);
    for task in tasks {
        drop(task.await.unwrap());
    }
    let granted = granted.lock().unwrap();
    let first = granted.iter().min().unwrap();
    let last = granted.iter().max().unwrap();
    // The pause before the return is noticed is no longer than the store was away. After that, all requests are granted within
    // their longest pause.
    assert!(*first - back <= ms(4000 + 1000), "{:?}", *first - back);
    assert!(*last - *first <= ms(2100), "{:?}", *last - *first);
    // Each request was sent once when the store went away. Then one request was sent per pause.
    assert!(asked <= 210, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn retries_are_limited_to_one_per_second_and_a_tenth_of_the_successes() {
    let setup = Setup::new(&World::new());
    let lose = async |claim: &Claim| {
        setup.faults.next([Trouble::LoseRequest]);
        let error = setup.breaker.place(claim).await.unwrap_err();
        error.to_string()
    };
    let succeed = async |times: u32| {
        for _ in 0..times {
            let claim = setup.claim("other");
            setup.breaker.place(&claim).await.unwrap();
            setup
                .breaker
                .withdraw(&claim, Leave::Release)
                .await
                .unwrap();
        }
    };
    let claim = setup.claim("x");
    assert!(!lose(&claim).await.contains("not sent"));
    // One retry per second is allowed.
    assert!(!lose(&claim).await.contains("not sent"));
    let error = setup.breaker.place(&claim).await.unwrap_err().to_string();
    assert!(
        error.contains("not sent, because more than a tenth"),
        "{error}"
    );
    // This retry is sent, since it comes after the longest pause of a request.
    setup.breaker.place(&claim).await.unwrap();
    // A tenth: 100 calls succeed here, and two retries were counted.
    succeed(50).await;
    let mut sent = 0;
    for number in 0..30 {
        let claim = setup.claim(&format!("y{number}"));
        lose(&claim).await;
        match setup.breaker.place(&claim).await {
            Ok(_) => sent += 1,
            Err(error) => {
                assert!(error.to_string().contains("a tenth"), "{error}");
                // Prevents five failures in a row.
                succeed(1).await;
            }
        }
    }
    assert!((9..=15).contains(&sent), "{sent}");
}

/// Prints in real time how long a caller waits for the error of an open breaker.
#[tokio::test]
async fn a_caller_gets_the_error_at_once() {
    let setup = Setup::around(Arc::new(Memory::new()));
    setup.trip().await;
    let client = setup.client();
    let (mut times, count) = (Vec::new(), 2000);
    for _ in 0..count {
        let begun = Instant::now();
        assert!(client.try_lock("x").await.is_err());
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let (median, p99) = (times[count / 2], times[count * 99 / 100]);
    println!("an open breaker: try_lock fails after {median:?} (median), {p99:?} (99 %)");
    // A timeout would take seconds.
    assert!(median < ms(10), "{median:?}");
}

#[derive(Debug, Default)]
struct Changes(Mutex<Vec<(String, StoreChange)>>);

impl Observer for Changes {
    fn store_changed(&self, store: &str, change: StoreChange) {
        let change = (store.to_owned(), change);
        self.0.lock().unwrap().push(change);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_learns_once_that_the_store_is_away_and_back() {
    let setup = Setup::new(&World::new());
    let changes = Arc::<Changes>::default();
    let client = Client::builder(setup.breaker.clone()).observer(changes.clone());
    let client = client.build().unwrap();
    setup.trip().await;
    for _ in 0..10 {
        client.try_lock("x").await.unwrap_err();
    }
    let memory = |change| ("memory".to_owned(), change);
    let away = [memory(StoreChange::Away)];
    assert_eq!(*changes.0.lock().unwrap(), away);
    setup.go(false);
    while client.try_lock("x").await.is_err() {
        tokio::time::advance(ms(100)).await;
    }
    let both = [memory(StoreChange::Away), memory(StoreChange::Back)];
    assert_eq!(*changes.0.lock().unwrap(), both);
}
