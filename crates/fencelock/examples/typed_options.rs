//! Stores by typed options, without a URL.

// Those that need a server are compiled only.
#![allow(dead_code)]

use std::time::Duration;

use fencelock::{Client, Result};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let file = std::env::temp_dir().join(format!("fencelock-typed-{}.db", std::process::id()));
    #[cfg(feature = "sqlite")]
    {
        let options = fencelock::sqlite::Options::new(&file).prefix("billing/");
        let one = fencelock::connect(options).await?;
        let guard = one.lock("nightly-report").await?;
        let two = fencelock::connect(format!("sqlite:{}", file.display())).await?;
        assert!(two.try_lock("billing/nightly-report").await.is_err());
        guard.release().await?;
    }
    drop(std::fs::remove_file(file));
    Ok(())
}

#[cfg(feature = "redis")]
async fn redis() -> Result<Client> {
    let options =
        fencelock::redis::Options::new("cache:6379").response_timeout(Duration::from_secs(1));
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "redis")]
async fn sentinel() -> Result<Client> {
    let options = fencelock::redis::Options::sentinel(["s1", "s2", "s3"], "main")
        .user("fencelock")
        .password_env("REDIS_PASSWORD")
        .replicas(2);
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "redis")]
async fn redlock() -> Result<Client> {
    let options =
        fencelock::redlock::Options::new(["a", "b", "c"]).max_ttl(Duration::from_secs(60));
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "mysql")]
async fn mysql() -> Result<Client> {
    let options = fencelock::mysql::Options::new(["db1", "db2"], "locks")
        .user("fencelock")
        .strategy(fencelock::mysql::Strategy::Lease);
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "postgres")]
async fn postgres() -> Result<Client> {
    let options = fencelock::postgres::Options::new(["db1", "db2"])
        .database("locks")
        .user("fencelock");
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "sqlite")]
async fn sqlite() -> Result<Client> {
    let options = fencelock::sqlite::Options::new("/var/lib/app/locks.db");
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "etcd")]
async fn etcd() -> Result<Client> {
    let options = fencelock::etcd::Options::new(["e1", "e2", "e3"])
        .tls()
        .tls_ca("/etc/fencelock/ca.pem");
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "http")]
async fn http() -> Result<Client> {
    let options = fencelock::http::Options::new(["locks-1.internal", "locks-2.internal"])
        .tls()
        .token_file("/etc/fencelock/token");
    let client = fencelock::connect(options).await?;
    Ok(client)
}

#[cfg(feature = "zookeeper")]
async fn zookeeper() -> Result<Client> {
    let options = fencelock::zookeeper::Options::new(["z1", "z2", "z3"]).chroot("/locks");
    let client = fencelock::connect(options).await?;
    Ok(client)
}
