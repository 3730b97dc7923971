//! More claims than connections, where a lock depends on a connection.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Place, Standing, Withdrawn};
use fencelock_core::{ClaimIds, Client, Engine, Error, Guard, LockName, StoreUrl};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{open, soon, take, token_of};

/// Eight times as many workers as connections lock different names.
pub(crate) async fn free_names_are_taken(client: &Client) {
    let work = |worker: u32| {
        let client = client.clone();
        async move {
            for _ in 0..20 {
                token_of(&client, &format!("own {worker}")).await;
            }
        }
    };
    let workers: Vec<_> = (0..32).map(|worker| tokio::spawn(work(worker))).collect();
    for worker in workers {
        soon("a worker", worker).await.unwrap();
    }
}

async fn engine(url: &str, connections: usize) -> Arc<dyn Engine> {
    let url = StoreUrl::parse(&format!("{url}&max-connections={connections}"));
    crate::engine::connect(url.unwrap()).await.unwrap()
}

fn claim(name: &str) -> Claim {
    let id = ClaimIds::new().unwrap().next();
    Claim::new(id, "few", LockName::new(name).unwrap())
}

async fn place_to_wait(engine: &Arc<dyn Engine>, claim: &Claim) -> Place {
    match soon("an answer", engine.place(claim)).await.unwrap() {
        Standing::Waiting(place) => place,
        other => panic!("{}: {other:?}", claim.name),
    }
}

async fn place_to_hold(engine: &Arc<dyn Engine>, claim: &Claim) {
    let standing = soon("an answer", engine.place(claim)).await.unwrap();
    assert!(
        matches!(standing, Standing::Held(_)),
        "{}: {standing:?}",
        claim.name
    );
}

async fn withdraw(engine: &Arc<dyn Engine>, claim: &Claim) -> Withdrawn {
    let left = soon("an answer", engine.withdraw(claim, Leave::Release)).await;
    left.unwrap()
}

/// A claim in the queue for a connection is not listed as a waiter. It is listed once it waits in the server, for a lock that
/// another claim holds.
pub(crate) async fn a_claim_is_listed_once_it_waits_in_the_server(url: &str) {
    let (one, few) = (open(url).await.unwrap(), engine(url, 1).await);
    let waiters = async || one.look("theirs").await.unwrap().waiters.len();
    let (held, own, theirs) = (take(&one, "theirs").await, claim("own"), claim("theirs"));
    place_to_hold(&few, &own).await;
    let place = place_to_wait(&few, &theirs).await;
    // A process writes its own pending records when it looks.
    few.inspect().look(&theirs.name).await.unwrap();
    assert_eq!(waiters().await, 0);
    assert_eq!(withdraw(&few, &own).await, Withdrawn::Released);
    soon("a connection", few.wait(&theirs, &place))
        .await
        .unwrap();
    let place = place_to_wait(&few, &theirs).await;
    // Without any further call.
    let listed = async {
        while waiters().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the record of the waiter", listed).await;
    held.release().await.unwrap();
    soon("the grant", few.wait(&theirs, &place)).await.unwrap();
    place_to_hold(&few, &theirs).await;
    assert_eq!(withdraw(&few, &theirs).await, Withdrawn::Released);
    let view = one.look("theirs").await.unwrap();
    assert!(
        view.holders.is_empty() && view.waiters.is_empty(),
        "{view:?}"
    );
}

/// The first claim in the queue gets the next connection, even if its wait was dropped. A connection that it does not use goes
/// to the next claim.
pub(crate) async fn connections_are_shared_in_order(url: &str) {
    let few = engine(url, 1).await;
    let [holder, first, second, third] = ["holder", "first", "second", "third"].map(claim);
    place_to_hold(&few, &holder).await;
    let asks = async |waiter: &Claim| {
        let place = place_to_wait(&few, waiter).await;
        let waited = timeout(Duration::from_millis(1), few.wait(waiter, &place)).await;
        assert!(waited.is_err(), "{waited:?}");
        place
    };
    let places = [asks(&first).await, asks(&second).await, asks(&third).await];
    for waiter in [&third, &second, &first] {
        asks(waiter).await;
    }
    withdraw(&few, &holder).await;
    soon("a connection", few.wait(&first, &places[0]))
        .await
        .unwrap();
    place_to_wait(&few, &third).await;
    place_to_wait(&few, &second).await;
    // The first claim has its turn, and leaves.
    assert_eq!(withdraw(&few, &first).await, Withdrawn::LeftQueue);
    soon("a connection", few.wait(&second, &places[1]))
        .await
        .unwrap();
    place_to_hold(&few, &second).await;
    place_to_wait(&few, &third).await;
    withdraw(&few, &second).await;
    place_to_hold(&few, &third).await;
    withdraw(&few, &third).await;
}

/// Requests end in the queue for a connection: by their time limit, by a drop, and by a close. Nothing is left of them.
pub(crate) async fn a_request_leaves_the_queue(url: &str) {
    let one = open(url).await.unwrap();
    let few = open(&format!("{url}&max-connections=1")).await.unwrap();
    let held = take(&few, "held").await;
    let late = few.lock("late").timeout(Duration::from_millis(100));
    let late = soon("the time limit", late).await.unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late:?}");
    let dropped = timeout(Duration::from_millis(50), few.lock("dropped")).await;
    assert!(dropped.is_err(), "{dropped:?}");
    let next = waits(&few, "next");
    held.release().await.unwrap();
    let next = soon("the next one", next).await.unwrap().unwrap();
    let closed = waits(&few, "closed");
    for name in ["late", "dropped", "held"] {
        drop(one.try_lock(name).await.unwrap());
    }
    next.release().await.unwrap();
    let last = soon("the last one", closed).await.unwrap().unwrap();
    let closed = waits(&few, "at the end");
    soon("the close", few.close()).await.unwrap();
    let closed = soon("the end", closed).await.unwrap().unwrap_err();
    assert!(matches!(closed, Error::Closed), "{closed:?}");
    assert!(!last.is_valid());
    for name in ["closed", "at the end"] {
        drop(take(&one, name).await);
    }
}

