//! All replicas must serve the same store: a lock that is taken in two stores protects nothing.

use std::time::Duration;

use fencelock::Client;
use fencelock_testbed::Redis;

use crate::for_each_client;
use crate::front::{Act, Fronts, Request};
use crate::program::{Language, Program};
use crate::service::{Replica, Service, assert_nothing_left, patient, urls};

for_each_client!(
    replicas_of_two_stores_are_refused,
    one_store_by_two_names_is_accepted_if_the_program_says_so,
    a_replica_that_comes_back_with_another_store_is_not_used,
    a_call_without_a_timeout_ends_when_all_serve_another_store,
    one_repaired_replica_is_enough,
    another_store_renews_and_ends_no_hold,
    a_replica_that_did_not_answer_is_asked_before_it_is_used,
    a_replica_is_asked_for_its_store_once,
    behind_a_balancer_each_replica_is_asked,
);

async fn library(redis: &Redis) -> Client {
    fencelock::connect(patient(redis)).await.expect("connects")
}

async fn replicas_of_two_stores_are_refused(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let right = service.redis.url();
    service.replicas[1].restart_on(elsewhere.url());
    let ports = [service.replicas[0].port(), service.replicas[1].port()];
    for ports in [ports, [ports[1], ports[0]]] {
        let mut program = Program::start(language, &urls(ports), "two-stores").await;
        let said = program.ask("lock 5000 -").await;
        let named = [
            format!("http://127.0.0.1:{}", ports[0]),
            format!("http://127.0.0.1:{}", ports[1]),
            right.clone(),
            elsewhere.url(),
            "confirmed".to_owned(),
        ];
        assert!(said.starts_with("config "), "{said}");
        assert!(named.iter().all(|word| said.contains(word)), "{said}");
        for redis in [&service.redis, &elsewhere] {
            assert_nothing_left(&library(redis).await, "two-stores").await;
        }
        // After the repair the program need not be restarted.
        service.replicas[1].restart_on(right.clone());
        program.held("lock 5000 -").await;
        assert_eq!(program.ask("release").await, "released");
        service.replicas[1].restart_on(elsewhere.url());
    }
}

async fn one_store_by_two_names_is_accepted_if_the_program_says_so(language: Language) {
    let mut service = Service::start();
    let by_name = service.redis.url().replace("127.0.0.1", "localhost");
    service.replicas[1].restart_on(by_name);
    let mut program = Program::start(language, &service.urls(), "two-names").await;
    let said = program.ask("lock 5000 -").await;
    assert!(said.starts_with("config "), "{said}");
    let mut program =
        Program::start_with(language, &service.urls(), "two-names", "confirmed").await;
    let mut token = 0;
    for replica in 0..2 {
        service.replicas[replica].process().kill9();
        let next = program.held("lock 5000 -").await;
        assert!(next > token, "{next} after {token}");
        token = next;
        assert_eq!(program.ask("release").await, "released");
        service.replicas[replica].restart();
    }
}

async fn a_replica_that_comes_back_with_another_store_is_not_used(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "exchanged").await;
    let mut token = program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
    // Whichever replica the program used at first, it meets a changed one.
    for replica in [0, 1, 0, 1] {
        service.replicas[replica].restart_on(elsewhere.url());
        let next = program.held("lock 5000 -").await;
        assert!(next > token, "{next} after {token}");
        token = next;
        let seen = library.look("exchanged").await.expect("a view").token();
        assert_eq!(seen.map(fencelock::Token::get), Some(token));
        assert_eq!(program.ask("release").await, "released");
        service.replicas[replica].restart_on(service.redis.url());
    }
    for replica in &mut service.replicas {
        replica.restart_on(elsewhere.url());
    }
    assert_eq!(program.ask("lock 5000 3000").await, "unavailable");
    service.replicas[0].restart_on(service.redis.url());
    assert!(program.held("lock 5000 -").await > token);
}

async fn a_call_without_a_timeout_ends_when_all_serve_another_store(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let only = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let mut program = Program::start(language, &only, "only-one").await;
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
    service.replicas[0].restart_on(elsewhere.url());
    let said = program.ask("lock 5000 -").await;
    assert!(said.starts_with("config "), "{said}");
    assert!(said.contains(&elsewhere.url()), "{said}");
    // After the repair the program need not be restarted.
    service.replicas[0].restart_on(service.redis.url());
    program.held("lock 5000 -").await;
}

