//! Replicas die, stop, or do not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_testbed::{ClockShim, Etcd};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use crate::for_each_client;
use crate::front::{Act, Fronts, Request, forward};
use crate::program::{Language, Program};
use crate::service::{PATIENCE, Replica, Service, assert_nothing_left, await_waiters, urls};

for_each_client!(
    a_holder_goes_on_at_another_replica,
    a_waiter_goes_on_at_another_replica,
    a_wall_clock_that_is_set_changes_nothing,
    a_replica_that_is_about_to_end_is_left,
    a_bound_replica_that_dies_takes_its_claims_along,
    a_loss_is_reported_before_the_next_grant,
    an_answer_that_is_lost_is_asked_for_again,
    a_renewal_that_is_lost_is_asked_for_again,
    a_replica_that_hangs_costs_no_lock_in_its_first_lease,
    late_answers_and_late_requests_change_nothing,
    a_blocked_program_does_not_believe,
    a_lost_hold_stays_lost,
    no_replica_answers,
);

/// Nanoseconds of the monotonic clock, which programs in other languages use, too.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

async fn a_holder_goes_on_at_another_replica(language: Language) {
    let mut service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "moves").await;
    let token = program.held("lock 3000 -").await;
    // Whichever replica the program used at first, it has moved at least once.
    for replica in 0..2 {
        service.replicas[replica].process().kill9();
        // Longer than the lease.
        let early = library.lock("moves").timeout(Duration::from_millis(3500));
        let early = early.await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(program.ask("valid").await, "true");
        service.replicas[replica].restart();
    }
    assert_eq!(program.ask("release").await, "released");
    assert!(library.lock("moves").await.expect("granted").token().get() > token);
}

/// The clients count leases on a clock that nobody can set.
async fn a_wall_clock_that_is_set_changes_nothing(language: Language) {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let service = Service::start();
    let library = service.library().await;
    let clock = ClockShim::new().expect("a clock");
    let mut program = Program::start_at(language, &service.urls(), "jumps", &clock).await;
    let token = program.held("lock 3000 -").await;
    let wall = || {
        let read = language.wall_clock().envs(clock.env()).output();
        let text = String::from_utf8(read.expect("it runs").stdout).expect("a number");
        text.trim().parse::<u64>().expect("seconds")
    };
    let before = wall();
    for forward in [true, false] {
        let set = match forward {
            true => clock.forward(DAY * 2),
            false => clock.back(DAY * 4),
        };
        set.expect("set");
        assert_eq!(wall() > before, forward, "{}", language.name());
        // Longer than the lease.
        let early = library.lock("jumps").timeout(Duration::from_millis(3500));
        let early = early.await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(program.ask("valid").await, "true");
    }
    assert_eq!(program.ask("release").await, "released");
    assert!(library.lock("jumps").await.expect("granted").token().get() > token);
}

async fn a_waiter_goes_on_at_another_replica(language: Language) {
    let mut service = Service::start();
    let library = service.library().await;
    let guard = library.lock("waits").await.expect("granted");
    let mut first = Program::start(language, &service.urls(), "waits").await;
    first.tell("lock 3000 -");
    await_waiters(&library, "waits", 1).await;
    let mut second = Program::start(language, &service.urls(), "waits").await;
    second.tell("lock 3000 -");
    await_waiters(&library, "waits", 2).await;
    for replica in 0..2 {
        service.replicas[replica].process().kill9();
        // Longer than a place lasts without a poll.
        first.assert_silent(Duration::from_millis(2500)).await;
        await_waiters(&library, "waits", 2).await;
        // The second one stays down.
        if replica == 0 {
            service.replicas[replica].restart();
        }
    }
    guard.release().await.expect("released");
    let token = first.granted().await;
    assert_eq!(first.ask("release").await, "released");
    assert!(second.granted().await > token, "they kept their places");
}

