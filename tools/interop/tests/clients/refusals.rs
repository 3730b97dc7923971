//! Answers of the service when it does not grant, and stores whose claims belong to a replica.

use std::time::{Duration, Instant};

use crate::for_each_client;
use crate::front::{Act, Fronts, Request, answer, problem};
use crate::program::{Language, Program};
use crate::service::{Service, assert_nothing_left, urls};

for_each_client!(
    an_unavailable_store_is_asked_again,
    a_quota_is_waited_for,
    a_store_that_grants_nothing_is_not_busy,
    what_cannot_be_done_is_refused,
    redirects_are_not_followed,
    a_bound_claim_that_has_ended_is_replaced_by_a_new_one,
    a_bound_claim_goes_where_it_is_sent,
    a_bound_waiter_leaves_a_replica_that_is_gone,
);

const JSON: &str = "application/json";

async fn an_unavailable_store_is_asked_again(language: Language) {
    let service = Service::start();
    let library = service.library().await;
    let mut refused = 0;
    let fronts = Fronts::new(move |request| match request.is_put() && refused < 3 {
        true => {
            refused += 1;
            Act::Answer(problem(503, "unavailable", "", "Retry-After: 5\r\n"))
        }
        false => Act::Pass,
    });
    let port = fronts.before(service.replicas[0].port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "unavailable").await;
    let begun = Instant::now();
    program.held("lock 5000 30000").await;
    // Not even one pause as long as the answers say.
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(program.ask("release").await, "released");
    fronts.set(|_| Act::Answer(problem(503, "unavailable", "", "Retry-After: 1\r\n")));
    assert_eq!(program.ask("lock 5000 300").await, "unavailable");
    fronts.set(|_| Act::Pass);
    assert_eq!(program.ask("close").await, "closed");
    assert_nothing_left(&library, "unavailable").await;
}

async fn a_quota_is_waited_for(language: Language) {
    let service = Service::start();
    let mut refused = false;
    let fronts = Fronts::new(move |request| match request.is_put() && !refused {
        true => {
            refused = true;
            Act::Answer(problem(429, "quota", "", "Retry-After: 1\r\n"))
        }
        false => Act::Pass,
    });
    let port = fronts.before(service.replicas[0].port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "quota").await;
    program.held("lock 5000 -").await;
    let puts: Vec<Request> = puts(&fronts);
    let apart = puts[1].at - puts[0].at;
    assert!(apart >= Duration::from_secs(1), "{apart:?}");
    assert_eq!(puts[0].claim(), puts[1].claim());
    assert_eq!(program.ask("release").await, "released");
    // Nothing was placed, so there is nothing to release.
    let before = fronts.requests().len();
    fronts.set(|_| Act::Answer(problem(429, "quota", "", "Retry-After: 1\r\n")));
    assert_eq!(program.ask("lock 5000 300").await, "unavailable");
    assert_eq!(program.ask("close").await, "closed");
    let after = fronts.requests().split_off(before);
    assert!(after.iter().all(Request::is_put), "{after:?}");
}

async fn a_store_that_grants_nothing_is_not_busy(language: Language) {
    let service = Service::start();
    let _held = service.library().await.lock("stalled").await;
    let fronts = Fronts::new(|_| Act::PassStalled);
    let port = fronts.before(service.replicas[0].port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "stalled").await;
    // More than one poll.
    assert_eq!(program.ask("lock 5000 1300").await, "unavailable");
    // The last answer decides.
    let mut is_first = true;
    fronts.set(move |request| match request.is_put() && is_first {
        true => {
            is_first = false;
            Act::PassStalled
        }
        false => Act::Pass,
    });
    assert_eq!(program.ask("lock 5000 4000").await, "timeout");
}

async fn what_cannot_be_done_is_refused(language: Language) {
    let service = Service::start();
    let mut program = Program::start(language, &service.urls(), "refused").await;
    assert_eq!(program.ask("lock 1 -").await, "refused 422 unsupported");
    for no_number in ["lock nan -", "lock 5000 nan"] {
        assert_eq!(program.ask(no_number).await, "wrong", "{no_number}");
    }
    let mut program = Program::start(language, &service.urls(), "").await;
    assert_eq!(program.ask("lock 5000 -").await, "refused 400 invalid");
}

async fn redirects_are_not_followed(language: Language) {
    let service = Service::start();
    let elsewhere = Fronts::new(|_| Act::Pass);
    let there = elsewhere.before(service.replicas[1].port()).await;
    let to = format!("Location: http://127.0.0.1:{}/v1/store\r\n", there.number());
    let fronts = Fronts::new(move |_| Act::Answer(answer(307, "text/plain", &to, "")));
    let port = fronts.before(service.replicas[0].port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "redirected").await;
    assert_eq!(program.ask("lock 5000 500").await, "unavailable");
    assert!(elsewhere.requests().is_empty());
    assert!(!fronts.requests().is_empty());
}

