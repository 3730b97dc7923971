//! Searches sizes that are too large for a test run:
//! `cargo run --release -p fencelock-models --example quorum_token NODESxATTEMPTS LOSSES REPEATS JUMPS [VARIANT]`,
//! for instance `3x3 1 0 yes`. REPEATS: how many requests may arrive once more. JUMPS: whether counters may jump.
//! VARIANT: a fault that is built into the protocol.

use std::process::ExitCode;
use std::time::Instant;

use fencelock_models::quorum_token::{QuorumToken, Variant};
use stateright::{Checker, Model};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [size, losses, repeats, jumps, rest @ ..] = &words[..] else {
        eprintln!("quorum_token NODESxATTEMPTS LOSSES REPEATS yes|no [VARIANT]");
        return ExitCode::from(64);
    };
    let (Ok(losses), Ok(repeats)) = (losses.parse(), repeats.parse()) else {
        eprintln!("LOSSES and REPEATS are numbers");
        return ExitCode::from(64);
    };
    let variant = match rest.first() {
        None => Variant::Right,
        Some(&"no-write-back") => Variant::NoWriteBack,
        Some(&"mark-without-comparison") => Variant::MarkWithoutComparison,
        Some(&"mark-of-another") => Variant::MarkOfAnother,
        Some(&"silent-rejoin") => Variant::SilentRejoin,
        Some(&"rejoin-after-reading") => Variant::RejoinAfterReading,
        Some(other) => {
            eprintln!("{other} is no variant");
            return ExitCode::from(64);
        }
    };
    let jumps = *jumps == "yes";
    match *size {
        "3x2" => search::<3, 2>(losses, repeats, jumps, variant),
        "3x3" => search::<3, 3>(losses, repeats, jumps, variant),
        "3x4" => search::<3, 4>(losses, repeats, jumps, variant),
        "5x2" => search::<5, 2>(losses, repeats, jumps, variant),
        "5x3" => search::<5, 3>(losses, repeats, jumps, variant),
        _ => {
            eprintln!("sizes are 3x2, 3x3, 3x4, 5x2 and 5x3");
            ExitCode::from(64)
        }
    }
}

fn search<const N: usize, const A: usize>(
    losses: u8,
    repeats: u8,
    jumps: bool,
    variant: Variant,
) -> ExitCode {
    let begin = Instant::now();
    let model = QuorumToken::<N, A> {
        jumps,
        variant,
        ..QuorumToken::right(losses, repeats)
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    let bad = ["no token twice", "tokens follow time"];
    let found = bad
        .iter()
        .find_map(|bad| Some((bad, checker.discovery(bad)?)));
    let states = checker.unique_state_count();
    println!("{states} states in {:?}", begin.elapsed());
    match found {
        None => ExitCode::SUCCESS,
        Some((bad, path)) => {
            println!("not \"{bad}\": {:?}", path.into_actions());
            ExitCode::FAILURE
        }
    }
}
