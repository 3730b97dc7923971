//! A cancellation token that is made on demand.

use crate::support::Mutex;
use std::mem;

use tokio_util::sync::CancellationToken;

/// A small mutex until its token is requested.
#[derive(Debug, Default)]
pub(crate) struct Cancel(Mutex<Lazy>);

#[derive(Debug, Default)]
enum Lazy {
    #[default]
    Unused,
    Made(CancellationToken),
    Cancelled,
}

impl Cancel {
    /// The token, made by `make` if there is none; cancelled if this was cancelled before.
    pub(crate) fn token(&self, make: impl FnOnce() -> CancellationToken) -> CancellationToken {
        let mut lazy = self.0.lock();
        match &*lazy {
            Lazy::Made(token) => token.clone(),
            Lazy::Unused => {
                let token = make();
                *lazy = Lazy::Made(token.clone());
                token
            }
            Lazy::Cancelled => {
                let token = CancellationToken::new();
                token.cancel();
                token
            }
        }
    }

    /// Cancels the token, for good.
    pub(crate) fn cancel(&self) {
        // Taken out first: cancelling wakes tasks, which may run other code.
        let before = mem::replace(&mut *self.0.lock(), Lazy::Cancelled);
        if let Lazy::Made(token) = before {
            token.cancel();
        }
    }
}
