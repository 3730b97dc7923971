//! A complete fence, with the crate `fencelock` alone: a file that refuses late holders.
//!
//! `cargo run -p fencelock-fence --example complete`, in a directory where it may write.

use std::error::Error;
use std::fs;
use std::time::Duration;

use fencelock::Sequencer;
use fencelock::fence::Highest;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// What the lock protects. The marks of the fence are in a file next to it.
struct Ledger {
    fence: Highest,
}

impl Ledger {
    fn open() -> Result<Self> {
        let fence = Highest::open("ledger.marks")?;
        Ok(Self { fence })
    }

    /// Checks the holder and writes, in one step: no later holder passes before the write is done.
    fn write(&self, holder: &Sequencer, entry: &str) -> Result<()> {
        self.fence
            .write(holder, || fs::write("ledger.txt", entry))??;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let ledger = Ledger::open()?;
    // Two clients, as if they were two processes.
    let first = fencelock::connect("sqlite:locks.db").await?;
    let second = fencelock::connect("sqlite:locks.db").await?;

    // The sleeper does not renew, as if its process were paused.
    let ttl = Duration::from_millis(500);
    let sleeper = first.lock("ledger").ttl(ttl).renew(false).await?;
    let late = sleeper.sequencer().await?;

    // The successor is granted the lock when the sleeper's lease is over.
    let successor = second.lock("ledger").await?;
    ledger.write(&successor.sequencer().await?, "by the successor")?;

    // The sleeper wakes up.
    match ledger.write(&late, "by the sleeper") {
        Ok(()) => return Err("the fence let a late holder pass".into()),
        Err(refusal) => println!("refused: {refusal}"),
    }
    successor.release().await?;
    first.close().await?;
    second.close().await?;
    Ok(())
}
