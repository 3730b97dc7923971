//! Locks on etcd without a library: a key that a transaction puts if it is not there, and deletes; and the lock service
//! that etcd itself has.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error as Driver, LockOptions, PutOptions, Txn,
    TxnOp, WatchFilterType, WatchOptions, WatchStream,
};
use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};

use super::{Place, failed};

/// The ttl of all keys, in seconds: longer than every measurement.
const LEASE: i64 = 600;

/// One connection, shared by all tasks, as in the library.
#[derive(Clone)]
pub(crate) struct BareEtcd {
    client: Client,
    lease: i64,
    /// The leases of tasks that have used the lock service. The service identifies claims by their leases.
    leases: Arc<Mutex<Vec<i64>>>,
}

fn refuse(error: Driver) -> Error {
    failed("the bare etcd client", error)
}

impl BareEtcd {
    /// A connection to the cluster that `url` names.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let mut parts = StoreUrl::parse(url)?;
        let password = parts.take_password()?;
        let mut options = ConnectOptions::new();
        if let (Some(user), Some(password)) = (&parts.user, password) {
            options = options.with_user(user, password);
        }
        let client = Client::connect(&parts.hosts, Some(options)).await;
        let client = client.map_err(|error| Error::unavailable(&parts, "connect", error))?;
        let granted = client.lease_client().grant(LEASE, None).await;
        Ok(Self {
            client,
            lease: granted.map_err(refuse)?.id(),
            leases: Arc::default(),
        })
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let mut kv = self.client.kv_client();
        let mut pairs = 0;
        for name in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            let key = format!("bare/{name}");
            let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
            let leased = PutOptions::new().with_lease(self.lease);
            let put = TxnOp::put(key.as_str(), "bare", Some(leased));
            let taken = kv.txn(Txn::new().when([absent]).and_then([put])).await;
            if !taken.map_err(refuse)?.succeeded() {
                let why = format!("{name} was not free");
                return Err(failed("the bare etcd client", why));
            }
            kv.delete(key, None).await.map_err(refuse)?;
            pairs += 1;
        }
        Ok(pairs)
    }

    /// How long each of `count` puts takes, one after the other, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let mut kv = self.client.kv_client();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Instant::now();
            let leased = PutOptions::new().with_lease(self.lease);
            kv.put("bare/round-trip", "", Some(leased))
                .await
                .map_err(refuse)?;
            times.push(begun.elapsed().as_nanos() as f64);
        }
        Ok(times)
    }

    /// Puts the key of a place in the ring `name`, and watches that of the place before.
    pub(crate) async fn entry(&self, name: &str, place: Place) -> Result<EtcdEntry> {
        let key = |at: usize| format!("bare/{name}/{at}");
        let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        let mut client = self.client.watch_client();
        let watch = client.watch(key(place.before()), Some(options)).await;
        let mut entry = EtcdEntry {
            of: self.clone(),
            key: key(place.at),
            watch: watch.map_err(refuse)?,
            // The first turn is that of the first place.
            turn: (place.at == 0).then_some(0),
            sits: false,
        };
        let opened = entry.watch.message().await.map_err(refuse)?;
        if !opened.is_some_and(|opened| opened.created()) {
            return Err(failed("the bare etcd client", "its watch was not opened"));
        }
        entry.join().await?;
        Ok(entry)
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Vec<i64>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the lock `name` of the lock service.
    pub(crate) async fn lock(&self, name: &str) -> Result<Locked> {
        let spare = self.leases().pop();
        let lease = match spare {
            Some(lease) => lease,
            None => {
                let granted = self.client.lease_client().grant(LEASE, None).await;
                granted.map_err(refuse)?.id()
            }
        };
        let mut service = self.client.lock_client();
        let options = LockOptions::new().with_lease(lease);
        let locked = service.lock(name, Some(options)).await.map_err(refuse)?;
        Ok(Locked {
            of: self.clone(),
            key: locked.key().to_vec(),
            lease,
        })
    }
}

/// A lock of the lock service.
pub(crate) struct Locked {
    of: BareEtcd,
    key: Vec<u8>,
    lease: i64,
}

impl Locked {
    /// Releases.
    pub(crate) async fn unlock(self) -> Result<()> {
        let mut service = self.of.client.lock_client();
        service.unlock(self.key).await.map_err(refuse)?;
        self.of.leases().push(self.lease);
        Ok(())
    }
}

/// A place in the ring.
pub(crate) struct EtcdEntry {
    of: BareEtcd,
    key: String,
    watch: WatchStream,
    /// A turn that was not taken yet.
    turn: Option<u64>,
    /// Whether its key is there.
    sits: bool,
}

impl EtcdEntry {
    async fn join(&mut self) -> Result<()> {
        let leased = PutOptions::new().with_lease(self.of.lease);
        let mut kv = self.of.client.kv_client();
        kv.put(self.key.as_str(), "bare", Some(leased))
            .await
            .map_err(refuse)?;
        self.sits = true;
        Ok(())
    }

    /// Waits for the turn. Returns the revision that gave it.
    pub(crate) async fn take(&mut self) -> Result<u64> {
        if !self.sits {
            self.join().await?;
        }
        if let Some(turn) = self.turn.take() {
            return Ok(turn);
        }
        loop {
            let response = self.watch.message().await.map_err(refuse)?;
            let ended = || failed("the bare etcd client", "its watch ended");
            let response = response.ok_or_else(ended)?;
            let changed = response.events().iter().filter_map(|event| event.kv());
            if let Some(revision) = changed.map(|kv| kv.mod_revision()).max() {
                return Ok(revision.unsigned_abs());
            }
        }
    }

    /// Ends the turn.
    pub(crate) async fn release(&mut self) -> Result<()> {
        self.sits = false;
        let mut kv = self.of.client.kv_client();
        kv.delete(self.key.as_str(), None).await.map_err(refuse)?;
        Ok(())
    }
}
