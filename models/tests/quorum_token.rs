//! The protocol behind tokens from a majority: searched exhaustively at a size that fits into a test run, and four
//! variants of it that the same model finds wrong. Larger sizes: `cargo run --release -p fencelock-models --example
//! quorum_token`.
#![allow(clippy::unwrap_used)]

use fencelock_models::quorum_token::{QuorumToken, Variant};
use stateright::{Checker, Model};

type Model3 = QuorumToken<3, 3>;

#[test]
fn three_nodes_keep_tokens_in_order() {
    let checker = Model3::right(1, 1).checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.is_done());
}

#[test]
fn requests_that_arrive_twice_change_nothing() {
    let checker = QuorumToken::<3, 2>::right(1, 2)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn five_nodes_keep_tokens_in_order() {
    let checker = QuorumToken::<5, 2>::right(1, 1)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn nodes_that_stay_away_do_no_harm() {
    let model = Model3 {
        rejoin: false,
        ..Model3::right(1, 1)
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// What is known to be wrong is found wrong, by the same model.
#[test]
fn the_wrong_ones_are_found() {
    for variant in [
        Variant::NoWriteBack,
        Variant::MarkWithoutComparison,
        Variant::SilentRejoin,
        Variant::RejoinAfterReading,
    ] {
        let model = Model3 {
            variant,
            ..Model3::right(1, 1)
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        let bad = ["no token twice", "tokens follow time"];
        let found = bad.iter().find_map(|property| checker.discovery(property));
        let path = found.unwrap_or_else(|| panic!("{variant:?} was not found wrong"));
        println!("{variant:?}: {} steps", path.into_actions().len());
    }
}
