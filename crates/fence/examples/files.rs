//! A file that refuses late holders: the marks are in a file next to it, and on the disk before a holder passes.
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
        // The file is opened for each write, because another process writes here, too. A single process can keep the
        // file open.
        let fence = Highest::open(self.0.join("marks"))?;
        fence.write(holder, || fs::write(self.0.join("ledger"), text))??;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    story::run(&Files(place.clone().into()), &place).await
}
