//! Of several hosts only one may take writes. If two servers did, each could grant the same lock. This module finds the second
//! one.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use futures_util::future::join_all;

/// How long a check is good for.
const CHECKED: Duration = Duration::from_secs(5);

/// The hosts of a store, for [`SecondServer::connect`]. `Display` names the store.
#[async_trait]
pub trait Servers: std::fmt::Display + Sync {
    /// A connection.
    type Session: Send;

    /// How many hosts there are.
    fn count(&self) -> usize;

    /// A host's name and port.
    fn address(&self, host: usize) -> String;

    /// A connection to the first host that takes writes, and which host that is.
    async fn connect_to_writable(&self) -> Result<(Self::Session, usize)>;

    /// A connection to one host, if it takes writes and answers in time.
    async fn connect_if_writable(&self, host: usize) -> Option<Self::Session>;

    /// Takes a lock of the server's own for the rest of the connection. All connections of one server share these locks.
    async fn lock_server(&self, session: &mut Self::Session, key: i64) -> Option<bool>;

    /// Whether several servers take writes by design, and conflicting writes to two of them are refused.
    fn is_cluster(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }

    /// Drops a connection without waiting for anything.
    fn hang_up(&self, session: Self::Session) {
        drop(session);
    }

    /// What to do so that only one server takes writes.
    fn way_out(&self) -> &'static str;
}

/// When all hosts of a store were last checked, and which one was used then.
#[derive(Debug, Default)]
pub struct SecondServer(Mutex<Option<(BootInstant, usize)>>);

impl SecondServer {
    /// Connects to the host that takes writes, and refuses a second server that takes writes.
    ///
    /// # Errors
    /// [`Error::Config`] if two servers take writes; otherwise the errors of connecting.
    pub async fn connect<S: Servers>(&self, servers: &S) -> Result<S::Session> {
        // Both at once, so that a silent host costs its timeout only once.
        let (first, checked) = match self.is_due() {
            true => tokio::join!(servers.connect_to_writable(), async {
                rule_out(servers).await.map(|()| true)
            }),
            false => (servers.connect_to_writable().await, Ok(false)),
        };
        let ((session, host), mut checked) = (first?, checked?);
        if !checked && self.is_another(host) {
            rule_out(servers).await?;
            checked = true;
        }
        if checked {
            *self.0.lock() = Some((Clock::Boot.now(), host));
        }
        Ok(session)
    }

    fn is_due(&self) -> bool {
        let last = *self.0.lock();
        last.is_none_or(|(at, _)| Clock::Boot.now().since(at) >= CHECKED)
    }

    /// Whether this is not the host of the last check.
    fn is_another(&self, host: usize) -> bool {
        self.0.lock().is_none_or(|(_, used)| used != host)
    }
}

/// Refuses a second server that takes writes. A host that does not answer does not count.
async fn rule_out<S: Servers>(servers: &S) -> Result<()> {
    let hosts = 0..servers.count();
    let connects = hosts.map(|host| async move {
        let session = servers.connect_if_writable(host).await?;
        Some((host, session))
    });
    let mut writable: Vec<(usize, S::Session)> =
        join_all(connects).await.into_iter().flatten().collect();
    let second = find_second(servers, &mut writable).await;
    for (_, session) in writable {
        servers.hang_up(session);
    }
    let Some((one, other)) = second else {
        return Ok(());
    };
    let (one, other) = (servers.address(one), servers.address(other));
    let way_out = servers.way_out();
    Err(Error::config(
        servers,
        ConfigPart::Server,
        format!(
            "{one} and {other} are two servers that both take writes: each would grant the same lock to another client. \
             {way_out}"
        ),
    ))
}

/// Finds two hosts that are two servers. A lock of the server's own distinguishes them from two names of one server.
async fn find_second<S: Servers>(
    servers: &S,
    writable: &mut [(usize, S::Session)],
) -> Option<(usize, usize)> {
    let ((first, one), others) = writable.split_first_mut()?;
    let key = fastrand::i64(..);
    if servers.lock_server(one, key).await != Some(true) {
        return None;
    }
    for (host, other) in others {
        let locked = servers.lock_server(other, key).await;
        let same_cluster = servers.is_cluster(one) && servers.is_cluster(other);
        if locked == Some(true) && !same_cluster {
            return Some((*first, *host));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hosts_are_checked_first_and_after_a_switch_over() {
        let check = SecondServer::default();
        assert!(check.is_due() && check.is_another(0));
        *check.0.lock() = Some((Clock::Boot.now(), 0));
        assert!(!check.is_due() && !check.is_another(0));
        assert!(check.is_another(1));
    }
}
