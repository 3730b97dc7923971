//! Tests of the suite itself: engines with one fault each, and the cases that must fail on them. On the same engine
//! without the fault these cases pass.
#![allow(clippy::unwrap_used)]

mod engine;
mod mutant;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Once;

use fencelock_conformance::{Case, Needs, cases, harness};

use crate::engine::Wrong;
use crate::mutant::{MUTANTS, Mutant, promises};

fn case(name: &str) -> &'static Case {
    let mut all = cases::cases().into_iter();
    all.find(|case| case.name == name)
        .unwrap_or_else(|| panic!("there is no case {name}"))
}

/// Runs cases on mutants, each on a thread of its own, since they mostly wait. Returns the failure of each.
fn run(runs: &[(Mutant, &'static str)]) -> Vec<Option<String>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Mutants are expected to fail. Their panics would only hide the panics of the test.
            let thread = std::thread::current();
            if !thread
                .name()
                .is_some_and(|name| name.starts_with("mutant::"))
            {
                usual(panic);
            }
        }));
    });
    let outcomes = std::thread::scope(|scope| {
        let run = |(mutant, name): (Mutant, &'static str)| {
            let subject = Wrong(mutant);
            let promises = promises(mutant);
            harness::run(&subject, &promises, case(name), Path::new("")).err()
        };
        let threads: Vec<_> = runs
            .iter()
            .map(|wanted| scope.spawn(move || run(*wanted)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join())
            .collect::<Vec<_>>()
    });
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap())
        .collect()
}

#[test]
fn every_mutant_is_found_and_the_original_is_not() {
    let names: BTreeSet<&str> = MUTANTS
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let original: Vec<_> = names
        .into_iter()
        .map(|name| (Mutant::Nothing, name))
        .collect();
    for ((_, name), failed) in original.iter().zip(run(&original)) {
        assert_eq!(failed, None, "{name} fails on an engine without a fault");
    }
    let mutants: Vec<_> = MUTANTS
        .iter()
        .flat_map(|(mutant, names)| names.iter().map(|name| (*mutant, *name)))
        .collect();
    let mut missed = Vec::new();
    for (run, failed) in mutants.iter().zip(run(&mutants)) {
        if failed.is_none() {
            missed.push(run);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// What the engine does not promise is refused, and its cases are not run. All others run and pass.
#[test]
fn an_engine_that_promises_little_passes_what_is_left() {
    let little = promises(Mutant::PromisesLittle);
    let (kept, left_out): (Vec<&Case>, Vec<&Case>) = cases::cases()
        .into_iter()
        .filter(|case| case.needs == Needs::Store)
        .partition(|case| (case.promised)(&little));
    let left_out: BTreeSet<&str> = left_out.iter().map(|case| case.name).collect();
    for name in [
        "waiters_are_served_in_order",
        "shared_beside_shared",
        "a_lock_delay_follows_a_loss",
    ] {
        assert!(left_out.contains(name), "{name} is run");
    }
    let kept: Vec<_> = kept
        .iter()
        .map(|case| (Mutant::PromisesLittle, case.name))
        .collect();
    assert!(
        kept.iter()
            .any(|(_, name)| *name == "what_is_not_promised_is_refused")
    );
    for ((_, name), failed) in kept.iter().zip(run(&kept)) {
        assert_eq!(failed, None, "{name}");
    }
}
