//! A fence in etcd: a transaction that compares the revision of the marks and contains the holder's writes.

use etcd_client::{Compare, CompareOp, GetOptions, KvClient, Txn, TxnOp, TxnOpResponse};
use fencelock_core::Sequencer;

use crate::error::{FenceError, Result};
use crate::marks::Marks;

/// A fence at one key. The marks are its value.
///
/// ```no_run
/// # use fencelock_fence::etcd::EtcdFence;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let client = etcd_client::Client::connect(["localhost:2379"], None).await?;
/// let fence = EtcdFence::new("ledger/fence");
/// let put = etcd_client::TxnOp::put("ledger/entry", "by 34", None);
/// fence.write(&mut client.kv_client(), &holder, vec![put]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EtcdFence {
    key: String,
}

impl EtcdFence {
    /// A fence whose marks are at `key`.
    ///
    /// ```
    /// # use fencelock_fence::etcd::EtcdFence;
    /// let fence = EtcdFence::new("ledger/fence");
    /// ```
    #[must_use]
    pub fn new(key: &str) -> Self {
        let key = key.to_owned();
        Self { key }
    }

    /// Runs `writes` in one step with the marks, if the holder passes. Without writes it only raises the marks. Returns the
    /// responses to the writes.
    ///
    /// It takes one read and one transaction, and more only if other holders pass at the same time.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded: nothing was written. [`FenceError::Write`] for errors of etcd;
    /// if the response was lost, the writes may have taken effect. [`FenceError::Damaged`] if the key has another value than
    /// marks.
    ///
    /// # Cancel safety
    /// If dropped, the writes may take effect.
    ///
    /// ```no_run
    /// # use fencelock_fence::etcd::EtcdFence;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let client = etcd_client::Client::connect(["localhost:2379"], None).await?;
    /// let fence = EtcdFence::new("ledger/fence");
    /// // Only the marks:
    /// fence.write(&mut client.kv_client(), &holder, Vec::new()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(
        &self,
        client: &mut KvClient,
        sequencer: &Sequencer,
        writes: Vec<TxnOp>,
    ) -> Result<Vec<TxnOpResponse>> {
        let failed = |error: etcd_client::Error| FenceError::write(&self.key, "write", error);
        loop {
            let found = client.get(&*self.key, None::<GetOptions>).await;
            let found = found.map_err(failed)?;
            let (before, revision) = match found.kvs().first() {
                Some(stored) => (self.parse(stored.value())?, stored.mod_revision()),
                None => (Marks::default(), 0),
            };
            let after = before.judge(sequencer)?;
            let mut all = Vec::with_capacity(writes.len() + 1);
            if after != before {
                all.push(TxnOp::put(&*self.key, after.to_string(), None));
            }
            let own = all.len();
            all.extend(writes.iter().cloned());
            let unchanged = Compare::mod_revision(&*self.key, CompareOp::Equal, revision);
            let txn = Txn::new().when([unchanged]).and_then(all);
            let done = client.txn(txn).await.map_err(failed)?;
            if done.succeeded() {
                return Ok(done.op_responses().split_off(own));
            }
        }
    }

    fn parse(&self, stored: &[u8]) -> Result<Marks> {
        let text = String::from_utf8_lossy(stored);
        text.parse()
            .map_err(|why: String| FenceError::damaged(&self.key, why))
    }
}