async fn a_replica_that_is_about_to_end_is_left(language: Language) {
    let mut service = Service::start();
    let library = service.library().await;
    let mut holder = Program::start(language, &service.urls(), "drained").await;
    let begun = Instant::now();
    let token = holder.held("lock 4000 -").await;
    let mut waiter = Program::start(language, &service.urls(), "drained").await;
    waiter.tell("lock 4000 -");
    await_waiters(&library, "drained", 1).await;
    for replica in 0..2 {
        let process = service.replicas[replica].process();
        process.terminate().expect("it runs");
        // Much less than the time that it may take to end.
        let ended = tokio::task::block_in_place(|| process.wait_for(Duration::from_secs(8)));
        assert!(ended.is_some(), "clients keep it from its end");
        service.replicas[replica].restart();
    }
    // A lease that was not renewed would be over.
    let left = Duration::from_millis(4500).saturating_sub(begun.elapsed());
    holder.assert_silent(left).await;
    assert_eq!(holder.ask("valid").await, "true");
    await_waiters(&library, "drained", 1).await;
    assert_eq!(holder.ask("release").await, "released");
    assert!(waiter.granted().await > token);
}

async fn a_bound_replica_that_dies_takes_its_claims_along(language: Language) {
    let etcd = Etcd::start().expect("etcd");
    let mut replicas = [Replica::start(etcd.url()), Replica::start(etcd.url())];
    let library = fencelock::connect(etcd.url()).await.expect("connects");
    // Each replica has one address, so that it is known which replica has the claim.
    let both = [urls([replicas[0].port()]), urls([replicas[1].port()])];
    let mut holder = Program::start(language, &both[0], "bound").await;
    let token = holder.held("lock 3000 -").await;
    let mut waiter = Program::start(language, &both[1], "bound").await;
    waiter.tell("lock 3000 -");
    await_waiters(&library, "bound", 1).await;
    replicas[0].process().kill9();
    holder.lost().await;
    let next = waiter.granted().await;
    assert!(next > token);
    // Another replica at the same address does not know the claim, so the hold ends with the first replica's claim.
    replicas[1].restart();
    waiter.lost().await;
    assert_eq!(waiter.ask("valid").await, "false");
    assert!(waiter.held("lock 3000 -").await > next);
    assert_eq!(waiter.ask("release").await, "released");
}

async fn a_loss_is_reported_before_the_next_grant(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "stopped").await;
    let token = program.held("lock 1500 -").await;
    for replica in &service.replicas {
        replica.process().pause().expect("stopped");
    }
    let guard = library.lock("stopped").await.expect("granted");
    let granted = now();
    assert!(guard.token().get() > token);
    let told = program.lost().await;
    assert!(told < granted, "told {} ns after the grant", told - granted);
    for replica in &service.replicas {
        replica.process().resume().expect("continued");
    }
    assert_eq!(program.ask("valid").await, "false");
    // Its late renewals and its withdrawal do not affect the next holder.
    program.assert_silent(Duration::from_millis(500)).await;
    assert!(guard.is_valid());
    let waiting = program.ask("lock 1500 300").await;
    assert_eq!(waiting, "timeout");
    guard.release().await.expect("released");
}

async fn an_answer_that_is_lost_is_asked_for_again(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut lost = false;
    let fronts = Fronts::new(move |request| match request.is_put() && !lost {
        true => {
            lost = true;
            Act::LoseAnswer
        }
        false => Act::Pass,
    });
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "lost").await;
    let token = program.held("lock 5000 -").await;
    let seen = library.look("lost").await.expect("a view");
    assert_eq!(seen.token().map(fencelock::Token::get), Some(token));
    assert_eq!(program.ask("release").await, "released");
    assert_nothing_left(&library, "lost").await;
    let puts = fronts.requests().into_iter().filter(Request::is_put);
    let puts: Vec<Request> = puts.collect();
    assert!(puts.len() >= 2, "{puts:?}");
    assert!(puts.iter().all(|put| put.claim() == puts[0].claim()));
    assert_ne!(
        puts[0].port, puts[1].port,
        "it asked the same replica again"
    );
    // The first request may take effect late, so the client releases once more, a claim window later.
    let releases = await_requests(&fronts, 2, Request::is_release).await;
    let apart = releases[1].at - releases[0].at;
    assert!(apart >= Duration::from_millis(1900), "{apart:?}");
}

