//! One run of the benchmark, as the measurements see it.

use std::path::PathBuf;
use std::time::Duration;

use fencelock::Result;

use crate::args::Args;
use crate::contender::{Who, engine};
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres"
))]
use crate::stats::median;

/// How to start this program again as a worker, which calls [`run_worker`](crate::run_worker).
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// One run: what to measure, where, and how to start workers.
pub(crate) struct Bench<'a> {
    pub(crate) args: &'a Args,
    pub(crate) url: &'a str,
    pub(crate) relaunch: &'a Relaunch,
    /// The prefix of the names of all its locks.
    pub(crate) run: String,
}

impl Bench<'_> {
    /// A name for locks of this run.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.run)
    }

    /// Where a contender finds the store.
    pub(crate) fn url_of(&self, who: Who) -> &str {
        #[cfg(feature = "http")]
        if let (Who::Served, Some(service)) = (who, &self.args.service) {
            return service;
        }
        let _ = who;
        self.url
    }

    /// The contenders through a lock service: one, if there is such a service.
    pub(crate) fn served(&self) -> Vec<Who> {
        #[cfg(feature = "http")]
        if self.args.service.is_some() {
            return vec![Who::Served];
        }
        Vec::new()
    }

    /// Whether there is a bare client to compare with.
    pub(crate) fn has_baseline(&self) -> Result<bool> {
        Ok(!matches!(engine(self.url)?, "memory" | "migrate"))
    }

    /// Whether each waiter has a client of its own: first shared clients, then own clients if that makes sense.
    pub(crate) fn clients(&self) -> Result<Vec<bool>> {
        // On SQLite each client has its own threads and open files: too many for a thousand waiters.
        let own_clients = engine(self.url)? != "sqlite";
        Ok(if own_clients {
            vec![false, true]
        } else {
            vec![false]
        })
    }

    /// The median of a bare round trip to the server, in nanoseconds; `None` if there is no server.
    pub(crate) async fn round_trip(&self, who: Who) -> Result<Option<f64>> {
        let url = self.url_of(who);
        #[cfg(feature = "redis")]
        if engine(url)? == "redis" {
            let bare = crate::bare::redis::BareRedis::open(url).await?;
            return Ok(median(&bare.round_trips(2000).await?));
        }
        #[cfg(feature = "etcd")]
        if engine(url)? == "etcd" {
            let bare = crate::bare::etcd::BareEtcd::open(url).await?;
            return Ok(median(&bare.round_trips(200).await?));
        }
        #[cfg(feature = "zookeeper")]
        if engine(url)? == "zookeeper" {
            let bare = crate::bare::zookeeper::BareZooKeeper::open(url).await?;
            return Ok(median(&bare.round_trips(200).await?));
        }
        #[cfg(feature = "mysql")]
        if engine(url)? == "mysql" {
            let bare = crate::bare::mysql::BareMySql::open(url).await?;
            return Ok(median(&bare.round_trips(2000).await?));
        }
        #[cfg(feature = "postgres")]
        if engine(url)? == "postgres" {
            let bare = crate::bare::postgres::BarePostgres::open(url).await?;
            return Ok(median(&bare.round_trips(2000).await?));
        }
        #[cfg(feature = "http")]
        if engine(url)? == "http" {
            let bare = crate::bare::http::BareHttp::open(url)?;
            return Ok(median(&bare.round_trips(2000).await?));
        }
        Ok(None)
    }

    /// Whether the commands that reach the server can be counted.
    pub(crate) fn counts(&self) -> Result<bool> {
        Ok(cfg!(feature = "redis") && engine(self.url)? == "redis")
    }

    /// The number of commands that clients send within `period`, if [`Bench::counts`].
    pub(crate) async fn commands_within(&self, period: Duration) -> Result<u64> {
        #[cfg(feature = "redis")]
        return crate::bare::redis::BareRedis::open(self.url)
            .await?
            .commands_within(period)
            .await;
        #[cfg(not(feature = "redis"))]
        Err(crate::bare::failed(
            "the benchmark",
            format!("commands cannot be counted for {period:?}"),
        ))
    }
    /// How many commands the server has run so far, if it counts them.
    pub(crate) async fn commands_so_far(&self) -> Result<Option<u64>> {
        #[cfg(feature = "redis")]
        if engine(self.url)? == "redis" {
            let bare = crate::bare::redis::BareRedis::open(self.url).await?;
            return bare.commands_so_far().await.map(Some);
        }
        #[cfg(feature = "mysql")]
        if engine(self.url)? == "mysql" {
            let bare = crate::bare::mysql::BareMySql::open(self.url).await?;
            return bare.commands_so_far().await.map(Some);
        }
        #[cfg(feature = "postgres")]
        if engine(self.url)? == "postgres" {
            let bare = crate::bare::postgres::BarePostgres::open(self.url).await?;
            return bare.commands_so_far().await.map(Some);
        }
        Ok(None)
    }
}
