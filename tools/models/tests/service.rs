//! The protocol of the lock service, searched exhaustively, and each built-in fault, which the search must find.
//!
//! `FENCELOCK_MODELS=whole` searches larger sizes, for some minutes.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use fencelock_models::bound::{self, Bound};
use fencelock_models::http::{self, Http};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Two idle clients.
const TWO: Http = Http {
    clients: 2,
    ticks: 3,
    ttl: 2,
    window: 1,
    requests: [2, 1, 1],
    leaves: 1,
    in_flight: 2,
    repeats: 0,
    crowded: false,
    detached: false,
    mutant: None,
};

/// One client holds and two are queued.
const CROWDED: Http = Http {
    clients: 3,
    requests: [1, 2, 1],
    crowded: true,
    ..TWO
};

/// The same, for a shorter time.
const SHORT: Http = Http {
    ticks: 2,
    requests: [1, 1, 1],
    ..CROWDED
};

/// One client whose requests arrive twice. Another process continues with its hold.
const ONE: Http = Http {
    clients: 1,
    ticks: 4,
    requests: [3, 0, 0],
    leaves: 2,
    in_flight: 3,
    repeats: 1,
    detached: true,
    ..TWO
};

/// Searches that take minutes.
const WHOLE: [Http; 5] = [
    CROWDED,
    Http {
        ticks: 4,
        requests: [3, 1, 1],
        ..TWO
    },
    Http { repeats: 1, ..TWO },
    Http {
        ticks: 4,
        ttl: 3,
        requests: [3, 1, 1],
        ..TWO
    },
    Http {
        ticks: 4,
        requests: [3, 1, 1],
        detached: true,
        ..TWO
    },
];

/// A replica with two clients. The session lasts as long as a lease.
const BOUND: Bound = Bound {
    ticks: 3,
    ttl: 2,
    window: 2,
    session: 2,
    requests: 2,
    in_flight: 2,
    keeps_alive: false,
    mutant: None,
};

fn whole() -> bool {
    std::env::var_os("FENCELOCK_MODELS").is_some_and(|models| models == "whole")
}

/// Searches all states: no property is broken, and what must happen happens.
fn holds<M>(model: M, rare: &[&str]) -> usize
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync,
    M::Action: Clone + PartialEq + Debug + Send + Sync,
{
    let (what, begin) = (format!("{model:?}"), Instant::now());
    let checker = model.clone().checker().threads(2).spawn_bfs().join();
    let count = checker.unique_state_count();
    println!("{what}: {count} states in {:?}", begin.elapsed());
    for property in model.properties() {
        let path = checker.discovery(property.name);
        match property.expectation {
            Expectation::Sometimes => assert!(
                path.is_some() || rare.contains(&property.name),
                "{what}: never: {}",
                property.name
            ),
            _ => {
                if let Some(path) = path {
                    let (steps, last) = (path.clone().into_actions(), path.last_state());
                    panic!("{what}: not {}: {steps:#?}: {last:#?}", property.name);
                }
            }
        }
    }
    count
}

/// Searches until something is broken.
fn breaks<M>(model: M)
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync,
    M::Action: Clone + PartialEq + Debug + Send + Sync,
{
    let (what, begin) = (format!("{model:?}"), Instant::now());
    let once: Vec<_> = model
        .properties()
        .into_iter()
        .filter(|property| matches!(property.expectation, Expectation::Sometimes))
        .map(|property| property.name)
        .collect();
    let search = model.checker().threads(2);
    let search = search.finish_when(HasDiscoveries::AnyFailures);
    let checker = search.spawn_bfs().join();
    let mut broken: Vec<_> = checker.discoveries().into_keys().collect();
    broken.retain(|name| !once.contains(name));
    let count = checker.unique_state_count();
    println!(
        "{what}: not {broken:?} after {count} states in {:?}",
        begin.elapsed()
    );
    assert!(!broken.is_empty(), "{what}: not found");
}

#[test]
fn no_schedule_breaks_claims_through_replicas() {
    // A single claim gets no push.
    let alone = ["a pushed grant is believed"];
    let again = ["a released claim is granted again"];
    let mut states = holds(ONE, &alone) + holds(TWO, &[]) + holds(SHORT, &again);
    if whole() {
        states += WHOLE.map(|model| holds(model, &[])).iter().sum::<usize>();
    }
    println!("{states} states in all");
    assert!(states > 300_000, "only {states} states");
}

#[test]
fn no_schedule_breaks_claims_that_are_bound_to_a_replica() {
    let mut states = holds(BOUND, &[]);
    if whole() {
        let keeps_alive = true;
        states += holds(
            Bound {
                keeps_alive,
                ..BOUND
            },
            &[],
        );
    }
    assert!(states > 300_000, "only {states} states");
}

#[test]
fn every_mutant_of_the_replicas_is_found() {
    use http::Mutant;
    for mutant in Mutant::ALL {
        // The smallest search that finds the fault.
        let model = match mutant {
            Mutant::RenewsByIdAlone => Http {
                detached: false,
                ..ONE
            },
            Mutant::GivesBackWithoutToken | Mutant::GatewayConfirms => CROWDED,
            Mutant::PlaceShortens => Http {
                ttl: 3,
                ticks: 4,
                requests: [3, 1, 1],
                ..TWO
            },
            Mutant::ReusesTheId => Http {
                requests: [3, 1, 1],
                ..TWO
            },
            _ => TWO,
        };
        let mutant = Some(mutant);
        breaks(Http { mutant, ..model });
    }
    // An old token is believed on a later grant of the same claim.
    let mutant = Some(Mutant::RenewsByIdAlone);
    breaks(Http {
        mutant,
        detached: true,
        ticks: 4,
        requests: [3, 1, 1],
        ..TWO
    });
}

#[test]
fn every_mutant_of_a_bound_replica_is_found() {
    for mutant in bound::Mutant::ALL {
        let mutant = Some(mutant);
        breaks(Bound { mutant, ..BOUND });
    }
}
