//! A transaction in etcd that refuses late holders, and contains the holder's writes.
//!
//! `cargo run -p fencelock-fence --features etcd --example etcd_transaction -- 127.0.0.1:2379`

mod story;

use etcd_client::{Client, KvClient, TxnOp};
use fencelock::Sequencer;
use fencelock_fence::etcd::EtcdFence;
use story::{Ledger, Result};

struct Cluster(KvClient);

impl Ledger for Cluster {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        let fence = EtcdFence::new("ledger/fence");
        let put = TxnOp::put("ledger/entry", text, None);
        fence.write(&mut self.0.clone(), holder, vec![put]).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    let client = Client::connect([&*place], None).await?;
    story::run(&Cluster(client.kv_client()), &place).await
}
