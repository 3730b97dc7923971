//! Takes and releases that come together and are sent in batches: they keep every promise of a request that is sent alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Leave, Standing, Withdrawn};
use fencelock_core::{BootInstant, Client, Clock, Engine, Error, StoreUrl, Token};
use fencelock_redis::Redis;
use fencelock_testbed::{Flow, Proxy, Redis as Server};
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::history::{Stay, faults};
use crate::support::{Store, calls, ms, nothing_is_left, open, open_with, server};

/// Claims of different names that take the fast path.
fn plain(store: &Store, count: usize) -> Vec<Claim> {
    (0..count).map(|i| store.plain(&format!("n/{i}"))).collect()
}

/// Claims of different names whose tokens are recorded.
fn recorded(store: &Store, count: usize) -> Vec<Claim> {
    (0..count).map(|i| store.claim(&format!("n/{i}"))).collect()
}

async fn place_all(store: &Store, claims: &[Claim]) -> Vec<Result<Standing, Error>> {
    join_all(claims.iter().map(|claim| store.engine.place(claim))).await
}

async fn hold_all(store: &Store, claims: &[Claim]) -> Vec<Token> {
    join_all(
        claims
            .iter()
            .map(async |claim| store.held(claim).await.tokens.first),
    )
    .await
}

async fn withdraw_all(store: &Store, claims: &[Claim]) -> Vec<Result<Withdrawn, Error>> {
    let withdraw = |claim| store.engine.withdraw(claim, Leave::Release);
    join_all(claims.iter().map(withdraw)).await
}

fn released(withdrawn: &Result<Withdrawn, Error>) -> bool {
    matches!(withdrawn, Ok(Withdrawn::Released))
}

#[tokio::test]
async fn a_hundred_claims_need_few_requests() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = plain(&store, 100);
    for _ in 0..3 {
        let before = calls(&server, "incrby");
        let mut tokens = hold_all(&store, &claims).await;
        // Four requests alone, and four batches of the others.
        assert_eq!(calls(&server, "incrby") - before, 8);
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 100);
        let scripts = || calls(&server, "evalsha");
        let before = scripts();
        assert!(withdraw_all(&store, &claims).await.iter().all(released));
        assert_eq!(scripts() - before, 8);
        nothing_is_left(&server);
    }
}

#[tokio::test]
async fn a_hundred_claims_whose_tokens_are_recorded_need_few_requests() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = recorded(&store, 100);
    // The first batch finds that the server does not have the script, and its claims are sent alone.
    hold_all(&store, &claims).await;
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
    for _ in 0..3 {
        let before = calls(&server, "evalsha");
        let mut tokens = hold_all(&store, &claims).await;
        // Four requests alone, and four batches of the others.
        assert_eq!(calls(&server, "evalsha") - before, 8);
        for (claim, token) in claims.iter().zip(&tokens) {
            assert_eq!(store.look(&claim.name).await.token(), Some(*token));
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 100);
        assert!(withdraw_all(&store, &claims).await.iter().all(released));
        nothing_is_left(&server);
    }
}

#[tokio::test]
async fn few_claims_are_sent_alone() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = plain(&store, 4);
    let before = calls(&server, "incrby");
    hold_all(&store, &claims).await;
    assert_eq!(calls(&server, "incrby") - before, 4);
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
}

#[tokio::test]
async fn each_claim_of_a_batch_has_an_answer_of_its_own() {
    for claims in [plain, recorded] {
        each_has_an_answer_of_its_own(claims).await;
    }
}