/// Takes the lock, and passes its connection to the next claim.
fn passes(client: &Client, name: &str) -> JoinHandle<()> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move {
        take(&client, &name).await.release().await.unwrap();
    })
}

fn waits(client: &Client, name: &str) -> JoinHandle<Result<Guard, Error>> {
    tokio::spawn(client.lock(name).into_future())
}

/// All connections hold, and others queue: holders still renew and release.
pub(crate) async fn holders_go_on_while_others_queue(url: &str) {
    let few = open(&format!("{url}&max-connections=2")).await.unwrap();
    let ttl = Duration::from_secs(3);
    let mut held = Vec::new();
    for name in ["a", "b"] {
        held.push(soon("a lock", few.lock(name).ttl(ttl)).await.unwrap());
    }
    let queue = ["c", "d", "e", "f"].map(|name| passes(&few, name));
    for _ in 0..3 {
        for guard in &held {
            soon("a renewal", guard.prolonged()).await;
            assert!(guard.is_valid());
        }
    }
    let view = soon("a look", few.look("a")).await.unwrap();
    assert_eq!(view.holders.len(), 1);
    assert!(queue.iter().all(|waits| !waits.is_finished()));
    for guard in held {
        soon("a release", guard.release()).await.unwrap();
    }
    for waits in queue {
        soon("a waiter", waits).await.unwrap();
    }
}

/// The number of connections is limited, however many claims wait. `waiting` says how many claims wait in the server,
/// `connections` how many connections there are.
pub(crate) async fn waiters_beyond_the_bound_queue_in_the_process(
    url: &str,
    waiting: impl Fn() -> u64,
    connections: impl Fn() -> u64,
) {
    let one = open(url).await.unwrap();
    let many = open(&format!("{url}&max-connections=4")).await.unwrap();
    let (mut held, mut queue) = (Vec::new(), Vec::new());
    for i in 0..16 {
        let name = format!("job {i}");
        held.push(take(&one, &name).await);
        queue.push(passes(&many, &name));
    }
    let four_wait = async {
        while waiting() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("four waiters", four_wait).await;
    // Each of the two clients has a control connection.
    let connections = connections();
    assert!(connections <= 16 + 4 + 2, "{connections}");
    let busy = soon("an answer", many.try_lock("free")).await.unwrap_err();
    assert!(busy.to_string().contains("max-connections"), "{busy}");
    for guard in held {
        guard.release().await.unwrap();
    }
    for waits in queue {
        soon("a waiter", waits).await.unwrap();
    }
    for client in [one, many] {
        client.close().await.unwrap();
    }
}
