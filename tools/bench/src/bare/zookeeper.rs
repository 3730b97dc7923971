//! A lock on ZooKeeper without a library: an ephemeral node, created and deleted.

use std::time::{Duration, Instant};

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use zookeeper_client::{Acls, Client, CreateMode, Error as Driver, EventType, OneshotWatcher};

use super::{Place, failed};

/// One session, shared by all tasks, as in the library.
#[derive(Clone)]
pub(crate) struct BareZooKeeper {
    client: Client,
    root: String,
}

fn refuse(error: Driver) -> Error {
    failed("the bare ZooKeeper client", error)
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

    /// Creates the node of a place in the ring `name`.
    pub(crate) async fn entry(&self, name: &str, place: Place) -> Result<ZooKeeperEntry> {
        let name = name.replace('/', "-");
        let path = |at: usize| format!("{}/bare-{name}-{at}", self.root);
        let mut entry = ZooKeeperEntry {
            of: self.clone(),
            path: path(place.at),
            before: path(place.before()),
            watcher: None,
            sits: false,
            first: place.at == 0,
        };
        entry.join().await?;
        Ok(entry)
    }
}

/// A place in the ring.
pub(crate) struct ZooKeeperEntry {
    of: BareZooKeeper,
    path: String,
    before: String,
    watcher: Option<OneshotWatcher>,
    /// Whether its node is there.
    sits: bool,
    /// Whether the first turn of all is its own, and was not taken yet.
    first: bool,
}

impl ZooKeeperEntry {
    async fn join(&mut self) -> Result<()> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let create = self.of.client.create(&self.path, b"bare", &options);
        create.await.map_err(refuse)?;
        self.sits = true;
        Ok(())
    }

    /// Watches the place before, once its node is there.
    pub(crate) async fn watch(&mut self) -> Result<()> {
        loop {
            let look = self.of.client.check_and_watch_stat(&self.before);
            let (stat, watcher) = look.await.map_err(refuse)?;
            if stat.is_some() {
                self.watcher = Some(watcher);
                return Ok(());
            }
            watcher.changed().await;
        }
    }

    /// Waits for the turn.
    pub(crate) async fn take(&mut self) -> Result<u64> {
        if std::mem::take(&mut self.first) {
            return Ok(0);
        }
        if !self.sits {
            self.join().await?;
        }
        if self.watcher.is_none() {
            self.watch().await?;
        }
        if let Some(watcher) = self.watcher.take() {
            let event = watcher.changed().await;
            if event.event_type != EventType::NodeDeleted {
                let why = format!("its watch told of {:?}", event.event_type);
                return Err(failed("the bare ZooKeeper client", why));
            }
        }
        Ok(0)
    }

    /// Ends the turn.
    pub(crate) async fn release(&mut self) -> Result<()> {
        self.sits = false;
        let deleted = self.of.client.delete(&self.path, None).await;
        deleted.map_err(refuse)
    }
}
