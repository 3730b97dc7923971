//! Three replicas, one of them down: a holder marks a majority, and then writes to a majority.
//!
//! `cargo run -p fencelock-fence --example replicas -- DIRECTORY`

mod story;

use std::fs;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use fencelock::Sequencer;
use fencelock_fence::{FenceError, Highest, Quorum, Replica};
use story::{Ledger, Result};

/// A directory. A real replica would be on another machine.
struct Directory(PathBuf);

impl Directory {
    fn marks(&self) -> Result<Highest, FenceError> {
        Highest::open(self.0.join("marks"))
    }
}

#[async_trait]
impl Replica<String> for Directory {
    async fn mark(&self, holder: &Sequencer) -> Result<(), FenceError> {
        self.marks()?.mark(holder)
    }

    async fn write(&self, holder: &Sequencer, text: &String) -> Result<(), FenceError> {
        // Store the token, by which readers find the latest value.
        let entry = format!("{} {text}", holder.token);
        let write = || fs::write(self.0.join("ledger"), entry);
        let written = self.marks()?.write(holder, write)?;
        written.map_err(|cause| FenceError::write(self.0.display().to_string(), "write", cause))
    }
}

struct Replicas(Quorum<Directory>);

impl Ledger for Replicas {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        Ok(self.0.write(holder, text.to_owned()).await?)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    let directories = ["a", "b", "away"].map(|part| Path::new(&place).join(part));
    for there in &directories[..2] {
        fs::create_dir_all(there)?;
    }
    let replicas = Quorum::new(directories.map(Directory));
    story::run(&Replicas(replicas), &place).await
}
