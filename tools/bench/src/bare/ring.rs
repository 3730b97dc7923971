//! The least that a hand-off between clients costs: bare clients in a ring, each of which has a key and watches the key of the
//! one before it. A client whose predecessor's key is deleted has its turn. It ends the turn by deleting its own key, and asks for
//! the next one by putting that again. So a hand-off is one write, one event, and the write of the next request. On MySQL a row
//! has the number of the turn. A client ends its turn by increasing that number and ending the wait of the next client.

#[cfg(feature = "etcd")]
use super::etcd::EtcdEntry;
#[cfg(feature = "mysql")]
use super::mysql::MySqlEntry;
#[cfg(feature = "zookeeper")]
use super::zookeeper::ZooKeeperEntry;
use super::{Place, failed};
use crate::contender::Contender;
use fencelock::Result;

/// The least number of clients. With fewer, the turn may come round before a client watches again.
pub(crate) const LEAST: usize = 3;

/// A client in its place.
pub(crate) enum Entry {
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdEntry>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<ZooKeeperEntry>),
    #[cfg(feature = "mysql")]
    MySql(Box<MySqlEntry>),
}

/// Whether there is a ring for this engine.
pub(crate) fn is_known(engine: &str) -> bool {
    (cfg!(feature = "etcd") && engine == "etcd")
        || (cfg!(feature = "zookeeper") && engine == "zookeeper")
        || (cfg!(feature = "mysql") && engine == "mysql")
}

impl Entry {
    /// Puts the key of this place.
    pub(crate) async fn join(contender: &Contender, name: &str, place: Place) -> Result<Self> {
        // Without an engine that has a ring they are not used.
        let _ = (name, place);
        match contender {
            #[cfg(feature = "etcd")]
            Contender::BareEtcd(bare) => Ok(Self::Etcd(Box::new(bare.entry(name, place).await?))),
            #[cfg(feature = "zookeeper")]
            Contender::BareZooKeeper(bare) => {
                let entry = bare.entry(name, place).await?;
                Ok(Self::ZooKeeper(Box::new(entry)))
            }
            #[cfg(feature = "mysql")]
            Contender::BareMySql(bare) => {
                let entry = bare.entry(name, place).await?;
                Ok(Self::MySql(Box::new(entry)))
            }
            _ => Err(failed("the ring", "there is none for this store")),
        }
    }

    /// Watches the place before, once all have their keys.
    pub(crate) async fn watch(&mut self) -> Result<()> {
        match self {
            // Its watch is in place.
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Ok(()),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(entry) => entry.watch().await,
            // Its second connection waits.
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Ok(()),
            #[cfg(not(any(feature = "etcd", feature = "zookeeper", feature = "mysql")))]
            _ => Ok(()),
        }
    }

    /// Asks for a turn, and waits for it. Returns a number that increases with each turn, or 0.
    pub(crate) async fn take(&mut self) -> Result<u64> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(entry) => entry.take().await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(entry) => entry.take().await,
            #[cfg(feature = "mysql")]
            Self::MySql(entry) => entry.take().await,
            #[cfg(not(any(feature = "etcd", feature = "zookeeper", feature = "mysql")))]
            _ => Ok(0),
        }
    }

    /// Ends the turn.
    pub(crate) async fn release(&mut self) -> Result<()> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(entry) => entry.release().await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(entry) => entry.release().await,
            #[cfg(feature = "mysql")]
            Self::MySql(entry) => entry.release().await,
            #[cfg(not(any(feature = "etcd", feature = "zookeeper", feature = "mysql")))]
            _ => Ok(()),
        }
    }
}
