//! The command line.

mod stores;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fencelock::{Error, parse_duration};

pub(crate) use stores::{
    Config, ConfigCheck, Migrate, MigrateBegin, MigrateFinish, MigrateGo, MigratePrepare,
    MigrateStatus, Set, Shards, Status,
};

/// The default of `--ttl`.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The default of `--kill-after`.
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

/// A distributed lock with fencing tokens, on the servers you already run.
#[derive(Debug, Parser)]
#[command(name = "fencelock", version, arg_required_else_help = false)]
pub(crate) struct Cli {
    /// The URL of the store, such as sqlite:PATH or redis://HOST:PORT, or @NAME, a store of the configuration file [default:
    /// $FENCELOCK_STORE, else for `serve` the store of its configuration file, else sqlite:, a file of the current user]
    #[arg(long, value_name = "URL", global = true, hide_default_value = true)]
    pub(crate) store: Option<String>,

    /// The configuration file: the stores with names, and the settings of the service [default: for `serve`
    /// $FENCELOCK_SERVE_CONFIG, else $FENCELOCK_CONFIG, else /etc/fencelock/fencelock.toml]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(
        override_usage = "fencelock run [OPTIONS] NAME -- CMD [ARG]...\n       \
                                fencelock run [OPTIONS] NAME -c 'SHELL STRING'"
    )]
    Run(Run),
    /// Hold a lock until standard input ends or a signal arrives
    Hold(Hold),
    /// Take a lock and leave it taken: for steps that are separate processes
    Take(Take),
    /// Prolong the hold of a grant that `take` wrote, and say for how long it is valid now
    Renew(GrantOptions),
    /// Show who holds a lock and who waits for it
    Show(Show),
    /// List the locks that are held
    Ls(Ls),
    /// Exit with 0 if the grant of a sequencer is still held, else with 1
    Check(Check),
    /// Release the hold of a grant, or a lock by force, or ask its holder to release it
    #[command(override_usage = "fencelock release --grant FILE\n       \
                                fencelock release NAME --token N [--ask]")]
    Release(Release),
    /// Report what the store promises, what is wrong with its configuration, and what to change
    Doctor(Doctor),
    /// Show all stores of the configuration file, one line for each
    Status(Status),
    /// The configuration file
    #[command(subcommand)]
    Config(Config),
    /// Make a set of stores, which share the names of locks among them
    #[command(subcommand)]
    Shards(Shards),
    /// Move locks from one store to another
    #[command(subcommand)]
    Migrate(Migrate),
    /// A set of stores as a whole
    #[command(subcommand)]
    Set(Set),
    /// Measure the store, with its plain client library for comparison
    Bench(fencelock_bench::Args),
    /// Serve locks over HTTP, for programs in any language
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Serve locks over HTTP, for programs in any language (not in this build)
    #[cfg(not(feature = "serve"))]
    Serve {
        /// Any arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        words: Vec<OsString>,
    },
    /// Inject faults into a store and check what its clients believed
    #[cfg(feature = "torture")]
    Torture(fencelock_torture::Args),
    /// Inject faults into a store and check what its clients believed (not in this build)
    #[cfg(not(feature = "torture"))]
    Torture {
        /// Any arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        words: Vec<OsString>,
    },
    /// Print the SQL that creates a store's tables, for a user who may create tables
    Schema {
        /// The kind of database: postgres, mysql
        kind: String,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// The options that `run`, `hold` and `take` share.
#[derive(Args, Debug)]
pub(crate) struct AcquireOptions {
    /// Fail at once if the lock is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Give up after this long; 0 means --nonblock
    #[arg(short = 'w', long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) wait: Option<String>,

    /// Acquire the lock in shared mode, together with other shared holders
    #[arg(short = 's', long, conflicts_with = "exclusive")]
    pub(crate) shared: bool,

    /// Acquire the lock in exclusive mode (the default)
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,

    /// The exit code if the lock is held by another
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::code::HELD)]
    pub(crate) conflict_exit_code: u8,

    /// How long the store keeps the lock without a renewal, as when this process dies [default: 30s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) ttl: Option<String>,

    /// How much longer the store keeps the lock when the lease ends without a release [default: 0]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<String>,

    /// Do not queue, but try again and again
    #[arg(long)]
    pub(crate) unfair: bool,

    /// A note, shown with the lock by `show` and `ls`
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// What the lock is for; correctness warns about what the store cannot promise [default: the `purpose` of a store in the
    /// configuration file, else efficiency]
    #[arg(long, value_enum)]
    pub(crate) purpose: Option<Purpose>,

    /// Print nothing while waiting, and nothing if the lock is held by another
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Print what happens
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// The options that `run` and `hold` share.
#[derive(Args, Debug)]
pub(crate) struct HoldOptions {
    #[command(flatten)]
    pub(crate) acquire: AcquireOptions,

