//! What the servers say of themselves: the session timeouts that they grant, the promises that follow from these, and the
//! servers' answer to the command `srvr`.

use std::time::Duration;

use fencelock_core::{Durability, Finding, Floor, LeaseKind, Promises, Wake};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::Error;

use crate::config::Config;
use crate::connection::{close, connect_once};

/// The longest ttl. A longer one is a mistake.
const MAX_TTL: Duration = Duration::from_secs(365 * 86_400);

const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The shortest session timeout that is used: the driver allows two fifths of it for connecting, and a busy machine needs that
/// time.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// The shortest and the longest session timeout that the servers grant.
pub(crate) async fn session_limits(config: &Config) -> Result<(Duration, Duration), Error> {
    let shortest = granted(config, SHORTEST_SESSION).await?;
    let longest = granted(config, Duration::from_millis(i32::MAX as u64)).await?;
    Ok((shortest, longest))
}

/// The timeout that the servers grant to a session that asks for `timeout`.
async fn granted(config: &Config, timeout: Duration) -> Result<Duration, Error> {
    let (served, _) = connect_once(config, timeout, None, None).await?;
    let granted = served.connection.session.timeout;
    close(served).await;
    Ok(granted)
}

pub(crate) fn promises(
    (shortest, longest): (Duration, Duration),
    claim_window: Duration,
) -> Promises {
    let sure = longest * 2 / 3;
    let mut limits = Vec::new();
    if sure < DEFAULT_TTL {
        limits.push(Finding::against_correctness(
            format!(
                "a hold is lost {sure:?} after its last renewal, however long its ttl, because the servers grant no session above {longest:?}"
            ),
            format!("raise maxSessionTimeout above {:?}, or use shorter ttls", DEFAULT_TTL * 3 / 2),
        ));
    }
    let clock = "the servers' monotonic clocks and this machine's run at about the same rate, to within a third of the session timeout; jumps of the wall clock do not matter";
    Promises::full("zookeeper", clock)
        .portable(false)
        .record(true)
        .floor(Floor::Store)
        .lease(LeaseKind::Session)
        .wake(Wake::Push)
        .durability(Durability::Durable)
        // In whole milliseconds, as people write it.
        .min_ttl(Duration::from_millis(
            (shortest.as_millis() as u64 * 2).div_ceil(3),
        ))
        .max_ttl(MAX_TTL)
        .claim_window(claim_window)
        .limits(limits)
}

/// A server's answer to `srvr`. Servers answer it unless they are configured not to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SrvrAnswer {
    None,
    /// Another text: `srvr` is not allowed, or the server serves no clients at present.
    Other(String),
    Srvr {
        version: String,
        mode: String,
    },
}

pub(crate) async fn ask_srvr(server: &str, response_timeout: Duration) -> SrvrAnswer {
    let asking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(b"srvr").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    match tokio::time::timeout(response_timeout, asking).await {
        Ok(Ok(text)) => SrvrAnswer::parse(&text),
        Ok(Err(_)) | Err(_) => SrvrAnswer::None,
    }
}

impl SrvrAnswer {
    pub(crate) fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name));
            found.map(|value| value.trim().to_owned())
        };
        match (field("Zookeeper version:"), field("Mode:")) {
            (Some(version), Some(mode)) => Self::Srvr { version, mode },
            _ => Self::Other(text.trim().to_owned()),
        }
    }
}
