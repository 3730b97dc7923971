//! Groups of servers that take long to start. Cases use them one after another.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fencelock_testbed::Result;

/// Groups that are free. They end when the last lease ends.
pub(crate) struct Pool<G>(Mutex<Weak<Free<G>>>);

struct Free<G>(Mutex<Vec<G>>);

/// A group for exclusive use.
pub(crate) struct Lease<G> {
    group: Option<G>,
    free: Arc<Free<G>>,
    clean: fn(&G) -> Result<()>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<G> Pool<G> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// A free group, or a new one. `clean` resets it afterwards; if that fails, the group ends.
    pub(crate) fn lease(
        &self,
        make: impl FnOnce() -> Result<G>,
        clean: fn(&G) -> Result<()>,
    ) -> Result<Lease<G>> {
        let free = {
            let mut pool = held(&self.0);
            pool.upgrade().unwrap_or_else(|| {
                let free = Arc::new(Free(Mutex::default()));
                *pool = Arc::downgrade(&free);
                free
            })
        };
        let found = held(&free.0).pop();
        let group = found.map_or_else(make, Ok)?;
        Ok(Lease {
            group: Some(group),
            free,
            clean,
        })
    }
}

impl<G> Deref for Lease<G> {
    type Target = G;

    fn deref(&self) -> &G {
        self.group.as_ref().expect("it is there until the drop")
    }
}

impl<G> Drop for Lease<G> {
    fn drop(&mut self) {
        if let Some(group) = self.group.take()
            && (self.clean)(&group).is_ok()
        {
            held(&self.free.0).push(group);
        }
    }
}