    /// End after holding the lock for this long
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) max_hold: Option<String>,

    /// Keep the lock taken for this time, even if it is released before: for a job that must run once per period
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) at_least: Option<String>,

    /// The time from SIGTERM to SIGKILL when the command must end [default: 5s; if renewals fail, at most until the lease ends]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) kill_after: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) options: HoldOptions,

    /// The name of the lock
    pub(crate) name: String,

    /// What to do if the store is away: wait for it for as long as -w allows, fail at once, skip the command and exit with
    /// 0, or run it without a lock and without FENCELOCK_TOKEN [default: fail at the start, wait later]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) if_away: Option<IfAway>,

    /// Run this string with `$SHELL -c` instead of a command
    #[arg(short = 'c', long = "command", value_name = "SHELL STRING")]
    pub(crate) shell: Option<OsString>,

    /// The command and its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        required_unless_present = "shell",
        conflicts_with = "shell"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) options: HoldOptions,

    /// The name of the lock
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct Take {
    #[command(flatten)]
    pub(crate) options: AcquireOptions,

    /// Write the grant to this file, which only its user can read, and print it without its key; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: Option<PathBuf>,

    /// The name of the lock
    pub(crate) name: String,
}

/// The options of `renew`.
#[derive(Args, Debug)]
pub(crate) struct GrantOptions {
    /// The grant that `fencelock take` wrote; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: PathBuf,

    /// How long to repeat the request if the store does not answer [default: 10s]
    #[arg(short = 'w', long, value_name = "DUR", allow_hyphen_values = true)]
    pub(crate) wait: Option<String>,
}

impl GrantOptions {
    /// Reads `--wait`.
    pub(crate) fn patience(&self) -> Result<Option<Duration>, Error> {
        duration("--wait", self.wait.as_deref())
    }
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The name of the lock
    pub(crate) name: String,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,

    /// List the locks of all stores of the configuration file
    #[arg(long, conflicts_with = "store")]
    pub(crate) all: bool,

    /// Leave out the shards of a set that are away, say which, and exit with 69 if there are any
    #[arg(long)]
    pub(crate) partial: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The sequencer: printed by `fencelock hold`, set as $FENCELOCK_SEQUENCER by `fencelock run`
    pub(crate) sequencer: String,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The name of the lock
    #[arg(required_unless_present = "grant")]
    pub(crate) name: Option<String>,

    /// Release the hold of this grant, which `fencelock take` wrote; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "token", "ask"])]
    pub(crate) grant: Option<PathBuf>,

    /// With --grant: how long to repeat the request if the store does not answer [default: 10s]
    #[arg(
        short = 'w',
        long,
        value_name = "DUR",
        allow_hyphen_values = true,
        requires = "grant"
    )]
    pub(crate) wait: Option<String>,

    /// The holder's fencing token; a holder with another token keeps the lock. A grant of the library may have several
    /// tokens, for tasks of one process that hold the lock in turn; each of them means the whole grant
    #[arg(long, value_name = "N", required_unless_present = "grant")]
    pub(crate) token: Option<u64>,

    /// Ask the holder to release the lock instead of releasing it by force
    #[arg(long)]
    pub(crate) ask: bool,
}

impl Release {
    /// Reads `--wait`.
    pub(crate) fn patience(&self) -> Result<Option<Duration>, Error> {
        duration("--wait", self.wait.as_deref())
    }
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// What the locks are for [default: the `purpose` of a store in the configuration file, else correctness]
    #[arg(long, value_enum)]
    pub(crate) purpose: Option<Purpose>,

    /// Look at all stores of the configuration file
    #[arg(long, conflicts_with = "store")]
    pub(crate) all: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "serve")]
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,

    /// The address and port to listen on; port 0 means a free port, which is printed; may be repeated [default:
    /// $FENCELOCK_SERVE_LISTEN, else the file's, else 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<std::net::SocketAddr>,

    /// Serve other machines even without TLS or without credentials
    #[arg(long)]
    pub(crate) insecure: bool,

    /// The URL under which clients reach this replica [default: $FENCELOCK_SERVE_ADVERTISE, else the file's]
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,

    /// Another name of this service that requests may ask for, such as that of a balancer; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,

    /// How long shutting down may take; until then the service answers renewals and releases [default: the file's, else 20s]
    #[arg(long, value_name = "DUR")]
    pub(crate) drain: Option<String>,

    /// What the locks are for; correctness warns about what the store cannot promise [default: the file's, else
    /// correctness]
    #[arg(long, value_enum)]
    pub(crate) purpose: Option<Purpose>,
}

#[cfg(feature = "serve")]
#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// Draw a bearer token, and print it with the lines for the configuration file
    Token {
        /// The name of the principal
        name: String,
    },
}

#[cfg(feature = "serve")]
impl Serve {
    /// Reads `--drain`.
    pub(crate) fn drain(&self) -> Result<Option<Duration>, Error> {
        duration("--drain", self.drain.as_deref())
    }
}

