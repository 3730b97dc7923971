//! `hold`: holds a lock until standard input ends or a signal arrives, for scripts that do the work themselves.

use std::io::{self, Read};
use std::time::Duration;

use fencelock::Release;
use tokio::sync::oneshot;

use crate::acquire::{self, Held, How};
use crate::args::Hold;
use crate::exit::{Failure, Outcome, code, say, write_out};
use crate::json;
use crate::signals::Signals;
use crate::store::{self, Wanted};

/// Why a hold ends.
enum End {
    /// The user has ended it.
    Requested,
    /// The lock is lost, or `--max-hold` is over.
    Lost(String),
}

pub(crate) async fn hold(args: Hold, store: Wanted) -> Outcome {
    let times = args.options.times()?;
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let held = acquire::acquire(
        &args.options.acquire,
        &times,
        &args.name,
        store,
        How::default(),
        &mut signals,
    )
    .await?;
    let Held { client, guard } = held;
    let holding = async {
        let sequencer = guard.sequencer().await?;
        print(&json::granted(&guard, &sequencer, times.ttl))?;
        let end = tokio::select! {
            biased;
            reason = guard.lost() => End::Lost(reason.to_string()),
            _ = signals.next_end() => End::Requested,
            () = stdin_ended()? => End::Requested,
            () = max_hold_over(times.max_hold) => End::Lost("--max-hold is over".to_owned()),
            failure = report_asked(&guard) => return Err(failure),
        };
        match end {
            End::Requested => Ok(code::DONE),
            End::Lost(reason) => {
                print(&json::lost(&reason))?;
                Err(Failure::new(
                    code::LOST,
                    format!("lock {}: {reason}", args.name),
                ))
            }
        }
    };
    let outcome = holding.await;
    let released = tokio::time::timeout(store::CLOSE_TIMEOUT, guard.release()).await;
    store::close(&client).await;
    match released {
        Ok(Ok(Release::NotOwner | Release::AlreadyExpired)) if outcome.is_ok() => {
            let reason = "its release found that it was not held any more";
            // The reader may be gone. The exit code says the same.
            let _ = print(&json::lost(reason));
            let text = format!("lock {}: {reason}", args.name);
            Err(Failure::new(code::LOST, text))
        }
        Ok(Err(error)) if args.options.acquire.verbose => {
            say(&format!("{error}; the lock is free when its lease ends"));
            outcome
        }
        _ => outcome,
    }
}

/// Prints when somebody asks for the lock. Returns only if printing fails.
async fn report_asked(guard: &fencelock::Guard) -> Failure {
    guard.asked_to_release().await;
    match print(&json::asked()) {
        Ok(()) => std::future::pending().await,
        Err(failure) => failure,
    }
}

/// Prints a line on standard output. A closed pipe is a failure here: the reader would not know of the lock.
fn print(line: &str) -> Result<(), Failure> {
    write_out(&format!("{line}\n"))
        .map_err(|error| Failure::internal("writing to standard output", error))
}

async fn max_hold_over(max_hold: Option<Duration>) {
    match max_hold {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
    }
}

/// Returns when standard input ends. A thread of its own reads it, since a blocking read cannot be cancelled.
fn stdin_ended() -> Result<impl Future<Output = ()>, Failure> {
    let (sender, ended) = oneshot::channel::<()>();
    let read = move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = [0; 4096];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        drop(sender);
    };
    let thread = std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(read);
    thread.map_err(|error| Failure::internal("starting a thread", error))?;
    Ok(async move { drop(ended.await) })
}
