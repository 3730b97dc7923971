//! The claim protocol, searched exhaustively, and each built-in fault, which the search must find.

use std::time::Instant;

use fencelock_models::claim::{Claims, Mutant};
use stateright::{Checker, HasDiscoveries, Model};

/// Two idle clients.
const TWO: Claims = Claims {
    clients: 2,
    ticks: 4,
    lease: 2,
    window: 1,
    delay: 0,
    requests: 2,
    in_flight: 2,
    crowded: false,
    mutant: None,
};

/// With a lock-delay.
const DELAYED: Claims = Claims { delay: 1, ..TWO };

/// One client holds and two are queued.
const CROWDED: Claims = Claims {
    clients: 3,
    ticks: 3,
    requests: 1,
    crowded: true,
    ..TWO
};

/// The properties that must hold once, not always.
const ONCE: [&str; 2] = ["every client has held", "a pushed grant is believed"];

#[test]
fn no_schedule_breaks_the_claim_protocol() {
    let mut states = 0;
    for claims in [TWO, DELAYED, CROWDED] {
        let (what, begin) = (format!("{claims:?}"), Instant::now());
        let checker = claims.checker().threads(2).spawn_bfs().join();
        let count = checker.unique_state_count();
        println!("{what}: {count} states in {:?}", begin.elapsed());
        for (name, path) in checker.discoveries() {
            let steps = path.clone().into_actions();
            let last = path.last_state();
            assert!(
                ONCE.contains(&name),
                "{name} is broken by {steps:#?}: {last:#?}"
            );
        }
        let held = checker.discovery("every client has held");
        assert!(held.is_some(), "{what}: too little happens");
        states += count;
    }
    println!("{states} states in all");
    assert!(states > 2_000_000, "only {states} states");
}

#[test]
fn every_mutant_is_found() {
    for mutant in Mutant::ALL {
        let found = [
            TWO,
            DELAYED,
            Claims {
                requests: 2,
                ..CROWDED
            },
        ]
        .into_iter()
        .any(|claims| {
            // The smallest search that finds the fault.
            let fits = match mutant {
                Mutant::IgnoresTheDelay => claims.delay > 0,
                Mutant::CountsFromTheAnswer
                | Mutant::RevivesLostHolds
                | Mutant::DrawsTokensBeforeWinning
                | Mutant::NeverLeavesTheQueue
                | Mutant::IgnoresTheQueue => !claims.crowded && claims.delay == 0,
                _ => claims.crowded,
            };
            if !fits {
                return false;
            }
            let mutant = Some(mutant);
            let begin = Instant::now();
            let checker = Claims { mutant, ..claims }
                .checker()
                .threads(2)
                .finish_when(HasDiscoveries::AnyFailures)
                .spawn_bfs()
                .join();
            let found = checker.discoveries();
            let broken: Vec<_> = found.keys().filter(|name| !ONCE.contains(name)).collect();
            let count = checker.unique_state_count();
            println!(
                "{mutant:?}: {broken:?} after {count} states in {:?}",
                begin.elapsed()
            );
            !broken.is_empty()
        });
        assert!(found, "{mutant:?} is not found");
    }
}
