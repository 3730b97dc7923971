//! Why a hold ended before its holder released it.

use std::fmt;

/// Why a hold can no longer be trusted. `Display` says it in a sentence.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report").await?;
/// client.evict("report", guard.token(), Evict::Release).await?;
/// match guard.lost().await {
///     LossReason::TakenAway => println!("an operator took it back"),
///     reason => println!("{}: {reason}", reason.as_str()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The validity ended before a renewal was confirmed: the store did not answer in time, or this process was paused.
    Expired,
    /// The lease ended, and the request said not to renew it.
    NotRenewed,
    /// The longest time to hold (`max_hold`) is over.
    MaxHold,
    /// The holder's own health check said no, so its lease was not renewed.
    Unhealthy,
    /// The store took the lock back: somebody force-released it, or its session or connection ended.
    TakenAway,
    /// The store answered that this claim does not hold the lock.
    StoreForgot,
    /// The hold belongs to another process, which was joined, and that process no longer holds it.
    OuterEnded,
    /// The hold belongs to another process, which was joined, and nothing was heard of it in time.
    OuterSilent,
    /// The client was closed.
    ClientClosed,
    /// The guard itself was released; only a clone of [`Held`](crate::Held) can see that.
    Released,
}

impl LossReason {
    /// The reason as one word, for metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotRenewed => "not_renewed",
            Self::MaxHold => "max_hold",
            Self::Unhealthy => "unhealthy",
            Self::TakenAway => "taken_away",
            Self::StoreForgot => "store_forgot",
            Self::OuterEnded => "outer_ended",
            Self::OuterSilent => "outer_silent",
            Self::ClientClosed => "client_closed",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its validity ended before a renewal was confirmed",
            Self::NotRenewed => "its lease ended, and it was not to be renewed",
            Self::MaxHold => "its longest time to be held is over (max_hold)",
            Self::Unhealthy => "its holder was not healthy, so it was not renewed",
            Self::TakenAway => "the store took it back (it was force-released)",
            Self::StoreForgot => "the store says that this claim does not hold it",
            Self::OuterEnded => "the outer process no longer holds it as it did",
            Self::OuterSilent => "nothing was heard of the outer process's hold in time",
            Self::ClientClosed => "this client was closed",
            Self::Released => "it was released",
        })
    }
}
