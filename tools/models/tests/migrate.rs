//! The design of a migration, searched exhaustively, and each wrong way to build it, which the search must find.
//!
//! `FENCELOCK_MODELS=whole` searches larger sizes for some minutes. It also finds those wrong ways that need long
//! walks.

use std::collections::BTreeSet;
use std::time::Instant;

use fencelock_models::migrate::{Migration, Mutant};
use stateright::{Checker, HasDiscoveries, Model};

const ONE_BELIEVES: &str = "one believes";
const TOKENS_INCREASE: &str = "tokens increase";

/// The properties that must hold once, not always.
const ONCE: [&str; 2] = ["two grants are believed", "the walk comes to its end"];

fn whole() -> bool {
    std::env::var_os("FENCELOCK_MODELS").is_some_and(|models| models == "whole")
}

/// Moves away from this phase only.
const fn away(start: u8, walks: u8) -> Migration {
    Migration {
        one_way: true,
        ..Migration::from(start, walks)
    }
}

/// As it is built: near the ends, knowledge is valid for a grant as long as for a hold.
const fn relaxed(walk: Migration) -> Migration {
    Migration {
        relaxed: true,
        ..walk
    }
}

/// Continues into a second change.
const fn second(start: u8, walks: u8) -> Migration {
    Migration {
        second: true,
        ..away(start, walks)
    }
}

/// One store may lose its record.
const fn losses(walk: Migration) -> Migration {
    Migration {
        losses: true,
        ..walk
    }
}

const fn with(mutant: Mutant, walk: Migration) -> Migration {
    Migration {
        mutant: Some(mutant),
        ..walk
    }
}

/// Searches all states, and returns their number.
fn holds(migration: Migration) -> usize {
    let begin = Instant::now();
    let checker = migration.checker().threads(2).spawn_bfs().join();
    let count = checker.unique_state_count();
    println!("{migration:?}: {count} states in {:?}", begin.elapsed());
    for name in [ONE_BELIEVES, TOKENS_INCREASE] {
        if let Some(path) = checker.discovery(name) {
            let last = *path.last_state();
            let steps = path.into_actions();
            panic!("{migration:?}: not {name}: {steps:#?}: {last:#?}");
        }
    }
    for name in ONCE {
        let path = checker.discovery(name);
        assert!(path.is_some(), "{migration:?}: never: {name}");
    }
    count
}

#[test]
fn no_schedule_breaks_a_walk() {
    // Through the hush, and a second change that begins when the first one is over.
    let mut states = holds(away(1, 1)) + holds(relaxed(second(4, 4)));
    if whole() {
        let larger = [
            away(1, 3),
            away(3, 1),
            relaxed(away(0, 3)),
            relaxed(away(4, 3)),
            // A second change, which may meet the first one while that goes back.
            Migration {
                one_way: false,
                ..relaxed(second(4, 2))
            },
            with(Mutant::HushNeedsNoPair, away(1, 1)),
        ];
        states += larger.map(holds).iter().sum::<usize>();
    }
    println!("{states} states in all");
    assert!(states > 100_000, "only {states} states");
}

/// A hush that ends where it came from takes no floor, and the tokens continue. The record may say in any way where the
/// hush came from.
#[test]
fn no_schedule_breaks_a_hush_that_goes_back() {
    let mut states = holds(relaxed(Migration::from(1, 2)));
    if whole() {
        let larger = [
            relaxed(Migration::from(3, 2)),
            losses(Migration::from(2, 0)),
        ];
        states += larger.map(holds).iter().sum::<usize>();
    }
    println!("{states} states in all");
    assert!(states > 100_000, "only {states} states");
}

/// Searches until this property is broken.
fn breaks(name: &'static str, migration: Migration) {
    let begin = Instant::now();
    let search = migration.checker().threads(2);
    let search = search.finish_when(HasDiscoveries::AnyOf(BTreeSet::from([name])));
    let checker = search.spawn_bfs().join();
    let steps = checker
        .discovery(name)
        .map(|path| path.into_actions().len());
    let (count, time) = (checker.unique_state_count(), begin.elapsed());
    println!("{migration:?}: not {name} after {steps:?} steps, {count} states, {time:?}");
    assert!(steps.is_some(), "{migration:?}: not found");
}

#[test]
fn ways_to_build_it_wrong_are_found() {
    for (mutant, broken, walk) in [
        (Mutant::NoHush, TOKENS_INCREASE, away(1, 1)),
        (Mutant::TakesOneOfTwo, ONE_BELIEVES, away(1, 1)),
        (Mutant::IgnoresFloor, TOKENS_INCREASE, away(1, 1)),
        (Mutant::NoFloor, TOKENS_INCREASE, away(1, 1)),
        (Mutant::NoRecordIsOld, TOKENS_INCREASE, losses(away(4, 1))),
        (Mutant::NoFloorBack, TOKENS_INCREASE, away(3, 2)),
        (
            Mutant::NoSecondFloor,
            TOKENS_INCREASE,
            relaxed(second(4, 4)),
        ),
    ] {
        breaks(broken, with(mutant, walk));
    }
}

#[test]
fn ways_that_need_long_walks_are_found() {
    if !whole() {
        return;
    }
    for (mutant, broken, walk) in [
        (Mutant::CountsFromAnswer, TOKENS_INCREASE, away(1, 1)),
        (Mutant::GrantsByOldKnowledge, TOKENS_INCREASE, away(1, 1)),
        (Mutant::FloorBeforeHush, TOKENS_INCREASE, away(4, 2)),
        (Mutant::StepsAtOnce, TOKENS_INCREASE, away(1, 3)),
        (Mutant::HoldsOutliveKnowledge, ONE_BELIEVES, away(1, 3)),
        (Mutant::TwoAdministrators, TOKENS_INCREASE, away(1, 3)),
        (
            Mutant::LastStepAsOthers,
            ONE_BELIEVES,
            Migration {
                hold: 3,
                ..away(1, 3)
            },
        ),
        (
            Mutant::LostRecordKeepsOrigin,
            TOKENS_INCREASE,
            losses(Migration::from(2, 0)),
        ),
        (Mutant::SecondBeforeTheEnd, ONE_BELIEVES, second(1, 4)),
        (
            Mutant::SecondIsHasty,
            TOKENS_INCREASE,
            Migration {
                hold: 4,
                ..relaxed(second(4, 4))
            },
        ),
    ] {
        breaks(broken, with(mutant, walk));
    }
}
