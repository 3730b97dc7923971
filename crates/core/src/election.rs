//! One leader among many candidates, and observers of it.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::client::Client;
use crate::engine::LockView;
use crate::guard::Guard;
use crate::types::Mode;
use crate::types::Release;
use crate::types::Result;
use crate::types::Token;

/// An election, made by [`Client::election`]: a lock whose holder leads. Cheap to clone.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let election = client.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:80").await?;
/// let leader = election.leader().await?;
/// assert_eq!(leader.map(|leader| leader.value).as_deref(), Some("10.0.0.7:80"));
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: String,
}

/// A request to lead, made by [`Election::campaign`]. Await it.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let campaign = client.election("scheduler").campaign("10.0.0.7:80");
/// let leadership = campaign.await?;
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// That of [`Acquire`].
#[derive(Clone, Debug)]
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign(Acquire);

/// The leader's [`Guard`], with the leader's token. Use [`Guard::is_valid`] and [`Guard::lost`] as with any lock: another
/// leader may have followed one that was paused.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
/// tokio::select! {
///     reason = leadership.lost() => println!("no longer the leader: {reason}"),
///     () = async { /* … what only the leader does … */ } => drop(leadership.resign().await?),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the leader resigns when this is dropped"]
pub struct Leadership(Guard);

/// Who leads, as others see it.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
/// if let Some(leader) = client.election("scheduler").leader().await? {
///     println!("{} leads with token {}", leader.value, leader.token);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value that the leader gave when it campaigned, such as an address or a name.
    pub value: String,
    /// The leader's token: higher than those of all earlier leaders.
    pub token: Token,
    /// The owner text of the process that leads.
    pub owner: String,
    /// How long it has led; `None` if the store does not know.
    pub leads_for: Option<Duration>,
}

/// One leader after the other, made by [`Election::observe`].
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// # let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
/// let mut leaders = client.election("scheduler").observe();
/// if let Some(leader) = leaders.next().await? {
///     println!("{} leads now", leader.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Leaders {
    election: Election,
    /// The highest token at the last look; `None` before the first look.
    seen: Option<Option<Token>>,
    /// The token of the leader that was last returned, if there was one; `None` before the first return.
    told: Option<Option<Token>>,
}

impl Client {
    /// An election for the lock `name`.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let election = client.election("scheduler");
    /// assert!(election.leader().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn election(&self, name: &str) -> Election {
        let (client, name) = (self.clone(), name.to_owned());
        Election { client, name }
    }
}

impl Election {
    /// A request to lead. If the store keeps an order, it waits until all earlier candidates have had their turn. `value` is
    /// shown to observers: at most 255 bytes, no control characters.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
    /// while leadership.is_valid() {
    ///     // … one step of what only the leader does …
    ///     # break;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn campaign(&self, value: &str) -> Campaign {
        Campaign(self.client.lock(&self.name).label(value).recorded())
    }

    /// Who leads now, if anybody does.
    ///
    /// # Errors
    /// Those of [`Client::look`].
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let election = client.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:80").await?;
    /// let leader = election.leader().await?;
    /// assert_eq!(leader.map(|leader| leader.token), Some(leadership.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(leader_of(self.client.look(&self.name).await?))
    }

    /// Every leader from now on, the present one first. A leader that led only for a moment may be left out.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let mut leaders = client.election("scheduler").observe();
    /// assert!(leaders.next().await?.is_none()); // nobody leads yet
    /// let leadership = client.election("scheduler").campaign("10.0.0.7:80").await?;
    /// assert!(leaders.next().await?.is_some_and(|leader| leader.value == "10.0.0.7:80"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn observe(&self) -> Leaders {
        Leaders {
            election: self.clone(),
            seen: None,
            told: None,
        }
    }
}

fn leader_of(view: LockView) -> Option<Leader> {
    let holders = view.holders.into_iter();
    let alone = holders.filter(|holder| holder.mode == Mode::Exclusive);
    // A database frees a lock of a connection a moment before it lists the connection as ended. So a look may show the former
    // leader together with the present one.
    let holder = alone.max_by_key(|holder| holder.token)?;
    Some(Leader {
        value: holder.label.unwrap_or_default(),
        token: holder.token?,
        owner: holder.owner,
        leads_for: holder.held,
    })
}

impl Campaign {
    /// Changes the request with the methods of [`Acquire`]: `.set(|request| request.ttl(Duration::from_secs(5)))`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let campaign = client.election("scheduler").campaign("10.0.0.7:80");
    /// let leadership = campaign.set(|request| request.ttl(Duration::from_secs(5))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(self, change: impl FnOnce(Acquire) -> Acquire) -> Self {
        Self(change(self.0))
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.0.await.map(Leadership) })
    }
}

impl Leadership {
    /// Lets the next candidate lead.
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    /// May be dropped: it continues in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let election = client.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:80").await?;
    /// leadership.resign().await?;
    /// assert!(election.leader().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resign(self) -> Result<Release> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Leaders {
    /// The next leader, or `None` once nobody leads. The first call returns the present leader at once. The tokens of the
    /// leaders that it returns strictly increase, unless the store lost its memory.
    ///
    /// # Errors
    /// Those of [`Client::look`]. The call may be repeated.
    ///
    /// # Cancel safety
    /// May be dropped and called again; no leader is missed by that.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let mut leaders = client.election("scheduler").observe();
    /// match leaders.next().await? {
    ///     Some(leader) => println!("{} leads", leader.value),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        let Election { client, name } = &self.election;
        loop {
            let view = match self.seen {
                None => client.look(name).await?,
                Some(seen) => client.watch(name, seen).await?,
            };
            self.seen = Some(view.token());
            let leader = leader_of(view);
            let now = leader.as_ref().map(|leader| leader.token);
            if self.told.replace(now) != Some(now) {
                return Ok(leader);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::HolderView;
    use crate::types::LockName;

    #[test]
    fn if_two_are_shown_the_newer_one_leads() {
        let mut view = LockView::free(LockName::new("a").unwrap());
        view.holders = [7, 9, 8]
            .map(|token| HolderView::new("somebody".into(), Mode::Exclusive).token(Token(token)))
            .into();
        assert_eq!(leader_of(view).unwrap().token, Token(9));
    }
}
