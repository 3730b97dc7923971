//! A multi in ZooKeeper that refuses late holders, and contains the holder's writes.
//!
//! `cargo run -p fencelock-fence --features zookeeper --example zookeeper_multi -- 127.0.0.1:2181`

mod story;

use std::time::Duration;

use fencelock::Sequencer;
use fencelock_fence::zookeeper::ZooKeeperFence;
use story::{Ledger, Result};
use zookeeper_client::{Acls, Client, CreateMode, Error};

struct Nodes(Client);

impl Nodes {
    async fn open(address: &str) -> Result<Self> {
        // Long enough that the sleeper's session has not ended when it wakes up.
        let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
        let client = connector.connect(address).await?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create("/ledger", b"", &options).await {
            Ok(_) | Err(Error::NodeExists) => Ok(Self(client)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Ledger for Nodes {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        let fence = ZooKeeperFence::new("/ledger/fence");
        fence
            .write(&self.0, holder, |multi| {
                multi.add_set_data("/ledger", text.as_bytes(), None)
            })
            .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    story::run(&Nodes::open(&place).await?, &place).await
}
