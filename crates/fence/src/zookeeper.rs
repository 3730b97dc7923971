//! A fence in ZooKeeper: a multi that checks the version of the marks and contains the holder's writes.

use fencelock_core::Sequencer;
use zookeeper_client::{
    Acls, Client, CreateMode, Error, MultiWriteError, MultiWriteResult, MultiWriter,
};

use crate::error::{FenceError, Result};
use crate::marks::Marks;

/// A fence at one node. The marks are its data. The first write creates the node; its parent must exist.
///
/// ```no_run
/// # use fencelock_fence::zookeeper::ZooKeeperFence;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let client = zookeeper_client::Client::connect("localhost:2181").await?;
/// let fence = ZooKeeperFence::new("/ledger/fence");
/// let written = fence.write(&client, &holder, |multi| multi.add_set_data("/ledger", b"by 34", None));
/// written.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ZooKeeperFence {
    path: String,
    acls: Acls<'static>,
}

impl ZooKeeperFence {
    /// A fence whose marks are at `path`. If it creates the node, every client may write to it; see
    /// [`ZooKeeperFence::acls`].
    ///
    /// ```
    /// # use fencelock_fence::zookeeper::ZooKeeperFence;
    /// let fence = ZooKeeperFence::new("/ledger/fence");
    /// ```
    #[must_use]
    pub fn new(path: &str) -> Self {
        let (path, acls) = (path.to_owned(), Acls::anyone_all());
        Self { path, acls }
    }

    /// The permissions of a node that the fence creates.
    ///
    /// ```
    /// use zookeeper_client::Acls;
    /// # use fencelock_fence::zookeeper::ZooKeeperFence;
    ///
    /// let fence = ZooKeeperFence::new("/ledger/fence").acls(Acls::creator_all());
    /// ```
    #[must_use]
    pub const fn acls(mut self, acls: Acls<'static>) -> Self {
        self.acls = acls;
        self
    }

    /// Runs the writes that `add` adds in one step with the marks, if the holder passes. If it adds none, the marks are only
    /// raised. Returns the results of the writes. `add` may be called more than once.
    ///
    /// It takes one read and one multi, and more only if other holders pass at the same time.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded: nothing was written. [`FenceError::Write`] for errors of
    /// ZooKeeper; if the connection was lost, the writes may have taken effect. [`FenceError::Damaged`] if the node has other
    /// data than marks.
    ///
    /// # Cancel safety
    /// If dropped, the writes may take effect.
    ///
    /// ```no_run
    /// # use fencelock_fence::zookeeper::ZooKeeperFence;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let client = zookeeper_client::Client::connect("localhost:2181").await?;
    /// let fence = ZooKeeperFence::new("/ledger/fence");
    /// // Only the marks:
    /// fence.write(&client, &holder, |_| Ok(())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(
        &self,
        client: &Client,
        sequencer: &Sequencer,
        add: impl Fn(&mut MultiWriter<'_>) -> std::result::Result<(), Error>,
    ) -> Result<Vec<MultiWriteResult>> {
        let failed = |error: Error| FenceError::write(&self.path, "write", error);
        loop {
            let found = match client.get_data(&self.path).await {
                Ok((data, stat)) => Some((self.parse(&data)?, stat.version)),
                Err(Error::NoNode) => None,
                Err(error) => return Err(failed(error)),
            };
            let before = found.map_or_else(Marks::default, |(marks, _)| marks);
            let after = before.judge(sequencer)?;
            let text = after.to_string();
            let mut multi = client.new_multi_writer();
            let added = match found {
                Some((_, version)) if after == before => {
                    multi.add_check_version(&self.path, version)
                }
                Some((_, version)) => {
                    multi.add_set_data(&self.path, text.as_bytes(), Some(version))
                }
                None => {
                    let options = CreateMode::Persistent.with_acls(self.acls);
                    multi.add_create(&self.path, text.as_bytes(), &options)
                }
            };
            added.map_err(failed)?;
            add(&mut multi).map_err(failed)?;
            match multi.commit().await {
                Ok(mut done) => {
                    drop(done.drain(..1));
                    return Ok(done);
                }
                // The first operation is the one on the marks: another holder passed meanwhile, or the read was out of
                // date.
                Err(MultiWriteError::OperationFailed { index: 0, source })
                    if matches!(
                        (found.is_some(), &source),
                        (true, Error::BadVersion | Error::NoNode) | (false, Error::NodeExists)
                    ) =>
                {
                    client.sync(&self.path).await.map_err(failed)?;
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    fn parse(&self, stored: &[u8]) -> Result<Marks> {
        let text = String::from_utf8_lossy(stored);
        text.parse()
            .map_err(|why: String| FenceError::damaged(&self.path, why))
    }
}
