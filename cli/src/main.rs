//! The `fencelock` command.

mod acquire;
mod args;
mod away;
mod command;
mod config;
mod descriptor;
mod doctor;
mod environment;
mod exit;
mod grant;
mod group;
mod hold;
mod inspect;
mod job;
mod joined;
mod json;
mod keyed;
mod launch;
mod manual;
mod migrate;
mod migrate_live;
#[cfg(feature = "serve")]
mod notify;
#[cfg(feature = "serve")]
mod open_files;
mod progress;
mod report;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod signals;
mod status;
mod store;
mod supervisor;
mod take;
mod terminal;
#[cfg(feature = "serve")]
mod warnings;
mod wire;

use std::panic;
use std::process::exit;

use clap::Parser;
use clap::error::{ContextValue, ErrorKind};
use fencelock::StoreUrl;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Cli, Command, Config, Migrate, Set, Shards};
use crate::exit::{Failure, Outcome, code, print, say};
use crate::store::Wanted;

/// The lock service allocates for each request, and this allocator is faster at it than the system's (docs/benchmarks.md).
#[cfg(feature = "serve")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    panic::set_hook(Box::new(|info| {
        if is_closed_pipe(info) {
            // `println!`, which the benchmark uses, can only panic. A reader that has closed the pipe is no failure.
            exit(code::DONE.into());
        }
        say(&format!("internal error: {info}"));
    }));
    let code = panic::catch_unwind(|| match start() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    });
    // Exits without waiting for other threads: at most one that reads standard input is left.
    exit(code.unwrap_or(code::INTERNAL).into());
}

/// Whether the panic is about standard output that was closed by its reader.
fn is_closed_pipe(info: &panic::PanicHookInfo<'_>) -> bool {
    info.payload().downcast_ref::<String>().is_some_and(|text| {
        text.starts_with("failed printing to stdout") && text.contains("Broken pipe")
    })
}

fn start() -> Outcome {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next_if(|word| word == supervisor::WORD).is_some() {
        return supervisor::main(words)
            .map(|()| code::DONE)
            .map_err(|error| Failure::internal("the supervisor process", error));
    }
    if words.next_if(|word| word == launch::WORD).is_some() {
        return launch::main(words);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let store = Wanted {
        store: cli.store,
        config: cli.config,
    };
    match cli.command {
        Command::Completions { shell } => manual::completions(shell),
        Command::Man => manual::man(),
        Command::Schema { kind } => schema(&kind),
        Command::Bench(args) => block_on(bench(args, store)),
        #[cfg(feature = "torture")]
        Command::Torture(args) => block_on(torture(args, store)),
        #[cfg(not(feature = "torture"))]
        Command::Torture { .. } => Err(Failure::usage(
            "this build has no `torture`; build with the cargo feature `torture`",
        )),
        #[cfg(feature = "serve")]
        Command::Serve(args) => block_on_all_cores(serve::serve(args, store)),
        #[cfg(not(feature = "serve"))]
        Command::Serve { .. } => Err(Failure::usage(
            "this build has no `serve`; build with the cargo feature `serve`",
        )),
        Command::Run(args) => block_on(run::run(args, store)),
        Command::Hold(args) => block_on(hold::hold(args, store)),
        Command::Take(args) => block_on(take::take(args, store)),
        Command::Renew(args) => block_on(take::renew(args, store)),
        Command::Shards(Shards::Init) => block_on(init_shards(store)),
        Command::Config(Config::Check(args)) => block_on(config::check(args, store)),
        Command::Status(args) => block_on(status::status(args, store)),
        Command::Migrate(Migrate::Offline { from, to }) => {
            block_on(migrate::offline(&from, &to, store))
        }
        Command::Set(Set::Dissolve) => block_on(migrate_live::dissolve(store)),
        Command::Migrate(live) => block_on(migrate_live::migrate(live, store)),
        Command::Doctor(args) => block_on(doctor::doctor(args, store)),
        Command::Show(args) => block_on(inspect::show(args, store)),
        Command::Ls(args) => block_on(inspect::ls(args, store)),
        Command::Check(args) => block_on(inspect::check(args, store)),
        Command::Release(args) => block_on(inspect::release(args, store)),
    }
}

fn schema(kind: &str) -> Outcome {
    let Some(schema) = fencelock::schema(kind) else {
        let known = fencelock::schemas();
        let known = match known.is_empty() {
            true => "this build has no schemas".to_owned(),
            false => format!("this build has schemas for {}", known.join(", ")),
        };
        return Err(Failure::usage(format!(
            "no schema for {:?}; {known}",
            StoreUrl::redacted(kind)
        )));
    };
    print(&schema)?;
    Ok(code::DONE)
}

async fn init_shards(store: Wanted) -> Outcome {
    fencelock::init(store.resolve()?.url).await?;
    Ok(code::DONE)
}

async fn bench(args: fencelock_bench::Args, store: Wanted) -> Outcome {
    fencelock_bench::command(&args, &store.resolve()?.url, &["bench"]).await?;
    Ok(code::DONE)
}

#[cfg(feature = "torture")]
async fn torture(args: fencelock_torture::Args, store: Wanted) -> Outcome {
    use fencelock_torture::Failed;
    let store = store.resolve()?.url;
    match fencelock_torture::command(&args, &store, &["torture"]).await {
        Ok(true) => Ok(code::DONE),
        Ok(false) => Ok(code::HELD),
        Err(Failed::Usage(why)) => Err(Failure::usage(why)),
        Err(Failed::Store(error)) => Err(error.into()),
        Err(Failed::Other(why)) => Err(Failure::new(code::UNAVAILABLE, why)),
    }
}

/// For the service, which runs no command and uses no terminal.
#[cfg(feature = "serve")]
fn block_on_all_cores(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("starting the async runtime", error))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    // Called before any thread is started, so that every thread inherits it.
    terminal::shield().map_err(|error| Failure::internal("blocking a signal", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("starting the async runtime", error))?;
    let outcome = runtime.block_on(async {
        // The parent process may have set SIGCHLD to be ignored, and then no child can be waited for. A handler resets
        // that, also for the processes that are started here.
        let _children = signal(SignalKind::child())
            .map_err(|error| Failure::internal("listening for the end of children", error))?;
        work.await
    });
    runtime.shutdown_background();
    outcome
}

/// Prints the parser's help as it is, and its errors in one line.
fn usage(error: &clap::Error) -> Outcome {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        print(&error.render().to_string())?;
        return Ok(code::DONE);
    }
    let mut text = error.render().to_string();
    for (_, value) in error.context() {
        // The value may be a store URL in the wrong place, with a password in it.
        if let ContextValue::String(word) = value
            && word.contains('@')
        {
            text = text.replace(word, &StoreUrl::redacted(word));
        }
    }
    // The first paragraph is the error. The usage and hints follow.
    let first = text.split("\n\n").next().unwrap_or(&text);
    let what = first.strip_prefix("error: ").unwrap_or(first);
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let what = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "a subcommand is missing".to_owned()
    } else {
        what
    };
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let words = usage.unwrap_or("fencelock").split_whitespace();
    let command: Vec<&str> = words
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    let command = command.join(" ");
    Err(Failure::usage(format!("{what}; see `{command} --help`")))
}
