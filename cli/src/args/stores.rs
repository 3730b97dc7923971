//! What is done to whole stores.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Read the file and say what is wrong with it, without connecting to anything
    Check(ConfigCheck),
}

#[derive(Args, Debug)]
pub(crate) struct ConfigCheck {
    /// Connect to each store, too
    #[arg(long)]
    pub(crate) connect: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Print a JSON array; with --watch one on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// Look again every 2 seconds
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// While no program runs: raise the tokens of store TO above those of store FROM, so that fences go on
    Offline {
        /// The store that the programs used: its URL, or @NAME
        from: String,
        /// The store that they will use, likewise
        to: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Shards {
    /// Write the records that say which store is which shard of the set of --store: once, before its first lock is taken
    Init,
}
