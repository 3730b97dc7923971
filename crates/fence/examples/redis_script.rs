//! A script on Redis or Valkey that refuses late holders, and runs the holder's commands in the same step.
//!
//! `cargo run -p fencelock-fence --features redis --example redis_script -- redis://127.0.0.1:6379`

mod story;

use fencelock::Sequencer;
use fencelock_fence::redis::RedisFence;
use redis::aio::MultiplexedConnection;
use redis::{Client, cmd};
use story::{Ledger, Result};

struct Server(MultiplexedConnection);

impl Ledger for Server {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        // In a Cluster both keys must be in one slot, so they have the same hash tag.
        let fence = RedisFence::new("{ledger}:fence");
        let mut set = cmd("SET");
        set.arg("{ledger}:entry").arg(text);
        let mut count = cmd("INCR");
        count.arg("{ledger}:writes");
        let keys = ["{ledger}:entry", "{ledger}:writes"];
        let mut connection = self.0.clone();
        fence
            .write(&mut connection, holder, &keys, &[set, count])
            .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    let client = Client::open(&*place)?;
    let connection = client.get_multiplexed_async_connection().await?;
    story::run(&Server(connection), &place).await
}