async fn a_renewal_that_is_lost_is_asked_for_again(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut renewals = 0;
    // The first renewal brings the whole lease. The next one is lost.
    let fronts = Fronts::new(move |request| {
        renewals += usize::from(request.is_renewal());
        match request.is_renewal() && renewals == 2 {
            true => Act::LoseAnswer,
            false => Act::Pass,
        }
    });
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "renewed").await;
    program.held("lock 4000 -").await;
    let early = library
        .lock("renewed")
        .timeout(Duration::from_secs(6))
        .await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(program.ask("valid").await, "true");
    let renewals = await_requests(&fronts, 3, Request::is_renewal).await;
    assert_ne!(
        renewals[1].port, renewals[2].port,
        "it asked the same replica again"
    );
    assert_eq!(program.ask("release").await, "released");
}

/// The first lease is much shorter than what was asked for.
async fn a_replica_that_hangs_costs_no_lock_in_its_first_lease(language: Language) {
    let service = Service::start();
    let fronts = Fronts::new(|_| Act::Pass);
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "first").await;
    let mut hung = None;
    let first_renewed_at_hangs = move |request: &Request| {
        if request.is_renewal() {
            hung.get_or_insert(request.port);
        }
        match hung == Some(request.port) {
            true => Act::LoseAnswer,
            false => Act::Pass,
        }
    };
    fronts.set(first_renewed_at_hangs);
    program.held("lock 30000 -").await;
    // Longer than the first lease.
    program.assert_silent(Duration::from_secs(3)).await;
    assert_eq!(program.ask("valid").await, "true");
    assert_eq!(program.ask("release").await, "released");
    fronts.set(first_renewed_at_hangs);
    assert_eq!(program.ask("detach 30000").await, "detached");
}

async fn late_answers_and_late_requests_change_nothing(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let late = Arc::new(Notify::new());
    let mut held = Some(Arc::clone(&late));
    let fronts = Fronts::new(move |request| match request.is_put() {
        true => held.take().map_or(Act::Pass, Act::HoldAnswer),
        false => Act::Pass,
    });
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "duplicate").await;
    let token = program.held("lock 5000 -").await;
    // The answer to the first request arrives while the claim holds by the second one.
    late.notify_one();
    assert_eq!(program.ask("valid").await, "true");
    assert_eq!(program.ask("release").await, "released");
    // The first request itself arrives once more, after the release. What it takes ends with a claim window.
    let put = fronts.requests().into_iter().find(Request::is_put);
    let put = put.expect("a request").text;
    let again = forward(service.replicas[0].port(), &put).await;
    assert!(again.is_some_and(|answer| answer.contains("\"held\"")));
    let begun = Instant::now();
    let next = program.held("lock 5000 -").await;
    assert!(next > token, "{next} after {token}");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(program.ask("release").await, "released");
    assert_nothing_left(&library, "duplicate").await;
}

async fn a_blocked_program_does_not_believe(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "blocked").await;
    program.held("lock 2000 -").await;
    // The timer that reports the loss is blocked, too.
    program.tell("block 4000");
    let guard = library.lock("blocked").await.expect("granted");
    assert_eq!(program.line("valid").await, "false");
    program.lost().await;
    assert!(guard.is_valid());
    assert_eq!(program.ask("valid").await, "false");
}

async fn a_lost_hold_stays_lost(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "evicted").await;
    let token = program.held("lock 4000 -").await;
    let token = fencelock::Token(token);
    let evicted = library
        .evict("evicted", token, fencelock::engine::Evict::Release)
        .await;
    assert!(evicted.expect("an answer"));
    // The next renewal finds the loss.
    program.lost().await;
    assert_eq!(program.ask("valid").await, "false");
    assert_ne!(program.ask("release").await, "released");
    program.held("lock 4000 0").await;
    assert_eq!(program.ask("release").await, "released");
}

async fn no_replica_answers(language: Language) {
    let service = Service::start();
    let mut program = Program::start(language, &service.urls(), "nobody").await;
    program.held("lock 1000 -").await;
    for replica in &service.replicas {
        replica.process().kill9();
    }
    program.lost().await;
    assert_eq!(program.ask("lock 1000 700").await, "unavailable");
}

/// Waits until this number of requests of a kind have arrived.
async fn await_requests(fronts: &Fronts, count: usize, kind: fn(&Request) -> bool) -> Vec<Request> {
    let begun = Instant::now();
    loop {
        let requests = fronts.requests().into_iter().filter(kind);
        let requests: Vec<Request> = requests.collect();
        if requests.len() >= count {
            return requests;
        }
        assert!(begun.elapsed() < PATIENCE, "only {requests:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
