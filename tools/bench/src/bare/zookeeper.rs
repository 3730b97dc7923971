//! A lock on ZooKeeper without a library: an ephemeral node, created and deleted.

use std::time::{Duration, Instant};

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use zookeeper_client::{Acls, Client, CreateMode};

use super::failed;

/// One session, shared by all tasks, as in the library.
#[derive(Clone)]
pub(crate) struct BareZooKeeper {
    client: Client,
    root: String,
}

impl BareZooKeeper {
    /// A session with the servers that `url` names.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut parts = StoreUrl::parse(url)?;
        let password = parts.take_password()?;
        let mut connector = Client::connector().with_session_timeout(Duration::from_secs(10));
        if let (Some(user), Some(password)) = (&parts.user, password) {
            let digest = format!("{user}:{password}");
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let client = connector.connect(&parts.hosts.join(",")).await;
        let client = client.map_err(|error| Error::unavailable(&parts, "connect", error))?;
        let root = match parts.path.trim_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        Ok(Self { client, root })
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let refuse = |error| failed("the bare ZooKeeper client", error);
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let mut pairs = 0;
        for name in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            let path = format!("{}/bare-{}", self.root, name.replace('/', "-"));
            self.client
                .create(&path, b"bare", &options)
                .await
                .map_err(refuse)?;
            self.client.delete(&path, None).await.map_err(refuse)?;
            pairs += 1;
        }
        Ok(pairs)
    }

    /// How long each of `count` writes takes, one after the other, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let refuse = |error| failed("the bare ZooKeeper client", error);
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let path = format!("{}/bare-round-trip", self.root);
        self.client
            .create(&path, b"", &options)
            .await
            .map_err(refuse)?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Instant::now();
            self.client
                .set_data(&path, b"", None)
                .await
                .map_err(refuse)?;
            times.push(begun.elapsed().as_nanos() as f64);
        }
        self.client.delete(&path, None).await.map_err(refuse)?;
        Ok(times)
    }
}