async fn each_has_an_answer_of_its_own(claims: fn(&Store, usize) -> Vec<Claim>) {
    let server = server();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let warm = claims(&store, 20);
    hold_all(&store, &warm).await;
    assert!(withdraw_all(&store, &warm).await.iter().all(released));
    let claims = claims(&store, 20);
    let held = other.plain("n/7");
    other.held(&held).await;
    let _: i64 = server.command(&["RPUSH", "n/9", "a list"]).unwrap();
    let placed = place_all(&store, &claims).await;
    for (i, placed) in placed.iter().enumerate() {
        match i {
            7 => assert!(matches!(placed, Ok(Standing::Waiting(_))), "{placed:?}"),
            9 => assert!(matches!(placed, Err(Error::NotALock { .. })), "{placed:?}"),
            _ => assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}"),
        }
    }
    // Of the locks that are released now, one has a waiter, one is lost, and one was overwritten with another type.
    let waiter = other.claim("n/12");
    let place = other.waits(&waiter).await;
    let _: i64 = server.command(&["DEL", "n/13", "n/14"]).unwrap();
    let _: i64 = server.command(&["RPUSH", "n/14", "a list"]).unwrap();
    let stranger = other.plain("n/15");
    let _: i64 = server.command(&["DEL", "n/15"]).unwrap();
    let token = other.held(&stranger).await.tokens.first;
    let withdrawn = withdraw_all(&store, &claims).await;
    for (i, withdrawn) in withdrawn.iter().enumerate() {
        match i {
            7 => assert!(
                matches!(withdrawn, Ok(Withdrawn::LeftQueue)),
                "{withdrawn:?}"
            ),
            9 | 14 => assert!(
                matches!(withdrawn, Err(Error::NotALock { .. })),
                "{withdrawn:?}"
            ),
            13 => assert!(matches!(withdrawn, Ok(Withdrawn::Expired)), "{withdrawn:?}"),
            15 => assert!(
                matches!(withdrawn, Ok(Withdrawn::NotOwner)),
                "{withdrawn:?}"
            ),
            _ => assert!(released(withdrawn), "{i}: {withdrawn:?}"),
        }
    }
    other.granted(&waiter, &place).await;
    other.kept(&stranger, token).await;
}

#[tokio::test]
async fn lost_scripts_are_sent_again_for_all() {
    let server = server();
    let store = open(&server.url()).await;
    for claims in [plain(&store, 30), recorded(&store, 30)] {
        for _ in 0..2 {
            let _: String = server.command(&["SCRIPT", "FLUSH"]).unwrap();
            hold_all(&store, &claims).await;
            let _: String = server.command(&["SCRIPT", "FLUSH"]).unwrap();
            assert!(withdraw_all(&store, &claims).await.iter().all(released));
            nothing_is_left(&server);
        }
    }
}

#[tokio::test]
async fn of_two_claims_for_one_lock_in_one_batch_one_holds() {
    let server = server();
    let store = open(&server.url()).await;
    let warm = recorded(&store, 30);
    hold_all(&store, &warm).await;
    assert!(withdraw_all(&store, &warm).await.iter().all(released));
    let mut claims = recorded(&store, 20);
    claims.extend(recorded(&store, 20));
    let placed = place_all(&store, &claims).await;
    let (mut held, mut waiting) = (0, 0);
    for placed in &placed {
        match placed {
            Ok(Standing::Held(_)) => held += 1,
            Ok(Standing::Waiting(_)) => waiting += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((held, waiting), (20, 20));
    for withdrawn in withdraw_all(&store, &claims).await {
        withdrawn.unwrap();
    }
    nothing_is_left(&server);
}

/// The lease of a holder is over, and nobody has said so to the one that waits.
#[tokio::test]
async fn a_batch_of_recorded_takes_leaves_a_free_lock_to_its_waiter() {
    let server = server();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let claims = recorded(&store, 20);
    hold_all(&store, &claims).await;
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
    other.held(&other.plain("n/17")).await;
    let waiter = other.claim("n/17");
    let place = other.waits(&waiter).await;
    let _: i64 = server.command(&["DEL", "n/17"]).unwrap();
    for (i, placed) in place_all(&store, &claims).await.iter().enumerate() {
        match i {
            17 => assert!(matches!(placed, Ok(Standing::Waiting(_))), "{placed:?}"),
            _ => assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}"),
        }
    }
    other.granted(&waiter, &place).await;
}

#[tokio::test]
async fn recorded_tokens_of_a_batch_are_above_the_highest_that_was_seen() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = recorded(&store, 30);
    let before = hold_all(&store, &claims).await.into_iter().max().unwrap();
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
    let _: String = server.command(&["SET", "fencelock:counter", "1"]).unwrap();
    for token in hold_all(&store, &claims).await {
        assert!(token > before, "{token} is not above {before}");
    }
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
    nothing_is_left(&server);
}

