//! The first program of the README.

use std::time::Duration;

use fencelock::{Error, Token};

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?; // or sqlite:PATH, redis://HOST
    let report = client
        .lock("nightly-report")
        .ttl(Duration::from_secs(30))
        .with(|held| write_report(held.token())) // the resource refuses an older token
        .await;
    match report {
        Ok(report) => println!("{report}"),
        // The body was dropped at its next await.
        Err(Error::Lost { reason, .. }) => {
            println!("stopped halfway, the lock was lost: {reason}")
        }
        Err(error) => return Err(error),
    }
    client.close().await
}

async fn write_report(token: Token) -> String {
    format!("written with token {token}")
}
