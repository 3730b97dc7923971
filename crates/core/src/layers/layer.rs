//! The base of every layer: a call that the layer does not change goes to the engine below.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use crate::engine::{
    Claim, Cursor, Engine, EventStream, Evict, Finding, Grant, HeldClaim, HolderView, Inspect,
    Leave, LockView, Page, Place, Promises, Record, RecordChange, Renewal, Standing, StoreListener,
    Withdrawn,
};
use crate::types::{ClaimId, Clock, LockName, Result, Token};

/// An engine around another one. Its methods are those of [`Engine`] and [`Inspect`], and each of them passes the call on
/// unless the layer overrides it. A type that implements this is an [`Engine`].
///
/// ```
/// # use std::fmt;
/// # use std::sync::Arc;
/// # use fencelock_core::layers::Layer;
/// # use fencelock_core::{Engine, LockName, LockView, Result};
/// #[derive(Debug)]
/// struct Loud(Arc<dyn Engine>);
///
/// #[async_trait::async_trait]
/// impl Layer for Loud {
///     fn below(&self) -> &dyn Engine {
///         &*self.0
///     }
///
///     async fn look(&self, name: &LockName) -> Result<LockView> {
///         println!("somebody looks at {name}");
///         self.below().inspect().look(name).await
///     }
/// }
///
/// impl fmt::Display for Loud {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         self.0.fmt(f)
///     }
/// }
/// ```
#[async_trait]
pub trait Layer: Debug + Display + Send + Sync + 'static {
    /// The engine below.
    fn below(&self) -> &dyn Engine;

    /// See [`Engine::promises`].
    fn promises(&self) -> &Promises {
        self.below().promises()
    }

    /// See [`Engine::clock`].
    fn clock(&self) -> Clock {
        self.below().clock()
    }

    /// See [`Engine::forget`].
    fn forget(&self, claim: &ClaimId) {
        self.below().forget(claim);
    }

    /// See [`Engine::claim_ids`].
    fn claim_ids(&self) -> Option<[u8; 10]> {
        self.below().claim_ids()
    }

    /// See [`Engine::home_of`].
    fn home_of(&self, claim: &ClaimId) -> Option<String> {
        self.below().home_of(claim)
    }

    /// See [`Engine::identity`].
    fn identity(&self) -> String {
        self.below().identity()
    }

    /// See [`Engine::lane`].
    fn lane(&self, name: &LockName) -> u32 {
        self.below().lane(name)
    }

    /// See [`Engine::store_of`].
    fn store_of(&self, name: &LockName) -> String {
        self.below().store_of(name)
    }

    /// See [`Engine::listen_to_stores`].
    fn listen_to_stores(&self, listener: StoreListener) {
        self.below().listen_to_stores(listener);
    }

    /// See [`Engine::events`].
    fn events(&self) -> Result<EventStream> {
        self.below().events()
    }

    /// See [`Engine::place`].
    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.below().place(claim).await
    }

    /// See [`Engine::wait`].
    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.below().wait(claim, place).await
    }

    /// See [`Engine::renew`].
    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.below().renew(held).await
    }

    /// See [`Engine::withdraw`].
    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.below().withdraw(claim, how).await
    }

    /// See [`Engine::record`].
    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        self.below().record(scope, change).await
    }

    /// See [`Engine::raise_tokens`].
    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        self.below().raise_tokens(floor).await
    }

    /// See [`Engine::close`].
    async fn close(&self) -> Result<()> {
        self.below().close().await
    }

    /// See [`Inspect::look`].
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.below().inspect().look(name).await
    }

    /// See [`Inspect::watch`].
    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.below().inspect().watch(name, seen).await
    }

    /// See [`Inspect::list`].
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.below().inspect().list(prefix, at, limit).await
    }

    /// See [`Inspect::evict`].
    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.below().inspect().evict(name, token, how).await
    }

    /// See [`Inspect::attest`].
    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.below().inspect().attest(name, owner).await
    }

    /// See [`Inspect::diagnose`].
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.below().inspect().diagnose().await
    }
}

/// What a method with `async` returns in a trait with the attribute `async_trait`.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The calls of the hot paths return the layer's own future. With `async` there would be another one in a box around it.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Layer> Engine for L {
    fn promises(&self) -> &Promises {
        Layer::promises(self)
    }

    fn clock(&self) -> Clock {
        Layer::clock(self)
    }

    fn forget(&self, claim: &ClaimId) {
        Layer::forget(self, claim);
    }

    fn claim_ids(&self) -> Option<[u8; 10]> {
        Layer::claim_ids(self)
    }

    fn home_of(&self, claim: &ClaimId) -> Option<String> {
        Layer::home_of(self, claim)
    }

    fn identity(&self) -> String {
        Layer::identity(self)
    }

    fn lane(&self, name: &LockName) -> u32 {
        Layer::lane(self, name)
    }

    fn store_of(&self, name: &LockName) -> String {
        Layer::store_of(self, name)
    }

    fn listen_to_stores(&self, listener: StoreListener) {
        Layer::listen_to_stores(self, listener);
    }

    fn events(&self) -> Result<EventStream> {
        Layer::events(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    fn place<'a, 'c, 'f>(&'a self, claim: &'c Claim) -> Boxed<'f, Result<Standing>>
    where
        'a: 'f,
        'c: 'f,
        Self: 'f,
    {
        Layer::place(self, claim)
    }

    async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        Layer::wait(self, claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        Layer::renew(self, held).await
    }

    fn withdraw<'a, 'c, 'f>(&'a self, claim: &'c Claim, how: Leave) -> Boxed<'f, Result<Withdrawn>>
    where
        'a: 'f,
        'c: 'f,
        Self: 'f,
    {
        Layer::withdraw(self, claim, how)
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record> {
        Layer::record(self, scope, change).await
    }

    async fn raise_tokens(&self, floor: Token) -> Result<Token> {
        Layer::raise_tokens(self, floor).await
    }

    async fn close(&self) -> Result<()> {
        Layer::close(self).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Layer> Inspect for L {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        Layer::look(self, name).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        Layer::watch(self, name, seen).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        Layer::list(self, prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        Layer::evict(self, name, token, how).await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        Layer::attest(self, name, owner).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Layer::diagnose(self).await
    }
}
