//! Holds and queues without failures.

use std::time::{Duration, Instant};

use fencelock::Client;
use fencelock_testbed::{Dir, Redis};

use crate::for_each_client;
use crate::front::{Act, Fronts, Request};
use crate::program::{Language, Program};
use crate::service::{Replica, Service, assert_nothing_left, await_waiters, urls};

const TRIES: usize = 3;

for_each_client!(
    the_queue_is_served_in_order,
    a_hold_lasts_longer_than_its_lease,
    a_lease_that_is_not_named_is_as_the_service_says,
    waiting_that_is_cancelled_leaves_nothing,
    waiting_that_runs_out_leaves_nothing,
    closing_releases_and_ends_waiting,
);

async fn the_queue_is_served_in_order(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut programs = Vec::new();
    for _ in 0..4 {
        programs.push(Program::start(language, &service.urls(), "queue").await);
    }
    let mut token = programs[0].held("lock 5000 -").await;
    for (before, program) in programs[1..].iter().enumerate() {
        program.tell("lock 5000 -");
        await_waiters(&library, "queue", before + 1).await;
    }
    let mut other = Program::start(language, &service.urls(), "queue").await;
    assert_eq!(other.ask("lock 5000 0").await, "busy");
    for holder in 1..4 {
        assert_eq!(programs[holder - 1].ask("release").await, "released");
        let next = programs[holder].granted().await;
        assert!(next > token, "{next} after {token}");
        token = next;
        let seen = library.look("queue").await.expect("a view").token();
        assert_eq!(seen.map(fencelock::Token::get), Some(token));
    }
    assert_eq!(programs[3].ask("release").await, "released");
    assert!(other.held("lock 5000 0").await > token);
    assert_eq!(other.ask("release").await, "released");
    assert_nothing_left(&library, "queue").await;
}

async fn a_hold_lasts_longer_than_its_lease(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "long").await;
    let token = program.held("lock 4000 -").await;
    // Longer than a lease, and no other client gets the lock.
    let waiting = library.lock("long");
    let early = tokio::time::timeout(Duration::from_secs(5), waiting.into_future()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(program.ask("valid").await, "true");
    assert_eq!(program.ask("release").await, "released");
    let guard = library.lock("long").await.expect("granted");
    assert!(guard.token().get() > token);
}

async fn a_lease_that_is_not_named_is_as_the_service_says(language: Language) {
    let redis = Redis::start().expect("redis-server");
    let dir = Dir::new("serve").expect("a directory");
    let config = dir.join("config.toml");
    std::fs::write(&config, "[serve.limits]\nmax_ttl = \"4s\"\n").expect("written");
    let replica = Replica::start_with(redis.url(), &["--config", &config]);
    let fronts = Fronts::new(|_| Act::Pass);
    let port = fronts.before(replica.port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "unnamed").await;
    let begun = Instant::now();
    program.held("lock - -").await;
    // Longer than a lease.
    program.assert_silent(Duration::from_secs(6)).await;
    assert_eq!(program.ask("valid").await, "true");
    assert_eq!(program.ask("release").await, "released");
    let requests = fronts.requests();
    let renewals = requests.iter().filter(|request| request.is_renewal());
    // Each third of a lease. The first lease is shorter.
    let most = begun.elapsed().as_millis() / (4000 / 3) + 3;
    assert!(
        (3..=most).contains(&(renewals.count() as u128)),
        "{requests:?}"
    );
    let named = |request: &&Request| request.text.contains("ttl_ms");
    assert_eq!(requests.iter().find(named).map(Request::line), None);
}

async fn waiting_that_is_cancelled_leaves_nothing(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let guard = library.lock("cancelled").await.expect("granted");
    let mut program = Program::start(language, &service.urls(), "cancelled").await;
    let mut tries = 0;
    while tries == 0 || !has_left(&library, "cancelled").await {
        assert!(tries < TRIES, "its place lapsed");
        tries += 1;
        program.tell("lock 5000 -");
        await_waiters(&library, "cancelled", 1).await;
        assert_eq!(program.ask("cancel").await, "cancelled");
    }
    guard.release().await.expect("released");
    assert_nothing_left(&library, "cancelled").await;
    program.held("lock 5000 0").await;
}

async fn waiting_that_runs_out_leaves_nothing(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let guard = library.lock("late").await.expect("granted");
    let mut program = Program::start(language, &service.urls(), "late").await;
    let mut tries = 0;
    while tries == 0 || !has_left(&library, "late").await {
        assert!(tries < TRIES, "its place lapsed");
        tries += 1;
        // More than one poll.
        assert_eq!(program.ask("lock 5000 1300").await, "timeout");
    }
    guard.release().await.expect("released");
    assert_nothing_left(&library, "late").await;
}

/// Waits until no claim waits. Returns whether that took less time than a place lasts that no client gave up. The machine may
/// stand still meanwhile, but not each time.
async fn has_left(client: &Client, name: &str) -> bool {
    let begun = Instant::now();
    await_waiters(client, name, 0).await;
    begun.elapsed() < Duration::from_millis(500)
}

async fn closing_releases_and_ends_waiting(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "closed").await;
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("close").await, "closed");
    assert_nothing_left(&library, "closed").await;
    assert_eq!(program.ask("valid").await, "false");
}