/// The batch is on its way for so long that its callers may have given up.
#[tokio::test]
async fn a_batch_of_recorded_takes_after_its_deadline_takes_nothing() {
    let server = server();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!("{}?response-timeout=500ms", server.url_at(proxy.port()));
    let store = open(&url).await;
    // The server gets the scripts from a client that has time.
    let patient = open(&server.url()).await;
    let claims = recorded(&patient, 30);
    hold_all(&patient, &claims).await;
    assert!(withdraw_all(&patient, &claims).await.iter().all(released));
    let claims = recorded(&store, 30);
    let before = calls(&server, "evalsha");
    proxy.requests(Flow::Hold);
    for placed in place_all(&store, &claims).await {
        assert!(placed.unwrap_err().is_retryable());
    }
    // The deadline is twice the timeout after the request was made.
    tokio::time::sleep(ms(1100)).await;
    proxy.requests(Flow::Pass);
    let begin = Instant::now();
    // Four requests alone, and two batches of the others.
    while calls(&server, "evalsha") < before + 6 {
        assert!(begin.elapsed() < ms(10_000), "no late request came");
        tokio::time::sleep(ms(5)).await;
    }
    for claim in &claims {
        let holds: i64 = server.command(&["EXISTS", claim.name.as_str()]).unwrap();
        assert_eq!(holds, 0, "{} is held", claim.name);
    }
}

#[tokio::test]
async fn a_batch_whose_tokens_fail_keeps_no_lock() {
    let server = server();
    let store = open(&server.url()).await;
    let _: i64 = server.command(&["DEL", "fencelock:counter"]).unwrap();
    let _: i64 = server
        .command(&["RPUSH", "fencelock:counter", "x"])
        .unwrap();
    let claims = plain(&store, 30);
    for placed in place_all(&store, &claims).await {
        // The error says that the claim must be withdrawn.
        assert!(placed.unwrap_err().is_retryable());
    }
    assert!(withdraw_all(&store, &claims).await.iter().all(released));
    nothing_is_left(&server);
}

/// A claim that was given up before its request was sent must not hold after its withdrawal.
#[tokio::test]
async fn a_take_that_was_given_up_is_not_sent_after_its_withdrawal() {
    let server = server();
    let store = open(&server.url()).await;
    for polls in 0..16 {
        let (polls, claims) = match polls {
            0..8 => (polls, plain(&store, 40)),
            _ => (polls - 8, recorded(&store, 40)),
        };
        // Fused, because a completed one is polled again.
        let place = |claim| store.engine.place(claim).fuse();
        let mut placing: Vec<_> = claims.iter().map(place).collect();
        for _ in 0..polls {
            for placing in &mut placing {
                // All are given up, whether they have an answer or not.
                drop(placing.now_or_never());
            }
            tokio::task::yield_now().await;
        }
        drop(placing);
        for withdrawn in withdraw_all(&store, &claims).await {
            withdrawn.unwrap();
        }
        // The answer to this request comes after everything that was sent before.
        store.look(&claims[0].name).await;
        tokio::task::yield_now().await;
        store.look(&claims[0].name).await;
        nothing_is_left(&server);
    }
}

