//! `fencelock torture` for the tests, and for the table of docs/torture-results.md.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    fencelock_torture::program().await
}
