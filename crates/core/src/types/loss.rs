//! Why a hold ended before its holder released it.

use std::fmt;

/// Why a hold can no longer be trusted. `Display` gives it as a sentence.
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
    /// The lease ended, and it was requested without renewals.
    NotRenewed,
    /// The longest time to hold (`max_hold`) is over.
    MaxHold,
    /// The holder's own health check failed, so its lease was not renewed.
    Unhealthy,
    /// Another client took the lock away by its token ([`Client::evict`](crate::Client::evict)), or removed it from the store.
    TakenAway,
    /// The session with the store expired, and all holds of the session with it (etcd, ZooKeeper).
    SessionEnded,
    /// The connection that held the lock ended: the network or the server ended it, or an operator did.
    ConnectionEnded,
    /// The store does not have the hold any more. Its lease ended there, another client took it away, or the store lost data.
    StoreForgot,
    /// The hold belongs to another process, which was joined, and that process no longer holds it.
    OuterEnded,
    /// The hold belongs to another process, which was joined, and there was no answer about it in time.
    OuterSilent,
    /// The client was closed.
    ClientClosed,
    /// The guard itself was released. Only a clone of [`Held`](crate::Held) can get this reason.
    Released,
}

impl LossReason {
    /// The reason as one word, for metrics and logs.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(LossReason::TakenAway.as_str(), "taken_away");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotRenewed => "not_renewed",
            Self::MaxHold => "max_hold",
            Self::Unhealthy => "unhealthy",
            Self::TakenAway => "taken_away",
            Self::SessionEnded => "session_ended",
            Self::ConnectionEnded => "connection_ended",
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
            Self::NotRenewed => "its lease ended, and its renewal was switched off",
            Self::MaxHold => "its longest hold is over (max_hold)",
            Self::Unhealthy => "its holder was not healthy, so it was not renewed",
            Self::TakenAway => "somebody took it away by its token, or removed it from the store",
            Self::SessionEnded => "the session with the store expired",
            Self::ConnectionEnded => "the connection that held it ended",
            Self::StoreForgot => {
                "the store no longer has it: its lease ended there, it was taken away, or the store lost data"
            }
            Self::OuterEnded => "the outer process no longer has the same hold",
            Self::OuterSilent => "the store did not confirm the outer process's hold in time",
            Self::ClientClosed => "this client was closed",
            Self::Released => "it was released",
        })
    }
}
