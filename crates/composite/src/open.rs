//! Opening a set: which stores are opened at the start.

use std::time::Duration;

use fencelock_core::{Error, Finding, Purpose, Result};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use crate::member::Member;

/// If a store has not answered within this time, the next one is tried in parallel.
const STAGGER: Duration = Duration::from_millis(250);

/// Which stores are opened together with the set. The others are opened when they are first needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opening {
    /// One store that answers. For a program that takes a lock and ends. The limits of the set's promises then lack those of
    /// the other stores.
    AsNeeded,
    /// All stores that answer. For programs that run long, and for those that want to know the limits of all stores.
    #[default]
    All,
}

/// Opens stores, so that the set's promises are known.
pub(crate) async fn open(members: &[Member], opening: Opening) -> Result<()> {
    match opening {
        Opening::AsNeeded => one_of(members).await,
        Opening::All => all_of(members).await,
    }
}

/// Opens one store that answers. The next one is tried after [`STAGGER`], or once the one before it is away.
async fn one_of(members: &[Member]) -> Result<()> {
    let mut asked = FuturesUnordered::new();
    let mut rest = members.iter();
    let mut first_error = None;
    loop {
        if let Some(member) = rest.next() {
            asked.push(member.engine());
        }
        let answer = match rest.len() {
            0 => asked.next().await,
            _ => match tokio::time::timeout(STAGGER, asked.next()).await {
                Ok(answer) => answer,
                Err(_) => continue,
            },
        };
        match answer {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error @ Error::Unavailable { .. })) => {
                first_error.get_or_insert(error);
            }
            Some(Err(error)) => return Err(error),
            None => return Err(first_error.unwrap_or(Error::Closed)),
        }
    }
}

/// Opens all stores that answer. At least one must.
async fn all_of(members: &[Member]) -> Result<()> {
    let mut first_error = None;
    for opened in join_all(members.iter().map(Member::engine)).await {
        match opened {
            Ok(_) => {}
            Err(error @ Error::Unavailable { .. }) => {
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first_error {
        Some(error) if members.iter().all(|member| member.opened().is_none()) => Err(error),
        _ => Ok(()),
    }
}

/// The limits of the open stores, each with its shard, and a limit for each shard that is away.
pub(crate) fn limits(members: &[Member], opening: Opening) -> Vec<Finding> {
    let mut limits = Vec::new();
    for member in members {
        match member.opened() {
            Some(engine) => {
                let of = engine.promises().limits.iter();
                limits.extend(of.map(|limit| of_shard(&member.id, limit)));
            }
            None if opening == Opening::All => {
                let what = format!(
                    "[{}] it did not answer when the set was opened, so the limits of its server are unknown",
                    member.id
                );
                limits.push(Finding::against_correctness(
                    what,
                    "bring the shard's store back",
                ));
            }
            None => {}
        }
    }
    limits
}

/// A finding that names its shard.
pub(crate) fn of_shard(id: &str, finding: &Finding) -> Finding {
    let Finding { what, change, .. } = finding;
    let purpose: Purpose = finding.purpose;
    Finding::new(purpose, format!("[{id}] {what}"), change)
}
