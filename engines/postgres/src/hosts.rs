//! Finds the host that takes writes, and refuses a pooler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use fencelock_core::{Error, Result};
use fencelock_sql::bound::CloseSignal;
use fencelock_sql::server::Servers;
use futures_util::future::join_all;

use super::connection::{Hosts, Listener, Session, columns};

/// The hosts, and the purpose of a connection to one of them.
struct Attempt<'a> {
    hosts: &'a Hosts,
    signal: &'a Arc<CloseSignal>,
    listener: Option<Listener>,
}

impl Hosts {
    /// A connection to the host that takes writes, with its tokens lifted. An inspecting client takes any host if there is
    /// none.
    pub(crate) async fn connect(
        &self,
        signal: &Arc<CloseSignal>,
        listener: Option<Listener>,
    ) -> Result<Session> {
        if self.config.inspect_only {
            return self.connect_to_inspect(signal).await;
        }
        let mut session = match self.config.hosts.len() {
            1 => self.connect_in_time(0, signal, listener).await?,
            _ => {
                let attempt = Attempt {
                    hosts: self,
                    signal,
                    listener,
                };
                self.second_server.connect(&attempt).await?
            }
        };
        self.prepare_tokens(&mut session).await?;
        Ok(session)
    }

    async fn connect_to_inspect(&self, signal: &Arc<CloseSignal>) -> Result<Session> {
        let count = self.config.hosts.len();
        if count == 1 {
            return self.connect_in_time(0, signal, None).await;
        }
        let connects = (0..count).map(|host| async move {
            let signal = CloseSignal::new(None);
            (host, self.connect_in_time(host, &signal, None).await)
        });
        let (mut replica, mut failed) = (None, None);
        for (host, session) in join_all(connects).await {
            match session {
                // Connects again, now with the caller's signal.
                Ok(session) if !session.recovering => {
                    return self.connect_to(host, signal, None).await;
                }
                Ok(_) => replica = replica.or(Some(host)),
                Err(error) => failed = Some(error),
            }
        }
        match (replica, failed) {
            (Some(host), _) => self.connect_to(host, signal, None).await,
            (None, Some(error)) => Err(error),
            (None, None) => Err(self.internal("a store without a host")),
        }
    }

    /// Refuses a pooler that shares connections. With a second client connected, and no transaction open, such a pooler
    /// hands out its connections in turn, or the one that was returned last.
    pub(super) async fn rule_out_pooler(&self, session: &Session) -> Result<()> {
        let _other = self.connect(&CloseSignal::new(None), None).await?;
        let pid = session.id.0.split('@').next().unwrap_or_default();
        for _ in 0..2 {
            if !self.is_at(session, pid).await? {
                return Err(self.pooled());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Servers for Attempt<'_> {
    type Session = Session;

    fn count(&self) -> usize {
        self.hosts.config.hosts.len()
    }

    fn address(&self, host: usize) -> String {
        self.hosts.config.address(host)
    }

    /// Begins with the host that was used the last time.
    async fn connect_to_writable(&self) -> Result<(Session, usize)> {
        let (hosts, count) = (self.hosts, self.count());
        let begin = hosts.first.load(Ordering::Relaxed);
        let mut why = Vec::new();
        for step in 0..count {
            let host = (begin + step) % count;
            let listener = self.listener.clone();
            match hosts.connect_in_time(host, self.signal, listener).await {
                Ok(session) if !session.recovering => {
                    hosts.first.store(host, Ordering::Relaxed);
                    return Ok((session, host));
                }
                Ok(_) => why.push(hosts.recovering(host)),
                Err(error @ Error::Unavailable { .. }) => {
                    // The next connection tries another host first.
                    hosts.first.store((host + 1) % count, Ordering::Relaxed);
                    why.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        let action = "finding a host that takes writes";
        Err(Error::unavailable(hosts, action, why.join("; ")))
    }

    async fn connect_if_writable(&self, host: usize) -> Option<Session> {
        let signal = CloseSignal::new(None);
        let session = self.hosts.connect_in_time(host, &signal, None).await;
        session.ok().filter(|session| !session.recovering)
    }

    async fn lock_server(&self, session: &mut Session, key: i64) -> Option<bool> {
        let lock = format!("SELECT pg_try_advisory_lock({key})");
        let answer = session.client.simple_query(&lock).await.ok()?;
        Some(columns(&answer)?.first()? == "t")
    }

    fn way_out(&self) -> &'static str {
        "Name one of them, or make one a standby of the other"
    }
}

impl std::fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self.hosts, f)
    }
}
