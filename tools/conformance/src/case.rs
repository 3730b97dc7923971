//! A case: something that an engine must do.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use fencelock::Promises;

use crate::ctx::Ctx;

/// What a case needs from the subject besides a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing more.
    Store,
    /// A store that several processes can open.
    Processes,
    /// A server of its own, to be stopped, killed and cut off.
    Server,
}

type Run = fn(Ctx) -> Pin<Box<dyn Future<Output = ()>>>;

/// Something that an engine must do if it promises it. It fails by a panic.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, unique in the list.
    pub name: &'static str,
    /// Whether an engine with these promises must do it.
    pub promised: fn(&Promises) -> bool,
    /// What it needs.
    pub needs: Needs,
    /// Whether it is so busy that it would disturb the timing of other cases: few such cases run at once.
    pub busy: bool,
    /// Runs it.
    pub run: Run,
}

impl Case {
    /// A case for every engine that needs nothing but a store.
    #[must_use]
    pub const fn new(name: &'static str, run: Run) -> Self {
        Self {
            name,
            promised: |_| true,
            needs: Needs::Store,
            busy: false,
            run,
        }
    }

    /// Only for engines that promise this.
    #[must_use]
    pub const fn promised(mut self, promised: fn(&Promises) -> bool) -> Self {
        self.promised = promised;
        self
    }

    /// Only for stores that several processes can open.
    #[must_use]
    pub const fn processes(mut self) -> Self {
        self.needs = Needs::Processes;
        self
    }

    /// Only for stores behind a server.
    #[must_use]
    pub const fn server(mut self) -> Self {
        self.needs = Needs::Server;
        self
    }

    /// Marks the case as busy.
    #[must_use]
    pub const fn busy(mut self) -> Self {
        self.busy = true;
        self
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

/// A [`Case`] named like the function that it runs.
macro_rules! case {
    ($run:ident) => {
        $crate::case::Case::new(stringify!($run), |ctx| Box::pin($run(ctx)))
    };
}
pub(crate) use case;
