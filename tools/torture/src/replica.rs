//! A replica of the lock service, as a process: the same program that is a worker otherwise.

use std::time::Duration;

use fencelock_server::{Config, Server, Service};
use serde::{Deserialize, Serialize};
use tokio::io::{BufReader, Lines, Stdin};

/// How long it tries to open its store, which may be down or cut off while the replica starts.
const OPENING: Duration = Duration::from_secs(60);

/// The job of a replica, in place of a worker's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replica {
    /// The URL of its store.
    pub(crate) serve: String,
    /// Where it listens on 127.0.0.1.
    pub(crate) port: u16,
}

/// Serves until the input ends. Prints a line when it begins.
pub(crate) async fn serve(
    replica: &Replica,
    lines: &mut Lines<BufReader<Stdin>>,
) -> std::io::Result<()> {
    let begun = tokio::time::Instant::now();
    let engine = loop {
        match fencelock::open_engine(&replica.serve).await {
            Ok(engine) => break engine,
            Err(error) if error.is_away() && begun.elapsed() < OPENING => {}
            Err(error) => return Err(std::io::Error::other(error)),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let service = Service::new(engine, Config::trusting()).map_err(std::io::Error::other)?;
    let server = Server::start(([127, 0, 0, 1], replica.port).into(), service).await?;
    println!("{}", server.address());
    while lines.next_line().await?.is_some() {}
    Ok(())
}
