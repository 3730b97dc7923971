//! `run`: runs a command while holding a lock.

use std::time::Duration;

use fencelock::{BootInstant, Client, Clock, Guard, Release, in_words};
use tokio::time::{Instant, timeout_at};

use crate::acquire::{self, Held, How};
use crate::args::{IfAway, Run};
use crate::away;
use crate::command;
use crate::exit::{Failure, Outcome, code, say};
use crate::job;
use crate::joined;
use crate::signals::Signals;
use crate::store::{self, Wanted};

/// How long `run` tries to release a lock that is lost, or that will be before this time is over.
const RELEASE_AFTER_LOSS: Duration = Duration::from_millis(300);

pub(crate) async fn run(args: Run, store: Wanted) -> Outcome {
    let times = args.options.times()?;
    let words = command::words(&args);
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let acquire = &args.options.acquire;
    if args.if_away == Some(IfAway::Run) {
        let said = store.clone().resolve()?.purpose;
        let purpose = acquire.purpose.map(fencelock::Purpose::from).or(said);
        if purpose == Some(fencelock::Purpose::Correctness) {
            return Err(Failure::usage(
                "--if-away run does not go with the purpose correctness: the command would run without the lock that it needs; \
                 use wait, fail or skip",
            ));
        }
    }
    let how = How::if_away(args.if_away);
    let held = acquire::acquire(acquire, &times, &args.name, store, how, &mut signals).await;
    let Held { client, guard } = match (held, args.if_away) {
        (Ok(held), _) => held,
        (Err(failure), None) => return Err(failure),
        (Err(failure), Some(choice)) => {
            return away::instead(choice, failure, &args.name, &times, &words, &mut signals).await;
        }
    };
    let free_at = times.at_least.map(|least| Clock::Boot.now() + least);
    let verbose = args.options.acquire.verbose;
    if verbose {
        let how = if guard.joined() { "joined" } else { "held" };
        let (name, token) = (&args.name, guard.token());
        say(&format!("lock {name} is {how}, token {token}"));
    }
    let outcome = match command::prepare(&guard, &times).await {
        Err(failure) => Err(failure),
        Ok(environment) if guard.joined() => {
            joined::run(&guard, &times, &words, &environment, &mut signals).await
        }
        Ok(environment) => {
            let end = job::run(&guard, &times, &words, &environment, &mut signals).await;
            if end.survivors {
                // The lock is neither released nor renewed: it becomes free when its lease ends.
                std::mem::forget(guard);
                return end.outcome;
            }
            end.outcome
        }
    };
    release(&client, guard, outcome, free_at, verbose).await
}

/// Releases the lock, which others get from `free_at` on (`--at-least`). The outcome of the command counts, unless the store
/// says that the lock was no longer held.
async fn release(
    client: &Client,
    guard: Guard,
    outcome: Outcome,
    free_at: Option<BootInstant>,
    verbose: bool,
) -> Outcome {
    let (name, until) = (guard.name().clone(), guard.valid_until());
    let own = !guard.joined();
    // When the lease has ended, the lock is free anyway.
    let useful = guard.remaining().max(RELEASE_AFTER_LOSS);
    let timeout = useful.min(store::CLOSE_TIMEOUT);
    let deadline = Instant::now() + timeout;
    let released = timeout_at(deadline, guard.release()).await;
    let evicted = matches!(
        released,
        Ok(Ok(Release::AlreadyExpired | Release::NotOwner))
    ) && Clock::Boot.now() < until;
    let _ = timeout_at(deadline, client.close()).await;
    match released {
        _ if outcome.is_err() => outcome,
        // The command ended by itself, but the lock was no longer held.
        _ if evicted => {
            let text = format!("lock {name} was lost: it was taken away while the command ran");
            Err(Failure::new(code::LOST, text))
        }
        Ok(Ok(_)) => {
            if verbose && own {
                let left = free_at.map_or(Duration::ZERO, |at| at.since(Clock::Boot.now()));
                let stays = match left.is_zero() {
                    true => String::new(),
                    false => format!(", and stays taken for another {}", in_words(left)),
                };
                say(&format!("lock {name} is released{stays}"));
            }
            outcome
        }
        Ok(Err(_)) | Err(_) => {
            let text =
                "the store did not confirm the release; the lock is free when its lease ends";
            say(&format!("lock {name}: {text}"));
            outcome
        }
    }
}
