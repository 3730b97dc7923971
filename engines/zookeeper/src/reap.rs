//! Ends.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, LockName};
use futures_util::future::join_all;

use crate::entry::Spot;
use crate::lock_node::{PARENT_DATA, Parent};
use crate::state::{AT_ONCE, Store};

/// For how long the node of a name is kept when nobody of this client uses it.
const IDLE: Duration = Duration::from_secs(1);

/// How often idle nodes are looked for.
const TIDY: Duration = Duration::from_millis(300);

/// The task that tidies up.
pub(crate) async fn tidy(store: Arc<Store>) {
    loop {
        let next = store.tidy().await;
        let work = store.work.notified();
        match next {
            Some(next) => {
                let pause = next.since(Clock::Boot.now()).min(TIDY);
                let pause = pause.max(Duration::from_millis(1));
                // Whichever comes first.
                drop(tokio::time::timeout(pause, work).await);
            }
            None => work.await,
        }
    }
}

impl Store {
    /// Ends holds whose time is over, and deletes the nodes of names that nobody uses. Says when to come again.
    async fn tidy(&self) -> Option<BootInstant> {
        let over = self.take_over();
        let ended = over.iter().map(|spot| async move {
            let unsure = spot.now().unsure;
            let settled = match unsure {
                true => self.settle(spot).await,
                false => Ok(()),
            };
            if settled.is_ok() && self.delete(spot).await.is_ok() {
                return self.remove(spot);
            }
            // Again soon.
            let soon = Clock::Boot.now() + TIDY;
            self.state().ends.push(Reverse((soon, spot.id)));
        });
        join_all(ended).await;
        self.drop_parents(IDLE).await;
        let mut state = self.state();
        let end = state.ends.peek().map(|Reverse((at, _))| *at);
        let idle = state.parents.values().any(|parent| parent.uses == 0);
        let soon = idle.then(|| Clock::Boot.now() + TIDY);
        let next = end.into_iter().chain(soon).min();
        state.tidies = next.is_some();
        next
    }

    /// The holds whose time is over, no more than can be asked for at once.
    fn take_over(&self) -> Vec<Arc<Spot>> {
        let moment = Clock::Boot.now();
        let mut over = Vec::new();
        let mut state = self.state();
        while let Some(Reverse((at, id))) = state.ends.peek().copied() {
            if at > moment || over.len() >= AT_ONCE {
                break;
            }
            state.ends.pop();
            let Some(spot) = state.spots.get(&id).map(Arc::clone) else {
                continue;
            };
            let until = {
                let mut now = spot.now();
                now.over |= now.until <= moment;
                now.until
            };
            if until > moment {
                // Prolonged meanwhile.
                state.ends.push(Reverse((until, id)));
            } else {
                over.push(spot);
            }
        }
        over
    }

    /// Deletes the nodes of names that this client has not used for so long. Others may still use them; then they stay, as
    /// those do that another library made to stay.
    pub(crate) async fn drop_parents(&self, idle: Duration) {
        let moment = Clock::Boot.now();
        let names: Vec<_> = {
            let mut state = self.state();
            let unused = |_: &LockName, parent: &mut Parent| {
                parent.uses == 0 && moment.since(parent.idle_since) >= idle
            };
            let unused = state.parents.extract_if(unused);
            unused.map(|(name, parent)| (name, parent.ours)).collect()
        };
        for names in names.chunks(AT_ONCE) {
            let Ok(link) = self.line.link().await else {
                // The servers delete them themselves in the end: they are containers.
                return;
            };
            let deleted = names.iter().map(|(name, ours)| {
                let (path, link) = (self.parent(name), &link);
                async move {
                    if !ours {
                        let found = link.read(link.client().get_data(&path)).await;
                        if !found.is_ok_and(|(data, _)| data == PARENT_DATA) {
                            return;
                        }
                    }
                    let delete = link.client().delete(&path, None);
                    // Not if it has children by now.
                    drop(link.write(Clock::Boot.now(), delete).await);
                }
            });
            join_all(deleted).await;
        }
    }
}
