//! The store's record: a key for each scope. Its version is the revision of its last change.

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use fencelock_core::Result;
use fencelock_core::engine::{Record, RecordChange};

use crate::cluster::Cluster;
use crate::layout::RECORD;
use crate::txns::found;

impl Cluster {
    pub(crate) async fn record(
        &self,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record> {
        let key = format!("{RECORD}{scope}");
        let read = TxnOp::get(key.as_str(), None);
        let (action, txn) = match change {
            None => ("reading the record", Txn::new().and_then([read])),
            Some(RecordChange { from, text, .. }) => {
                let from = i64::try_from(*from).unwrap_or(i64::MAX);
                let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, from);
                let put = TxnOp::put(key.as_str(), text.as_str(), None);
                let txn = Txn::new().when([unchanged]);
                let txn = txn.and_then([put, read.clone()]).or_else([read]);
                ("changing the record", txn)
            }
        };
        let reply = self.txn(|| action.into(), txn).await?;
        let kvs = found(&reply).next().map(|(kvs, _)| kvs);
        Ok(kvs
            .and_then(|kvs| kvs.first().map(record_in))
            .unwrap_or_default())
    }
}

fn record_in(kv: &KeyValue) -> Record {
    let text = String::from_utf8_lossy(kv.value());
    Record::new(kv.mod_revision().unsigned_abs(), text)
}
