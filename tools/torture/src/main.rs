//! The tests' own way to `fencelock torture`, and that of docs/torture-results.md's table.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    fencelock_torture::program().await
}
