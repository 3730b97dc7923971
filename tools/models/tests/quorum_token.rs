//! The protocol behind tokens from a majority: searched exhaustively at sizes that fit into a test run, and variants
//! of it that the same model finds wrong. Larger sizes: `tools/models/examples/quorum_token.rs`.
#![allow(clippy::unwrap_used)]

use fencelock_models::quorum_token::{QuorumToken, Variant};
use stateright::{Checker, Model};

/// What must never be broken.
const ALWAYS: [&str; 2] = ["no token twice", "tokens follow time"];

/// Searches to the end, and answers with the number of states.
fn holds<const N: usize, const A: usize>(model: QuorumToken<N, A>) -> usize {
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done());
    checker.assert_properties();
    println!(
        "{N} nodes, {A} attempts: {} states",
        checker.unique_state_count()
    );
    checker.unique_state_count()
}

/// Nodes forget and come back, counters jump, hints, and every request may be late, lost, or come when its attempt is over.
#[test]
fn two_attempts_at_three_nodes_keep_tokens_in_order() {
    assert!(holds(QuorumToken::<3, 2>::right(1, 1)) > 1_000_000);
}

#[test]
fn requests_that_arrive_twice_change_nothing() {
    let model = QuorumToken::<3, 2> {
        jumps: false,
        ..QuorumToken::right(0, 2)
    };
    assert!(holds(model) > 100_000);
}

#[test]
fn two_attempts_at_five_nodes_keep_tokens_in_order() {
    let model = QuorumToken::<5, 2> {
        jumps: false,
        ..QuorumToken::right(0, 1)
    };
    assert!(holds(model) > 400_000);
}

/// What is known to be wrong is found wrong, by the same model at the same size as the right one.
#[test]
fn the_wrong_ones_are_found() {
    for variant in [
        Variant::NoWriteBack,
        Variant::MarkWithoutComparison,
        Variant::MarkOfAnother,
        Variant::SilentRejoin,
        Variant::RejoinAfterReading,
    ] {
        let model = QuorumToken::<3, 2> {
            variant,
            ..QuorumToken::right(1, 1)
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        let found = ALWAYS.iter().find_map(|name| checker.discovery(name));
        let path = found.unwrap_or_else(|| panic!("{variant:?} was not found wrong"));
        println!("{variant:?}: {} steps", path.into_actions().len());
    }
}
