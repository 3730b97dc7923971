//! Some replicas hang, and another one serves: whatever a client asks for, it gets it there, and soon.

use std::sync::Arc;
use std::time::Duration;

use fencelock::{Client, Guard, Memory, Release};
use fencelock_testbed::Flow;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::{Replica, connect, soon, until, url};

/// Far less than a replica that hangs would take: each request to it would take `response-timeout`, which is 12 s.
const QUICK: Duration = Duration::from_secs(8);

/// The first lease is so short that it does not outlast a machine that stands still for a moment. What is wrong fails each time.
const TRIES: usize = 3;

/// So many locks that some request of each kind goes to a replica that hangs.
const MANY: usize = 8;

async fn replicas(memory: &Memory, count: usize) -> Vec<Replica> {
    let started = (0..count).map(|_| Replica::start(Arc::new(memory.another())));
    join_all(started).await
}

async fn clients(replicas: &[Replica]) -> Vec<Client> {
    let url = format!("{}?response-timeout=12s", url(replicas));
    join_all((0..MANY).map(|_| connect(&url))).await
}

/// Each client takes a lock of its own.
async fn hold(clients: &[Client], ttl: Duration) -> Vec<Guard> {
    let locks = clients.iter().enumerate().map(async |(index, client)| {
        let name = format!("lock-{index}");
        client.lock(&name).ttl(ttl).await.unwrap()
    });
    soon("the locks", join_all(locks)).await
}

/// Two replicas, and clients that each hold a lock.
struct Two {
    memory: Memory,
    replicas: Vec<Replica>,
    guards: Vec<Guard>,
}

impl Two {
    async fn held(ttl: Duration) -> Self {
        let memory = Memory::new();
        let replicas = replicas(&memory, 2).await;
        let guards = hold(&clients(&replicas).await, ttl).await;
        Self {
            memory,
            replicas,
            guards,
        }
    }
}

async fn quickly<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match timeout(QUICK, future).await {
        Ok(done) => done,
        Err(_) => panic!("it waited for a replica that hangs: {what}"),
    }
}

/// Whether all get their first renewal in time. The first lease is one claim window, and that renewal brings the whole ttl,
/// a minute.
async fn are_renewed(guards: &[Guard]) -> bool {
    let mut are_valid = true;
    until("all are renewed", async || {
        are_valid = guards.iter().all(Guard::is_valid);
        let left = guards.iter().map(Guard::remaining).min();
        !are_valid || left > Some(Duration::from_secs(30))
    })
    .await;
    are_valid
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_renewal_goes_on_to_another_replica() {
    for hung in 0..2 {
        let renewed = async || {
            let two = Two::held(Duration::from_secs(60)).await;
            two.replicas[hung].proxy.both(Flow::Hold);
            are_renewed(&two.guards).await
        };
        let mut tries = 1;
        while !renewed().await {
            assert!(tries < TRIES, "a hold is lost");
            tries += 1;
        }
    }
}

/// Only one address is known, which may be that of a load balancer.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_renewal_goes_on_over_another_connection() {
    let renewed = async || {
        let replicas = replicas(&Memory::new(), 1).await;
        let guards = hold(&clients(&replicas).await, Duration::from_secs(60)).await;
        let proxy = &replicas[0].proxy;
        // The connections of now are dead from then on.
        proxy.both(Flow::Lose);
        // All renewals were sent, after a third of a claim window, and none has been repeated.
        sleep(Duration::from_millis(900)).await;
        proxy.both(Flow::Pass);
        are_renewed(&guards).await
    };
    let mut tries = 1;
    while !renewed().await {
        assert!(tries < TRIES, "a hold is lost");
        tries += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_goes_on_to_another_replica_while_most_of_the_lease_is_left() {
    let ttl = Duration::from_secs(12);
    let two = Two::held(ttl).await;
    for guard in &two.guards {
        guard.refresh(ttl).await.unwrap();
    }
    two.replicas[0].proxy.both(Flow::Hold);
    let begun = Instant::now();
    // `fencelock run` ends its command when a third of the lease is left. About then a renewal would end that waited for the
    // replica that hangs, since it begins when two thirds are left.
    while begun.elapsed() < ttl * 3 / 4 {
        let left = two.guards.iter().map(Guard::remaining).min().unwrap();
        assert!(left > ttl * 5 / 12, "{left:?} are left");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_and_a_release_go_on_to_another_replica() {
    for hung in 0..2 {
        let ttl = Duration::from_secs(30);
        let two = Two::held(ttl).await;
        two.replicas[hung].proxy.both(Flow::Hold);
        let refreshed = two.guards.iter().map(|guard| guard.refresh(ttl));
        for refreshed in quickly("a refresh", join_all(refreshed)).await {
            refreshed.unwrap();
        }
        // Until the replica that hangs may be asked first again.
        sleep(Duration::from_millis(2100)).await;
        let released = two.guards.into_iter().map(Guard::release);
        for released in quickly("a release", join_all(released)).await {
            assert_eq!(released.unwrap(), Release::Released);
        }
        assert!(two.memory.is_empty(), "a lock is still taken");
    }
}

/// A release took effect, but the replica that did it hangs before it answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_does_not_come_is_told_as_released() {
    let two = Two::held(Duration::from_secs(30)).await;
    two.replicas[0].proxy.answers(Flow::Hold);
    let released = two.guards.into_iter().map(Guard::release);
    for released in quickly("a release", join_all(released)).await {
        assert_eq!(released.unwrap(), Release::Released);
    }
    assert!(two.memory.is_empty());
}

/// Only one address is known. The connections break after the releases took effect, and before their answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_goes_on_over_another_connection() {
    let memory = Memory::new();
    let replicas = replicas(&memory, 1).await;
    let guards = hold(&clients(&replicas).await, Duration::from_secs(30)).await;
    let proxy = &replicas[0].proxy;
    proxy.answers(Flow::Hold);
    let breaks = async {
        until("all are released", async || memory.is_empty()).await;
        proxy.reset();
        proxy.answers(Flow::Pass);
    };
    let released = join_all(guards.into_iter().map(Guard::release));
    let (released, ()) = tokio::join!(quickly("a release", released), breaks);
    for released in released {
        assert_eq!(released.unwrap(), Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_is_taken_at_the_only_replica_that_does_not_hang() {
    for serves in 0..3 {
        let memory = Memory::new();
        let replicas = replicas(&memory, 3).await;
        let before = clients(&replicas).await;
        for (index, replica) in replicas.iter().enumerate() {
            if index != serves {
                replica.proxy.both(Flow::Hold);
            }
        }
        let after = quickly("opening the store", clients(&replicas)).await;
        let mut attempts = [&before, &after, &before, &after].into_iter();
        let mut kept = 0;
        while kept < 2 {
            let clients = attempts.next().expect("two of four attempts are in time");
            let tried = clients.iter().enumerate().map(async |(index, client)| {
                let name = format!("lock-{index}");
                client.try_lock(&name).await.unwrap()
            });
            let guards = quickly("a lock", join_all(tried)).await;
            let refreshed = guards
                .iter()
                .map(|guard| guard.refresh(Duration::from_secs(30)));
            let refreshed = quickly("a refresh", join_all(refreshed)).await;
            // The first lease is two seconds long. A machine that stands still may use it up.
            if refreshed.iter().any(Result::is_err) {
                drop(guards);
                until("nothing is left", async || memory.is_empty()).await;
                continue;
            }
            kept += 1;
            for guard in guards {
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
        }
        until("nothing is left", async || memory.is_empty()).await;
    }
}