async fn one_repaired_replica_is_enough(language: Language) {
    let service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let others = [0, 1].map(|_| Replica::start(elsewhere.url()));
    let fronts = Fronts::new(|_| Act::Pass);
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "mended").await;
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
    let first = ports[0].number();
    let [wrong, other_wrong] = others.each_ref().map(Replica::port);
    let to_wrong = move |port| match port == first {
        true => Act::PassTo(wrong),
        false => Act::PassTo(other_wrong),
    };
    fronts.set(move |request| to_wrong(request.port));
    let said = program.ask("lock 5000 -").await;
    assert!(said.starts_with("config "), "{said}");
    // One replica is repaired, and the other one is asked first.
    let mut asked_first = None;
    fronts.set(
        move |request| match *asked_first.get_or_insert(request.port) == request.port {
            true => to_wrong(request.port),
            false => Act::Pass,
        },
    );
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
}

async fn another_store_renews_and_ends_no_hold(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let library = service.library().await;
    let mut program = Program::start(language, &service.urls(), "kept").await;
    let token = program.held("lock 3000 -").await;
    for replica in 0..2 {
        service.replicas[replica].restart_on(elsewhere.url());
        let early = library.lock("kept").timeout(Duration::from_millis(3500));
        let early = early.await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(program.ask("valid").await, "true");
        service.replicas[replica].restart_on(service.redis.url());
    }
    for replica in &mut service.replicas {
        replica.restart_on(elsewhere.url());
    }
    program.lost().await;
    assert!(library.lock("kept").await.expect("granted").token().get() > token);
}

async fn a_replica_that_did_not_answer_is_asked_before_it_is_used(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let fronts = Fronts::new(|_| Act::Pass);
    let port = fronts.before(service.replicas[1].port()).await;
    service.replicas[1].process().kill9();
    let both = urls([service.replicas[0].port(), port.number()]);
    let mut program = Program::start(language, &both, "silent").await;
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
    service.replicas[1].restart_on(elsewhere.url());
    service.replicas[0].process().kill9();
    assert_eq!(program.ask("lock 5000 1000").await, "unavailable");
    let requests = fronts.requests();
    assert!(requests.len() > 1, "{requests:?}");
    assert!(requests.iter().all(Request::asks_for_store), "{requests:?}");
    // The replica with the right store is used.
    service.replicas[1].restart_on(service.redis.url());
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
}

async fn a_replica_is_asked_for_its_store_once(language: Language) {
    let mut service = Service::start();
    let fronts = Fronts::new(|_| Act::Pass);
    let ports = fronts.before_each(&service.replicas).await;
    let addresses = urls(ports.iter().map(fencelock_testbed::Port::number));
    let mut program = Program::start(language, &addresses, "asked").await;
    for restarts in 0..3 {
        for _ in 0..4 {
            program.held("lock 5000 -").await;
            assert_eq!(program.ask("release").await, "released");
        }
        let asked = asked(&fronts);
        assert!(
            (2 + restarts..=2 + 2 * restarts).contains(&asked),
            "{asked}"
        );
        for replica in &mut service.replicas {
            replica.restart();
        }
    }
}

/// One URL, behind which each request reaches another replica than the one before.
async fn behind_a_balancer_each_replica_is_asked(language: Language) {
    let mut service = Service::start();
    let elsewhere = Redis::start().expect("redis-server");
    let library = service.library().await;
    let ports = [service.replicas[0].port(), service.replicas[1].port()];
    let mut count = 0;
    let fronts = Fronts::new(move |_| {
        count += 1;
        Act::PassTo(ports[(count - 1) % 2])
    });
    let port = fronts.before(ports[0]).await;
    let mut program = Program::start(language, &urls([port.number()]), "balanced").await;
    for _ in 0..5 {
        program.held("lock 5000 -").await;
        assert_eq!(program.ask("release").await, "released");
    }
    assert!((2..=4).contains(&asked(&fronts)), "{}", asked(&fronts));
    // One replica comes back with another store. Its answers do not count, whatever the other replica answers.
    service.replicas[1].restart_on(elsewhere.url());
    for _ in 0..5 {
        let token = program.held("lock 5000 -").await;
        let seen = library.look("balanced").await.expect("a view").token();
        assert_eq!(seen.map(fencelock::Token::get), Some(token));
        assert_eq!(program.ask("release").await, "released");
    }
}

/// How many times replicas were asked for their store.
fn asked(fronts: &Fronts) -> usize {
    let requests = fronts.requests().into_iter();
    requests.filter(Request::asks_for_store).count()
}
