//! A lock on several Redis servers without a library: `SET NX PX` on all servers at once, and a script that compares and
//! deletes. Both wait for all answers.

use fencelock::{BootInstant, Clock, Error, Result, StoreUrl};
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError, cmd};

use super::failed;
use super::redis::RELEASE;

/// One connection to each node, shared by all tasks.
#[derive(Clone)]
pub(crate) struct BareRedlock {
    nodes: Vec<MultiplexedConnection>,
    release: String,
}

impl BareRedlock {
    /// Connections to the nodes that `url` names.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let refuse = |error: RedisError| failed("connecting the bare clients", error);
        let mut nodes = Vec::new();
        let mut release = String::new();
        for client in clients(url)? {
            let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(1024);
            let connected = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = connected.await.map_err(refuse)?;
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(RELEASE);
            release = load.query_async(&mut connection).await.map_err(refuse)?;
            nodes.push(connection);
        }
        Ok(Self { nodes, release })
    }

    /// Locks `names` in turn until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
        let mut pairs = 0;
        for name in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            let mut take = cmd("SET");
            take.arg(name).arg(&value).arg("NX").arg("PX").arg(30_000);
            let taken: Vec<bool> = self.at_all(&take).await?;
            let mut release = cmd("EVALSHA");
            release.arg(&self.release).arg(1).arg(name).arg(&value);
            let released: Vec<bool> = self.at_all(&release).await?;
            if taken.contains(&false) || released.contains(&false) {
                return Err(failed("the bare clients", format!("{name} was not free")));
            }
            pairs += 1;
        }
        Ok(pairs)
    }

    async fn at_all(&self, command: &redis::Cmd) -> Result<Vec<bool>> {
        let asked = self.nodes.iter().map(|node| async move {
            let mut node = node.clone();
            command.query_async(&mut node).await
        });
        let refuse = |error: RedisError| failed("the bare clients", error);
        try_join_all(asked).await.map_err(refuse)
    }
}

/// `HOST:PORT` of each node.
#[cfg(feature = "peers")]
pub(crate) fn nodes(url: &str) -> Result<Vec<String>> {
    let mut parts = StoreUrl::parse(url)?;
    let hosts = parts.take_hosts()?;
    Ok(hosts.into_iter().map(|host| host.host).collect())
}

/// The crate's own client for each node of a store's URL.
pub(crate) fn clients(url: &str) -> Result<Vec<Client>> {
    let mut parts = StoreUrl::parse(url)?;
    let refuse = |error: RedisError| Error::unavailable("a node", "connect", error);
    let mut clients = Vec::new();
    for host in parts.take_hosts()? {
        let address = format!("redis://{}", host.host);
        let info = address.into_connection_info().map_err(refuse)?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &host.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &host.password {
            settings = settings.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(settings));
        clients.push(client.map_err(refuse)?);
    }
    Ok(clients)
}
