//! A script on Redis, a transaction on etcd, a multi on ZooKeeper.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{KvClient, TxnOp};
use fencelock::Sequencer;
use fencelock::fence::FenceError;
use fencelock::fence::etcd::EtcdFence;
use fencelock::fence::redis::RedisFence;
use fencelock::fence::zookeeper::ZooKeeperFence;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, cmd};
use zookeeper_client::{Acls, CreateMode};

use crate::Resource;

/// A key, or node, from a lock's name.
fn key(name: &str) -> String {
    format!("/ledger-{}", name.replace('/', "-"))
}

fn fence_key(sequencer: &Sequencer) -> String {
    format!("{}-fence", key(sequencer.name.as_str()))
}

pub(crate) struct Redis(MultiplexedConnection);

impl Redis {
    pub(crate) async fn open(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }
}

#[async_trait]
impl Resource for Redis {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let mut connection = self.0.clone();
        let fence = RedisFence::new(&fence_key(sequencer));
        let key = key(sequencer.name.as_str());
        let mut set = cmd("SET");
        set.arg(&key).arg(text);
        let (keys, commands) = ([&*key], [set]);
        let written = fence.write(&mut connection, sequencer, &keys, &commands);
        written.await.map(drop)
    }

    async fn read(&self, name: &str) -> String {
        self.0
            .clone()
            .get(key(name))
            .await
            .unwrap()
            .unwrap_or_default()
    }
}

pub(crate) struct Etcd(KvClient);

impl Etcd {
    pub(crate) async fn open(address: &str) -> Self {
        let client = etcd_client::Client::connect([address], None).await.unwrap();
        Self(client.kv_client())
    }
}

#[async_trait]
impl Resource for Etcd {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let fence = EtcdFence::new(&fence_key(sequencer));
        let put = TxnOp::put(key(sequencer.name.as_str()), text, None);
        let mut client = self.0.clone();
        let written = fence.write(&mut client, sequencer, vec![put]);
        written.await.map(drop)
    }

    async fn read(&self, name: &str) -> String {
        let found = self.0.clone().get(key(name), None).await.unwrap();
        let value = found
            .kvs()
            .first()
            .map(|kv| kv.value_str().unwrap().to_owned());
        value.unwrap_or_default()
    }
}

pub(crate) struct ZooKeeper(zookeeper_client::Client);

impl ZooKeeper {
    pub(crate) async fn open(address: &str) -> Self {
        // Longer than every stop, so that the fence refuses the sleeper: its session must not end first.
        let connector = zookeeper_client::Client::connector();
        let connector = connector.with_session_timeout(Duration::from_secs(60));
        Self(connector.connect(address).await.unwrap())
    }
}

#[async_trait]
impl Resource for ZooKeeper {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let fence = ZooKeeperFence::new(&fence_key(sequencer));
        let path = key(sequencer.name.as_str());
        let there = self.0.check_stat(&path).await.unwrap().is_some();
        let written = fence.write(&self.0, sequencer, |multi| {
            if there {
                return multi.add_set_data(&path, text.as_bytes(), None);
            }
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            multi.add_create(&path, text.as_bytes(), &options)
        });
        written.await.map(drop)
    }

    async fn read(&self, name: &str) -> String {
        let found = self.0.get_data(&key(name)).await;
        found
            .map(|(data, _)| String::from_utf8(data).unwrap())
            .unwrap_or_default()
    }
}