/// Like the test before, with callers on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn takes_given_up_on_other_threads_leave_nothing() {
    let server = server();
    let store = Arc::new(open(&server.url()).await);
    let tasks = (0..16).map(|task| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for round in 0..150 {
                let claim = store.claim(&format!("g/{task}/{round}"));
                let claim = claim.record(round % 2 == 0);
                let patience = Duration::from_micros(fastrand::u64(..300));
                drop(tokio::time::timeout(patience, store.engine.place(&claim)).await);
                store.release(&claim).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    nothing_is_left(&server);
}

/// Every request that is under way or queued fails, is in doubt, and is withdrawn.
#[tokio::test]
async fn a_hung_server_puts_every_claim_in_doubt() {
    let server = server();
    let store = open_with(&server, "response-timeout=1s").await;
    let claims = plain(&store, 2000);
    let first = plain(&store, 40);
    hold_all(&store, &first).await;
    assert!(withdraw_all(&store, &first).await.iter().all(released));
    server.pause().unwrap();
    let begin = Instant::now();
    for placed in place_all(&store, &claims).await {
        assert!(placed.unwrap_err().is_retryable());
    }
    // Two response timeouts end the connection; queued requests then fail at once.
    assert!(begin.elapsed() < ms(15_000), "{:?}", begin.elapsed());
    server.resume().unwrap();
    let begin = Instant::now();
    for claim in &claims {
        while store.engine.withdraw(claim, Leave::Release).await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
    }
    nothing_is_left(&server);
}

/// The response timeout of a request begins only when it has a place in the driver's buffer. So a server that is silent for
/// one timeout fails those requests that have a place, and none that wait for one.
#[tokio::test]
async fn many_requests_at_once_are_not_late() {
    const PLACES: usize = 2 * 1024;
    let server = server();
    let store = open_with(&server, "response-timeout=3s").await;
    let claims: Vec<Claim> = (0..20_000)
        .map(|i| {
            let name = format!("m/{i}");
            match i % 3 {
                0 => store.plain(&name),
                1 => store.claim(&name),
                _ => store.shared(&name),
            }
        })
        .collect();
    server.pause().unwrap();
    let mut placing: FuturesUnordered<_> = claims
        .iter()
        .map(|claim| store.engine.place(claim))
        .collect();
    let first = placing.next().await.unwrap();
    assert!(first.unwrap_err().is_retryable());
    // Until those that have a place have failed.
    while let Ok(Some(placed)) = tokio::time::timeout(ms(500), placing.next()).await {
        assert!(placed.is_err(), "{placed:?}");
    }
    server.resume().unwrap();
    assert!(placing.len() > claims.len() - PLACES, "{}", placing.len());
    let others: Vec<_> = placing.collect().await;
    assert!(others.iter().all(Result::is_ok));
    assert!(
        withdraw_all(&store, &claims)
            .await
            .iter()
            .all(Result::is_ok)
    );
    nothing_is_left(&server);
}

/// The histories of all locks, by name.
type Histories = Arc<Mutex<BTreeMap<String, Vec<Stay>>>>;

/// Takes locks and releases them until `stop` is set.
async fn work(
    client: Client,
    stop: Arc<AtomicBool>,
    histories: Histories,
    count: Arc<AtomicUsize>,
) {
    while !stop.load(Ordering::SeqCst) {
        let name = format!("b/{}", fastrand::usize(..NAMES));
        let asked = Clock::Boot.now();
        let request = client.lock(&name).ttl(TTL).timeout(Duration::from_secs(20));
        // Some requests are given up at a random moment.
        let patience = match fastrand::u8(..) {
            0..16 => Duration::from_micros(fastrand::u64(..2000)),
            _ => Duration::from_secs(30),
        };
        let guard = match tokio::time::timeout(patience, request.into_future()).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                assert!(error.is_retryable(), "{error}");
                continue;
            }
            Err(_) => continue,
        };
        let from = Clock::Boot.now();
        if fastrand::u8(..) < 8 {
            tokio::time::sleep(ms(fastrand::u64(..20))).await;
        }
        // In this order, because a grant that is valid now was valid at the time read before.
        let to = Clock::Boot.now();
        if guard.is_valid() {
            let nanos = BootInstant::as_nanos;
            let (asked, from, to) = (nanos(asked), nanos(from), nanos(to));
            let token = guard.token().get();
            let stay = Stay {
                token,
                asked,
                from,
                to,
            };
            histories
                .lock()
                .unwrap()
                .entry(name)
                .or_default()
                .push(stay);
            count.fetch_add(1, Ordering::SeqCst);
        }
        if let Err(error) = guard.release().await {
            assert!(error.is_retryable(), "{error}");
        }
    }
}

