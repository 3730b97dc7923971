//! A file that refuses who is late: the marks are a file beside it, on the disk before a holder passes.
//!
//! `cargo run -p fencelock-fence --example files -- DIRECTORY`

mod story;

use std::fs;
use std::path::PathBuf;

use fencelock::Sequencer;
use fencelock_fence::Highest;
use story::{Ledger, Result};

struct Files(PathBuf);

impl Ledger for Files {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        // Opened for each write, since another process writes here, too. One that has the file to itself keeps it open.
        let fence = Highest::open(self.0.join("marks"))?;
        fence.write(holder, || fs::write(self.0.join("ledger"), text))??;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    story::tell(&Files(place.clone().into()), &place).await
}
