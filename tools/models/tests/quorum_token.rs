//! The protocol of tokens from a majority, searched exhaustively at sizes that fit into a test run, and variants in which
//! the same model finds a fault. Larger sizes: `tools/models/examples/quorum_token.rs`.
#![allow(clippy::unwrap_used)]

use fencelock_models::quorum_token::{QuorumToken, Variant};
use stateright::{Checker, Model};

/// The properties that must always hold.
const ALWAYS: [&str; 2] = ["no token twice", "tokens follow time"];

/// Searches exhaustively, and returns the number of states.
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

/// With losses of memory, jumps of counters and hints. Every request may be late, lost, or arrive after its attempt has
/// ended.
#[test]
fn two_attempts_at_three_nodes_keep_tokens_in_order() {
    assert!(holds(QuorumToken::<3, 2>::right(1, 0)) > 1_000_000);
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
        ..QuorumToken::right(0, 0)
    };
    assert!(holds(model) > 400_000);
}

/// The same model finds each fault at the same size.
#[test]
fn every_faulty_variant_is_found() {
    for variant in [
        Variant::NoWriteBack,
        Variant::MarkWithoutComparison,
        Variant::MarkOfAnother,
        Variant::SilentRejoin,
        Variant::RejoinAfterReading,
    ] {
        let model = QuorumToken::<3, 2> {
            variant,
            ..QuorumToken::right(1, 0)
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        let found = ALWAYS.iter().find_map(|name| checker.discovery(name));
        let path = found.unwrap_or_else(|| panic!("{variant:?} was not found"));
        println!("{variant:?}: {} steps", path.into_actions().len());
    }
}
