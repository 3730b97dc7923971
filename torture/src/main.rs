//! The tests' own way to `fencelock torture`, and that of docs/torture.md's table.

use std::process::ExitCode;

use clap::Parser;
use fencelock_torture::{Args, command};

/// Put a store under faults, and check what its clients believed.
#[derive(Debug, Parser)]
#[command(name = "fencelock-torture")]
struct Command {
    /// The store, if none is started
    #[arg(long, value_name = "URL", default_value = "sqlite:")]
    store: String,

    #[command(flatten)]
    args: Args,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command { store, args } = Command::parse();
    match command(&args, &store, &[]).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fencelock-torture: {error}");
            ExitCode::from(69)
        }
    }
}
