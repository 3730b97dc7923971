//! `hold`: a lock for scripts that do their work outside: held until standard input ends or a signal comes.

use std::io::{self, Read};
use std::time::Duration;

use fencelock::Release;
use tokio::sync::oneshot;

use crate::args::Hold;
use crate::exit::{Failure, Outcome, code, say, write_out};
use crate::json;
use crate::session::{self, Session};
use crate::signals::Signals;

/// Why a hold ends.
enum End {
    /// Its user wants so.
    Wanted,
    /// The lock is lost, or no longer wanted by the rules that were given.
    Lost(String),
}

pub(crate) async fn hold(args: Hold, store: Option<String>) -> Outcome {
    let times = args.taking.times()?;
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let session = session::take(&args.taking, &times, &args.name, store, &mut signals).await?;
    let Session { client, guard } = session;
    let held = async {
        let sequencer = guard.sequencer().await?;
        print(&json::granted(&guard, &sequencer, times.ttl))?;
        let end = tokio::select! {
            biased;
            reason = guard.lost() => End::Lost(reason.to_string()),
            _ = signals.next_end() => End::Wanted,
            () = stdin_ended()? => End::Wanted,
            () = over(times.max_hold) => End::Lost("--max-hold is over".to_owned()),
            failure = tell_asked(&guard) => return Err(failure),
        };
        match end {
            End::Wanted => Ok(code::DONE),
            End::Lost(reason) => {
                print(&json::lost(&reason))?;
                Err(Failure::new(
                    code::LOST,
                    format!("lock {}: {reason}", args.name),
                ))
            }
        }
    };
    let outcome = held.await;
    let released = tokio::time::timeout(session::CLOSING, guard.release()).await;
    session::close(&client).await;
    match released {
        Ok(Ok(Release::NotOwner | Release::AlreadyExpired)) if outcome.is_ok() => {
            let reason = "it was not held any more when it was to be released";
            // Whoever has ended the hold may not read any more; the exit code says it, too.
            let _ = print(&json::lost(reason));
            let text = format!("lock {}: {reason}", args.name);
            Err(Failure::new(code::LOST, text))
        }
        Ok(Err(error)) if args.taking.verbose => {
            say(&format!("{error}; the lock is free after its lease"));
            outcome
        }
        _ => outcome,
    }
}

/// Says when somebody asks for the lock; ends only when that cannot be said.
async fn tell_asked(guard: &fencelock::Guard) -> Failure {
    guard.asked_to_release().await;
    match print(&json::asked()) {
        Ok(()) => std::future::pending().await,
        Err(failure) => failure,
    }
}

/// A line on standard output. If nobody reads it, nobody can know of the lock.
fn print(line: &str) -> Result<(), Failure> {
    write_out(&format!("{line}\n"))
        .map_err(|error| Failure::internal("writing to standard output", error))
}

async fn over(max_hold: Option<Duration>) {
    match max_hold {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
    }
}

/// Returns when standard input has come to its end. It is read on a thread of its own, since a read cannot be dropped.
fn stdin_ended() -> Result<impl Future<Output = ()>, Failure> {
    let (tell, told) = oneshot::channel::<()>();
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
        drop(tell);
    };
    let thread = std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(read);
    thread.map_err(|error| Failure::internal("starting a thread", error))?;
    Ok(async move { drop(told.await) })
}
