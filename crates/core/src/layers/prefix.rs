//! Puts a prefix before every name, so that several programs can share a store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::layer::Layer;
use crate::engine::{
    Claim, Cursor, Engine, Evict, Grant, HeldClaim, HolderView, Leave, LockView, Page, Place,
    Record, RecordChange, Renewal, Standing, Withdrawn,
};
use crate::types::{Error, LockName, MAX_NAME_BYTES, Result, Token};

/// An engine whose names all begin with a prefix that its users do not see.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # use fencelock_core::layers::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let memory = Memory::new();
/// let prefixed = Prefix::new(Arc::new(memory.another()), "shop:")?;
/// let guard = Client::new(Arc::new(prefixed))?.lock("report").await?;
/// let all = Client::new(Arc::new(memory))?.list("").await?;
/// assert_eq!(all[0].name.as_str(), "shop:report");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Prefix {
    engine: Arc<dyn Engine>,
    prefix: String,
}

impl Prefix {
    /// Puts `prefix` before every name of `engine`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no name could begin with it.
    pub fn new(engine: Arc<dyn Engine>, prefix: &str) -> Result<Self> {
        LockName::new(prefix)
            .map_err(|error| Error::invalid("prefix", prefix, error.to_string()))?;
        let prefix = prefix.to_owned();
        Ok(Self { engine, prefix })
    }

    fn outer(&self, name: &LockName) -> Result<LockName> {
        let whole = format!("{}{name}", self.prefix);
        LockName::new(&whole).map_err(|_| {
            let left = MAX_NAME_BYTES - self.prefix.len();
            let why = format!(
                "with the store's prefix {:?} it is too long; {left} bytes are left",
                self.prefix
            );
            Error::invalid("lock name", name.as_str(), why)
        })
    }

    fn claim(&self, claim: &Claim) -> Result<Claim> {
        let mut claim = claim.clone();
        claim.name = self.outer(&claim.name)?;
        Ok(claim)
    }

    fn view(&self, view: LockView) -> Option<LockView> {
        let name = view.name.as_str().strip_prefix(&self.prefix)?;
        let name = LockName::new(name).ok()?;
        Some(LockView { name, ..view })
    }
}

#[async_trait]
impl Layer for Prefix {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn identity(&self) -> String {
        format!("{}, prefix {:?}", self.engine.identity(), self.prefix)
    }

    fn lane(&self, name: &LockName) -> u32 {
        // A name that is too long was refused when it was placed, so it is never renewed.
        self.outer(name).map_or(0, |name| self.engine.lane(&name))
    }

    fn store_of(&self, name: &LockName) -> String {
        let outer = self.outer(name);
        self.engine.store_of(outer.as_ref().unwrap_or(name))
    }

    /// The record of the scope with this prefix.
    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        let scope = format!("{}{scope}", self.prefix);
        self.engine.record(&scope, change).await
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.engine.place(&self.claim(claim)?).await
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.engine.wait(&self.claim(claim)?, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let renamed = |held: &HeldClaim| {
            let claim = self.claim(&held.claim)?;
            Ok(HeldClaim::new(claim, held.token).shorten(held.shorten))
        };
        match held.iter().map(renamed).collect::<Result<Vec<_>>>() {
            Ok(held) => self.engine.renew(&held).await,
            // Cannot happen: a hold was placed, so its name is not too long.
            Err(_) => held.iter().map(|_| Renewal::Lost).collect(),
        }
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.engine.withdraw(&self.claim(claim)?, how).await
    }

    async fn look(&self, name: &LockName) -> Result<LockView> {
        let view = self.engine.inspect().look(&self.outer(name)?).await?;
        let name = name.clone();
        Ok(LockView { name, ..view })
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        let outer = self.outer(name)?;
        let view = self.engine.inspect().watch(&outer, seen).await?;
        let name = name.clone();
        Ok(LockView { name, ..view })
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.engine
            .inspect()
            .attest(&self.outer(name)?, owner)
            .await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let prefix = format!("{}{prefix}", self.prefix);
        let page = self.engine.inspect().list(&prefix, at, limit).await?;
        Ok(Page::new(
            page.items
                .into_iter()
                .filter_map(|v| self.view(v))
                .collect(),
            page.next,
        ))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.engine
            .inspect()
            .evict(&self.outer(name)?, token, how)
            .await
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.engine, f)
    }
}