async fn a_bound_claim_that_has_ended_is_replaced_by_a_new_one(language: Language) {
    let service = Service::start();
    let mut ended = false;
    let fronts = Fronts::new(move |request| match request.is_put() && !ended {
        true => {
            ended = true;
            Act::Answer(problem(410, "ended", "", ""))
        }
        false => bound(request, 'a'),
    });
    let port = fronts.before(service.replicas[0].port()).await;
    let mut program = Program::start(language, &urls([port.number()]), "ended").await;
    program.held("lock 3000 -").await;
    // Until it has renewed the lock.
    program.assert_silent(Duration::from_millis(2500)).await;
    assert_eq!(program.ask("release").await, "released");
    let puts = puts(&fronts);
    assert_eq!(puts.len(), 2);
    assert_ne!(puts[0].claim(), puts[1].claim());
    // Every request about the claim names the replica.
    let about = fronts.requests().into_iter();
    let about: Vec<Request> = about
        .filter(|request| !request.claim().is_empty())
        .collect();
    assert!(about.iter().any(Request::is_renewal) && about.iter().any(Request::is_release));
    for request in about {
        assert!(names(&request, 'a'), "{request:?}");
    }
}

async fn a_bound_claim_goes_where_it_is_sent(language: Language) {
    let service = Service::start();
    let fronts = Fronts::new(|_| Act::Pass);
    let ports = fronts.before_each(&service.replicas).await;
    let (first, second) = (ports[0].number(), ports[1].number());
    fronts.set(
        move |request| match request.is_put() && request.port == first {
            true => {
                let more = format!(
                    r#","replica":"{}","advertise":"http://127.0.0.1:{second}""#,
                    "b".repeat(16)
                );
                Act::Answer(problem(421, "other-replica", &more, ""))
            }
            false if request.port == second => bound(request, 'b'),
            false => bound(request, 'a'),
        },
    );
    let mut program = Program::start(language, &urls([first]), "sent").await;
    program.held("lock 5000 -").await;
    assert_eq!(program.ask("release").await, "released");
    let puts = puts(&fronts);
    assert_eq!(puts.len(), 2);
    assert_eq!((puts[0].port, puts[1].port), (first, second));
    assert!(names(&puts[0], 'a') && names(&puts[1], 'b'), "{puts:?}");
    assert_ne!(puts[0].claim(), puts[1].claim());
    let release = fronts.requests().into_iter().find(Request::is_release);
    assert!(release.is_some_and(|release| release.port == second && names(&release, 'b')));
}

async fn a_bound_waiter_leaves_a_replica_that_is_gone(language: Language) {
    let service = Service::start();
    let fronts = Fronts::new(|_| Act::Pass);
    let ports = fronts.before_each(&service.replicas).await;
    let numbers = [ports[0].number(), ports[1].number()];
    // The replica that is asked first for its id answers, and has ended when it should get the claim.
    let mut gone = None;
    fronts.set(move |request| {
        let id = match request.port == numbers[0] {
            true => 'a',
            false => 'b',
        };
        if request.is_put() {
            gone.get_or_insert(request.port);
        }
        match gone == Some(request.port) {
            true => Act::Answer(answer(502, "text/plain", "", "gone")),
            false => bound(request, id),
        }
    });
    let mut program = Program::start(language, &urls(numbers), "gone").await;
    program.held("lock 5000 -").await;
    let puts = puts(&fronts);
    let (first, last) = (&puts[0], &puts[puts.len() - 1]);
    assert_ne!(first.port, last.port);
    assert_ne!(first.claim(), last.claim());
    for put in &puts {
        let id = match put.port == numbers[0] {
            true => 'a',
            false => 'b',
        };
        assert!(names(put, id), "{put:?}");
    }
    assert_eq!(program.ask("release").await, "released");
}

/// Passes the request. The answer says that the store is bound to replicas, and that the replica's id is `id` sixteen
/// times.
fn bound(request: &Request, id: char) -> Act {
    let id = id.to_string().repeat(16);
    if !request.asks_for_store() {
        return Act::PassAs(id);
    }
    let body = format!(
        r#"{{"binding":"replica","claim_window_ms":2000,"poll_ms":1000,"replica":"{id}","advertise":null}}"#
    );
    Act::Answer(answer(200, JSON, "", &body))
}

/// Whether a request names the replica whose id is `id` sixteen times.
fn names(request: &Request, id: char) -> bool {
    let header = format!("fencelock-replica: {}\r\n", id.to_string().repeat(16));
    request.text.to_lowercase().contains(&header)
}

fn puts(fronts: &Fronts) -> Vec<Request> {
    let puts = fronts.requests().into_iter();
    puts.filter(Request::is_put).collect()
}