const NAMES: usize = 150;
const TTL: Duration = Duration::from_millis(1500);
const GRANTS: usize = 20_000;

async fn client(url: &str) -> Client {
    let engine = Redis::connect(StoreUrl::parse(url).unwrap()).await.unwrap();
    Client::new(Arc::new(engine)).unwrap()
}

/// One of the faults.
async fn fault(which: usize, server: &mut Server, proxy: &Proxy) {
    let a_moment = || tokio::time::sleep(ms(fastrand::u64(1..60)));
    match which % 7 {
        0 => proxy.reset(),
        1 => {
            proxy.answers(Flow::Lose);
            a_moment().await;
            proxy.answers(Flow::Pass);
            proxy.reset();
        }
        2 => {
            // Held requests run late, even after their connection was replaced.
            proxy.requests(Flow::Hold);
            tokio::time::sleep(ms(fastrand::u64(1..500))).await;
            proxy.requests(Flow::Pass);
        }
        3 => {
            server.pause().unwrap();
            tokio::time::sleep(ms(fastrand::u64(1..500))).await;
            server.resume().unwrap();
        }
        4 => {
            let _: i64 = server
                .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .unwrap();
        }
        5 => drop(server.command::<String>(&["SCRIPT", "FLUSH"]).unwrap()),
        _ => {
            // The server kept nothing. After the longest lease it grants again (restart-delay).
            server.restart_empty().unwrap();
        }
    }
    a_moment().await;
}

/// Many workers use one client, whose requests go in batches. A few workers use another client, whose requests go
/// alone. All use the same names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_days_give_no_token_twice_and_no_lock_to_two() {
    let mut server = server();
    let proxy = Proxy::start(server.port()).unwrap();
    let options = "response-timeout=150ms&restart-delay=1800ms";
    let many = client(&format!("{}?{options}", server.url_at(proxy.port()))).await;
    let few = client(&format!("{}?{options}", server.url())).await;
    let stop = Arc::<AtomicBool>::default();
    let (histories, count) = (Histories::default(), Arc::<AtomicUsize>::default());
    let start = |client: &Client| {
        let (histories, count) = (Arc::clone(&histories), Arc::clone(&count));
        tokio::spawn(work(client.clone(), Arc::clone(&stop), histories, count))
    };
    let mut tasks: Vec<_> = (0..48).map(|_| start(&many)).collect();
    tasks.extend((0..3).map(|_| start(&few)));
    let begin = Instant::now();
    let mut day = 0;
    while count.load(Ordering::SeqCst) < GRANTS || day < 14 {
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "too slow: {count:?}"
        );
        fault(day, &mut server, &proxy).await;
        day += 1;
        // Some thousand grants between them.
        let before = count.load(Ordering::SeqCst);
        let since = Instant::now();
        while count.load(Ordering::SeqCst) < before + GRANTS / 20 && since.elapsed() < ms(4000) {
            tokio::time::sleep(ms(2)).await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let histories = histories.lock().unwrap();
    let found: Vec<_> = histories.values().flat_map(|stays| faults(stays)).collect();
    assert!(found.is_empty(), "{found:#?}");
}
