//! The baselines: the engine's plain client on the same server, without a lock library.

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(feature = "http")]
pub(crate) mod http;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
pub(crate) mod redlock;
pub(crate) mod ring;
pub(crate) mod shards;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

use fencelock::Error;

/// Which place of the [ring](ring) a client has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) at: usize,
    /// How many there are.
    pub(crate) of: usize,
}

impl Place {
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    fn before(self) -> usize {
        (self.at + self.of - 1) % self.of
    }
}

/// Refuses a URL with TLS: the baselines do not support it, and would send the password in the clear.
///
/// # Errors
/// [`Error::Config`] for such a URL.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn check_plain(url: &mut fencelock::StoreUrl) -> Result<(), Error> {
    let tls = url.take("tls");
    if tls.as_deref() == Some("off") {
        return Ok(());
    }
    let mut words = [
        "tls-ca",
        "tls-cert",
        "sslmode",
        "sslrootcert",
        "ssl-mode",
        "ssl-ca",
    ]
    .into_iter();
    let asked = tls.is_some() || words.any(|word| url.take(word).is_some());
    let local = |host: &String| host.starts_with("localhost") || host.starts_with("127.");
    if asked || !url.hosts.iter().all(local) {
        return Err(url.refuse("the baseline does not support TLS; measure with tls=off"));
    }
    Ok(())
}

/// The names in turn, until the end.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn statements(names: &[String], until: fencelock::BootInstant) -> impl Iterator<Item = &String> {
    let clock = fencelock::Clock::Boot;
    names
        .iter()
        .cycle()
        .take_while(move |_| clock.now() < until)
}

/// A baseline that could not be measured.
pub(crate) fn failed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::internal("of the benchmark", format!("{what}: {why}"))
}
