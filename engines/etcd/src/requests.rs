//! The requests to the cluster.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, LeaseTimeToLiveOptions, Txn, TxnOp, TxnResponse,
    WatchFilterType, WatchOptions,
};
use fencelock_core::Result;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::layout::is_release_notice;
use crate::server::ServerInfo;
use crate::watches::Watch;

impl Cluster {
    pub(crate) async fn txn(
        &self,
        action: impl Fn() -> String,
        txn: Txn,
    ) -> Result<TxnResponse, RequestError> {
        let send = |on: Arc<Connection>| async move { on.kv.clone().txn(txn).await };
        let reply = self.request(action, send).await?;
        self.note_revision(reply.header().map_or(0, |header| header.revision()));
        Ok(reply)
    }

    pub(crate) async fn get(
        &self,
        action: impl Fn() -> String,
        key: &[u8],
        options: GetOptions,
    ) -> Result<GetResponse, RequestError> {
        let send = |on: Arc<Connection>| async move { on.kv.clone().get(key, Some(options)).await };
        self.request(action, send).await
    }

    /// Whether a key with this create revision exists.
    pub(crate) async fn exists(&self, key: &[u8], revision: i64) -> Result<bool, RequestError> {
        let same = Compare::create_revision(key, CompareOp::Equal, revision);
        let look = Txn::new().when([same]);
        let looked = self.txn(|| "looking for a claim".into(), look).await?;
        Ok(looked.succeeded())
    }

    /// Deletes a key. `false` if it did not exist.
    pub(crate) async fn delete(&self, key: &str) -> Result<bool, RequestError> {
        let send = |on: Arc<Connection>| async move { on.kv.clone().delete(key, None).await };
        let reply = self.request(|| "releasing".into(), send).await?;
        Ok(reply.deleted() > 0)
    }

    /// Deletes a key if it has this create revision. `false` if it does not.
    pub(crate) async fn delete_created(
        &self,
        key: &[u8],
        revision: i64,
    ) -> Result<bool, RequestError> {
        let same = Compare::create_revision(key, CompareOp::Equal, revision);
        self.delete_if(key, [same]).await
    }

    /// Deletes a key if it is attached to this lease. `false` if it is not.
    pub(crate) async fn delete_on_lease(
        &self,
        key: &[u8],
        lease: i64,
    ) -> Result<bool, RequestError> {
        self.delete_if(key, [Compare::lease(key, CompareOp::Equal, lease)])
            .await
    }

    /// The same, if the key was created by this revision. A later claim may have the same key on the same lease.
    pub(crate) async fn delete_created_by(
        &self,
        key: &[u8],
        lease: i64,
        revision: i64,
    ) -> Result<bool, RequestError> {
        let on_lease = Compare::lease(key, CompareOp::Equal, lease);
        let early = Compare::create_revision(key, CompareOp::Less, revision + 1);
        self.delete_if(key, [on_lease, early]).await
    }

    async fn delete_if<const N: usize>(
        &self,
        key: &[u8],
        conditions: [Compare; N],
    ) -> Result<bool, RequestError> {
        let delete = Txn::new()
            .when(conditions)
            .and_then([TxnOp::delete(key, None)]);
        let deleted = self.txn(|| "releasing".into(), delete).await?;
        Ok(deleted.succeeded())
    }

    pub(crate) async fn server_info(&self) -> Result<ServerInfo, RequestError> {
        let list = |on: Arc<Connection>| async move { on.cluster.clone().member_list().await };
        let members = self
            .request(|| "asking for its members".into(), list)
            .await?;
        let status = |on: Arc<Connection>| async move { on.maintenance.clone().status().await };
        let status = self
            .request(|| "asking for its version".into(), status)
            .await?;
        Ok(ServerInfo {
            members: members.members().len(),
            version: status.version().to_owned(),
        })
    }

    /// Creates a lease. Returns its id, and how long the server keeps it.
    pub(crate) async fn grant_lease(&self, seconds: i64) -> Result<(i64, Duration), RequestError> {
        let send = |on: Arc<Connection>| async move { on.lease.clone().grant(seconds, None).await };
        let granted = self
            .request_at_once(|| "beginning a session".into(), send)
            .await?;
        Ok((granted.id(), whole_seconds(granted.ttl())))
    }

    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<(), RequestError> {
        let send = |on: Arc<Connection>| async move {
            // A stream for each request, so that a late reply is never taken for the reply to a later one.
            on.lease.clone().keep_alive(lease).await.map(drop)
        };
        self.request_at_once(|| "keeping a session alive".into(), send)
            .await
    }

    pub(crate) async fn revoke_lease(&self, lease: i64) -> Result<(), RequestError> {
        let send = |on: Arc<Connection>| async move { on.lease.clone().revoke(lease).await };
        self.request(|| "ending a session".into(), send).await?;
        Ok(())
    }

    /// How long a lease has left. `None` if it has expired.
    pub(crate) async fn lease_left(&self, lease: i64) -> Result<Option<Duration>, RequestError> {
        let left = self.lease(lease, LeaseTimeToLiveOptions::new()).await?;
        Ok(left.map(|(left, _)| left))
    }

    /// The keys that are attached to a lease. `None` if it has expired.
    pub(crate) async fn lease_keys(
        &self,
        lease: i64,
    ) -> Result<Option<Vec<Vec<u8>>>, RequestError> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        Ok(self.lease(lease, options).await?.map(|(_, keys)| keys))
    }

    async fn lease(
        &self,
        lease: i64,
        options: LeaseTimeToLiveOptions,
    ) -> Result<Option<(Duration, Vec<Vec<u8>>)>, RequestError> {
        let send = |on: Arc<Connection>| async move {
            on.lease.clone().time_to_live(lease, Some(options)).await
        };
        match self
            .request_at_once(|| "asking about a session".into(), send)
            .await
        {
            Ok(reply) if reply.ttl() < 0 => Ok(None),
            Ok(reply) => {
                let keys = reply.keys().iter().map(|key| key.to_vec()).collect();
                Ok(Some((whole_seconds(reply.ttl()), keys)))
            }
            Err(failed) if failed.lease_expired => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// A watch that sees every change from now on, and the connection that it runs over.
    pub(crate) async fn watch(
        &self,
        key: &[u8],
        options: WatchOptions,
    ) -> Result<(Arc<Connection>, Watch)> {
        let open = |on: Arc<Connection>| async move {
            let watch = on.watches.open(key, options, false).await?;
            Ok((on, watch))
        };
        Ok(self.request(|| "watching".into(), open).await?)
    }

    /// Watches the deletion of each of these keys (for a release notice: the put), in their order, all over one connection. A
    /// watch may be one that was kept from an earlier use.
    pub(crate) async fn watch_each(&self, keys: &[&[u8]]) -> Result<(Arc<Connection>, Vec<Watch>)> {
        let open = |on: Arc<Connection>| async move {
            let all = keys.iter().map(|key| {
                let unwanted = match is_release_notice(key) {
                    true => WatchFilterType::NoDelete,
                    false => WatchFilterType::NoPut,
                };
                let options = WatchOptions::new().with_filters([unwanted]);
                on.watches.open(key, options, true)
            });
            let watches = futures_util::future::try_join_all(all).await?;
            Ok((on, watches))
        };
        Ok(self.request(|| "watching".into(), open).await?)
    }
}

fn whole_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
