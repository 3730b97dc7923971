//! What the servers say of themselves.

use std::time::Duration;

use fencelock_core::{Durability, LeaseKind, Limit, Order, Promises, Wake};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::Error;

use crate::config::Config;
use crate::connection::{close, connect_once};

/// A ttl beyond this is a mistake.
const MAX_TTL: Duration = Duration::from_secs(365 * 86_400);

/// The default ttl of a lock.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// No shorter session is wanted. The driver gives a connection two fifths of its session to come up, which on a busy
/// machine must not be too little.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// The shortest and the longest session that the servers grant.
pub(crate) async fn limits(config: &Config) -> Result<(Duration, Duration), Error> {
    let shortest = granted(config, SHORTEST_SESSION).await?;
    let longest = granted(config, Duration::from_millis(i32::MAX as u64)).await?;
    Ok((shortest, longest))
}

/// What the servers make of a session's timeout.
async fn granted(config: &Config, asked: Duration) -> Result<Duration, Error> {
    let (served, _) = connect_once(config, asked, None, None).await?;
    let granted = served.connection.session.timeout;
    close(served).await;
    Ok(granted)
}

pub(crate) fn promises((shortest, longest): (Duration, Duration)) -> Promises {
    let sure = longest * 2 / 3;
    let mut limits = Vec::new();
    if sure < DEFAULT_TTL {
        limits.push(Limit {
            what: format!(
                "a hold is lost {sure:?} after its last renewal however long its ttl, because the servers grant no session above {longest:?}"
            ),
            change: format!("raise maxSessionTimeout above {:?}, or use shorter ttls", DEFAULT_TTL * 3 / 2),
        });
    }
    Promises {
        engine: "zookeeper",
        order: Order::Fifo,
        shared: true,
        permits: true,
        lock_delay: true,
        ranges: true,
        portable: false,
        lease: LeaseKind::Session,
        wake: Wake::Push,
        durability: Durability::Durable,
        clock: "the servers' monotonic clocks and this machine's run at about the same rate, to within a third of the session timeout; jumps of the wall clock do not matter",
        // In whole milliseconds, which is what people write.
        min_ttl: Duration::from_millis((shortest.as_millis() as u64 * 2).div_ceil(3)),
        max_ttl: MAX_TTL,
        limits,
    }
}

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing: it does not answer.
    Nothing,
    /// It is not allowed to tell, or serves nobody at present.
    Other(String),
    /// Its version, and how it serves.
    Srvr { version: String, mode: String },
}

pub(crate) async fn ask(server: &str, patience: Duration) -> Said {
    let asking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(b"srvr").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    match tokio::time::timeout(patience, asking).await {
        Ok(Ok(text)) => read(&text),
        Ok(Err(_)) | Err(_) => Said::Nothing,
    }
}

pub(crate) fn read(text: &str) -> Said {
    let field = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.map(|value| value.trim().to_owned())
    };
    match (field("Zookeeper version:"), field("Mode:")) {
        (Some(version), Some(mode)) => Said::Srvr { version, mode },
        _ => Said::Other(text.trim().to_owned()),
    }
}
