//! What is done to whole stores.

use std::time::Duration;

use clap::{Args, Subcommand};
use fencelock::{Error, parse_duration};

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
    /// Write the first record in both stores, before programs are switched to the set
    Prepare(MigratePrepare),
    /// From now on, take each lock in both stores
    Begin(MigrateBegin),
    /// Show the phase of the move, and which programs were not switched to the set
    Status(MigrateStatus),
    /// Make the new store count; called again, leave the old one
    Finish(MigrateFinish),
    /// Go back to the old store alone, from any phase
    Abort(MigrateGo),
    /// While no program runs: raise the tokens of store TO above those of store FROM, so that fences go on
    Offline {
        /// The store that the programs used: its URL, or @NAME
        from: String,
        /// The store that programs will use: its URL, or @NAME
        to: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct MigratePrepare {
    /// The name of the set; with --from and --to, instead of --store
    #[arg(long, value_name = "NAME", requires = "from")]
    pub(crate) set: Option<String>,

    /// The store that programs use now: its URL, or @NAME. It may be a set of shards, if the other one is, too
    #[arg(long, value_name = "STORE", requires = "to")]
    pub(crate) from: Option<String>,

    /// The store that programs will use: its URL, or @NAME. It may be a set of shards, if the other one is, too
    #[arg(long, value_name = "STORE", requires = "from")]
    pub(crate) to: Option<String>,

    /// How long a program keeps a lock if it cannot read the set's record; the longest ttl is two thirds of it [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pace: Option<String>,

    /// The same for taking a lock during the move, and how long the pause lasts in which nothing is granted [default: 2s]
    #[arg(long, value_name = "DURATION")]
    tight: Option<String>,

    /// The longest lock-delay that programs may ask for; some steps take longer by it [default: 0s]
    #[arg(long, value_name = "DURATION")]
    lock_delay: Option<String>,

    /// End an earlier set of a store if its move is over
    #[arg(long)]
    pub(crate) replace: bool,

    /// A store has lost its record, or did not get it when `prepare` was interrupted: write it again
    #[arg(long)]
    pub(crate) record_lost: bool,
}

impl MigratePrepare {
    /// Pace, tight and the lock-delay.
    pub(crate) fn times(&self) -> Result<[Option<Duration>; 3], Error> {
        Ok([
            duration("--pace", self.pace.as_deref())?,
            duration("--tight", self.tight.as_deref())?,
            duration("--lock-delay", self.lock_delay.as_deref())?,
        ])
    }
}

#[derive(Args, Debug)]
pub(crate) struct MigrateBegin {
    /// Begin although `doctor` finds something in a store that can make it grant a lock twice
    #[arg(long)]
    pub(crate) despite_findings: bool,

    /// A store has lost its record: give it that of the other one
    #[arg(long)]
    pub(crate) record_lost: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateStatus {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateGo {
    /// How long to wait for holds in one store alone to end [default: 30s]
    #[arg(long, value_name = "DURATION")]
    patience: Option<String>,

    /// Go on only if there was none for this long [default: 0s]
    #[arg(long, value_name = "DURATION")]
    quiet: Option<String>,

    /// A store has lost its record: give it that of the other one
    #[arg(long)]
    pub(crate) record_lost: bool,
}

impl MigrateGo {
    /// Patience and quiet.
    pub(crate) fn times(&self) -> Result<[Option<Duration>; 2], Error> {
        Ok([
            duration("--patience", self.patience.as_deref())?,
            duration("--quiet", self.quiet.as_deref())?,
        ])
    }
}

#[derive(Args, Debug)]
pub(crate) struct MigrateFinish {
    #[command(flatten)]
    pub(crate) go: MigrateGo,

    /// End in this phase: 3, both stores with the new one counting, or 4, the new store alone. Without it, each call ends in
    /// the next one of them
    #[arg(long, value_name = "PHASE", value_parser = clap::value_parser!(u32).range(3..=4), conflicts_with = "old_is_destroyed")]
    pub(crate) to: Option<u32>,

    /// The old store is gone for good, and the set has this name: leave it without asking it
    #[arg(long, value_name = "SET")]
    pub(crate) old_is_destroyed: Option<String>,

    /// With --old-is-destroyed, before the new store counts: no token of the old store is above this one. The highest mark of
    /// the fences is such a token, with some room for tokens that were not used
    #[arg(long, value_name = "TOKEN", requires = "old_is_destroyed")]
    pub(crate) highest_token: Option<u64>,
}

fn duration(what: &'static str, text: Option<&str>) -> Result<Option<Duration>, Error> {
    text.map(|text| parse_duration(what, text)).transpose()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Set {
    /// End a set that is down to one store, so that programs use that store by itself
    Dissolve,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Shards {
    /// Write the records that say which store is which shard of the set of --store: once, before its first lock is taken
    Init,
}