/// What `run` does if the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfAway {
    /// Wait for it
    Wait,
    /// Exit with 69
    Fail,
    /// Do not run the command, say so, and exit with 0
    Skip,
    /// Run the command without a lock, with a warning
    Run,
}

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// A rare double run only wastes work
    Efficiency,
    /// A double run does damage
    Correctness,
}

impl From<Purpose> for fencelock::Purpose {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Efficiency => Self::Efficiency,
            Purpose::Correctness => Self::Correctness,
        }
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    Until(Duration),
    Endless,
}

/// The durations of [`AcquireOptions`] and [`HoldOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) patience: Patience,
    pub(crate) ttl: Duration,
    pub(crate) lock_delay: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) kill_after: Duration,
}

impl AcquireOptions {
    /// Reads the durations.
    pub(crate) fn times(&self) -> Result<Times, Error> {
        let ttl = longer_than_zero("--ttl", self.ttl.as_deref())?;
        let patience = match duration("--wait", self.wait.as_deref())? {
            _ if self.nonblock => Patience::None,
            Some(Duration::ZERO) => Patience::None,
            Some(most) => Patience::Until(most),
            None => Patience::Endless,
        };
        let lock_delay = duration("--lock-delay", self.lock_delay.as_deref())?;
        Ok(Times {
            patience,
            ttl: ttl.unwrap_or(DEFAULT_TTL),
            lock_delay: lock_delay.unwrap_or_default(),
            max_hold: None,
            at_least: None,
            kill_after: DEFAULT_KILL_AFTER,
        })
    }
}

impl HoldOptions {
    /// Reads the durations.
    pub(crate) fn times(&self) -> Result<Times, Error> {
        let times = self.acquire.times()?;
        let max_hold = longer_than_zero("--max-hold", self.max_hold.as_deref())?;
        let at_least = duration("--at-least", self.at_least.as_deref())?;
        if let (Some(least), Some(most)) = (at_least, max_hold)
            && least > most
        {
            let text = self.at_least.as_deref().unwrap_or_default();
            let why = "it must not be longer than --max-hold";
            return Err(Error::invalid("--at-least", text, why));
        }
        let kill_after = duration("--kill-after", self.kill_after.as_deref())?;
        Ok(Times {
            max_hold,
            at_least,
            kill_after: kill_after.unwrap_or(times.kill_after),
            ..times
        })
    }
}

fn longer_than_zero(what: &'static str, text: Option<&str>) -> Result<Option<Duration>, Error> {
    let value = duration(what, text)?;
    match value {
        Some(Duration::ZERO) => {
            let text = text.unwrap_or_default();
            Err(Error::invalid(what, text, "it must be longer than 0"))
        }
        value => Ok(value),
    }
}

fn duration(what: &'static str, text: Option<&str>) -> Result<Option<Duration>, Error> {
    text.map(|text| parse_duration(what, text)).transpose()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(line: &str) -> Result<Run, clap::Error> {
        let words = ["fencelock", "run"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(words)?.command {
            Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clap_accepts_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_words_after_the_name_are_the_command() {
        let with = run("-n x -- ls -l --store a").unwrap();
        assert_eq!(with.command, ["ls", "-l", "--store", "a"]);
        let without = run("x ls -l -n").unwrap();
        assert_eq!(without.command, ["ls", "-l", "-n"]);
        assert!(!without.options.acquire.nonblock);
        assert_eq!(run("x -c true").unwrap().shell, Some("true".into()));
        assert!(run("x").is_err());
        assert!(run("x -c true -- true").is_err());
    }

    #[test]
    fn the_store_may_stand_before_or_after_the_subcommand() {
        for line in ["--store a: run x true", "run --store a: x -- true"] {
            let words = ["fencelock"].into_iter().chain(line.split(' '));
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(cli.store.as_deref(), Some("a:"), "{line}");
        }
    }

    #[test]
    fn times_are_read_and_checked() {
        let times = run("-w 2 --ttl 1500ms x true").unwrap().options.times();
        let times = times.unwrap();
        assert_eq!(times.patience, Patience::Until(Duration::from_secs(2)));
        assert_eq!(times.ttl, Duration::from_millis(1500));
        let times = run("-w 0 x true").unwrap().options.times().unwrap();
        assert_eq!(times.patience, Patience::None);
        assert_eq!(times.ttl, DEFAULT_TTL);
        for bad in [
            "--ttl -1s",
            "--ttl 0",
            "--max-hold 0",
            "--max-hold 1s --at-least 2s",
            "-w -5",
            "--lock-delay x",
        ] {
            let times = run(&format!("{bad} x true")).unwrap().options.times();
            let error = times.unwrap_err().to_string();
            let input = bad.split(' ').next_back().unwrap();
            assert!(error.contains(input), "{error}");
        }
    }
}
